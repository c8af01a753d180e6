"""The sizes and choices of a Transformer, and the published ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.core.checks import (
    as_count,
    as_number,
    as_rate,
    as_size,
    require,
    require_choice,
    require_sizes,
)
from attnlab.modules.biases import AlibiBias, RelativePositionBias
from attnlab.modules.conventions import Initializer
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.ops.routes import AllPairs, Route, Window
from attnlab.positions import require_pairs

__all__ = ["POSITION_BIASES", "TransformerConfig"]

glorot_uniform = nn.initializers.glorot_uniform()
POSITION_BIASES = ("alibi", "relative")  # positions that attention adds to its logits


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """What every layer of a Transformer is made of; the defaults are the paper's base model.

    `TransformerConfig.base(V)` and `.big(V)` are the paper's (Vaswani et al. 2017, Table 3); any
    other row is `dataclasses.replace(base, …)` or `base(V, num_layers=2, …)`.

    Attributes:
      vocab_size: number of ids of the target, V.
      source_vocab_size: number of ids of the source, where it has a vocabulary of its own, and so
        an embedding of its own, even one of the same size. None = source and target have one joint
        vocabulary, where an id means the same on both sides.
      num_layers: number of layers of each stack, N.
      width: width of the model, d_model.
      hidden: hidden width of the feed-forward network, d_ff.
      feed_forward_chunk: number of positions whose hidden layer is computed at once; None = all.
      num_heads: number of heads, h.
      key_width: width of a head's queries and keys, d_k; None = width / num_heads.
      value_width: width of a head's values, d_v; None = width / num_heads.
      share_embeddings: whether one matrix is the embedding of the target, the pre-softmax
        projection and, of a joint vocabulary, the embedding of the source (§3.4); False = a matrix
        each.
      scale_embeddings: whether embeddings are multiplied by √d_model (§3.4).
      positions: kind of positions: "sinusoid", "learned" and "axial" (`positions.axial`) are added
        to the embeddings; "concatenated" sinusoids stand beside them, [x; PE] W; "rotary" turns
        queries and keys of self-attention; "alibi" (`AlibiBias`) and "relative"
        (`RelativePositionBias`, a table a layer) add what a distance says to its logits; None = no
        positions.
      max_length: number of learned positions; of axial ones the product of their shape.
      axial_shape: numbers of rows of the axial tables, whose product is max_length.
      axial_widths: widths of the axial tables, whose sum is the width.
      num_types: number of token types, each with a learned vector that is added to the embeddings
        (segments in Devlin et al. 2018, §3); 0 = tokens have no types.
      norm_inputs: whether the sum of embeddings, positions and types goes through a LayerNorm.
      window: number of neighbors on each side that self-attention sees, r of restricted
        self-attention (§4); None = all.
      pre_norm: whether a layer is x + f(LN(x)), with a LayerNorm at the end of the stack, instead
        of LN(x + f(x)).
      activation: activation of the feed-forward network.
      dropout_rate: rate of dropout on each sub-layer's output, and on the sum of embeddings and
        positions.
      attention_bias: whether the projections of attention have biases.
      attention_dropout_rate: rate of dropout on the attention weights.
      hidden_dropout_rate: rate of dropout after the activation ("relu dropout").
      norm_epsilon: epsilon of LayerNorm.
      kernel_init: initializer of all matrices but embeddings; it sees them as [in, out] with all
        heads side by side.
      embedding_init: initializer of embeddings, learned positions and types; None = N(0, 1/width).
      position_init: initializer of learned positions alone, such as `positions.sinusoid_init`; None
        = that of embeddings.
      scan_layers: whether one layer's program serves all layers, which then compile in the time of
        one; the parameters are stacked in "layers" instead of "layer_0", "layer_1", ….
      remat: whether to compute each layer's activations again in the backward pass instead of
        keeping them.
      dtype: dtype of the computation, such as jnp.bfloat16; None = that of the parameters.
        Softmaxes, the statistics of LayerNorm and the logits are float32.
      param_dtype: dtype of the parameters.
    """

    vocab_size: int
    _: dataclasses.KW_ONLY
    source_vocab_size: int | None = None
    num_layers: int = 6
    width: int = 512
    hidden: int = 2048
    feed_forward_chunk: int | None = None
    num_heads: int = 8
    key_width: int | None = None
    value_width: int | None = None
    share_embeddings: bool = True
    scale_embeddings: bool = True
    positions: str | None = "sinusoid"
    max_length: int = 512
    axial_shape: tuple[int, ...] = ()
    axial_widths: tuple[int, ...] = ()
    num_types: int = 0
    norm_inputs: bool = False
    window: int | None = None
    pre_norm: bool = False
    activation: Callable[[jax.Array], jax.Array] = nn.relu
    dropout_rate: float = 0.1
    attention_bias: bool = False
    attention_dropout_rate: float = 0.0
    hidden_dropout_rate: float = 0.0
    norm_epsilon: float = 1e-6
    kernel_init: Initializer = glorot_uniform
    embedding_init: Initializer | None = None
    position_init: Initializer | None = None
    scan_layers: bool = False
    remat: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self):
        kinds = ("sinusoid", "learned", "axial", "concatenated", "rotary", *POSITION_BIASES, None)
        require_choice("positions", self.positions, kinds)
        for name in ("axial_shape", "axial_widths"):
            sizes = tuple(as_size(name, size) for size in getattr(self, name))
            object.__setattr__(self, name, sizes)
        axial = math.prod(self.axial_shape) == self.max_length
        axial &= sum(self.axial_widths) == self.width
        axial &= 1 <= len(self.axial_shape) == len(self.axial_widths)
        require(
            axial or self.positions != "axial",
            "axial positions need axial_shape, whose product is max_length, and as many"
            f" axial_widths, whose sum is width; got {self.axial_shape} for {self.max_length} and"
            f" {self.axial_widths} for {self.width}",
        )
        counts = ("vocab_size", "source_vocab_size", "num_layers", "num_heads", "max_length")
        require_sizes(self, *counts, "width", "hidden", "key_width", "value_width")
        require_sizes(self, "feed_forward_chunk", "window")
        epsilon = as_number("norm_epsilon", self.norm_epsilon)
        require(epsilon > 0, f"norm_epsilon must be more than 0; got {epsilon}")
        as_count("num_types counts types of tokens,", self.num_types)
        for name in ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate"):
            as_rate(getattr(self, name), name)
        require(
            self.width % self.num_heads == 0 or None not in (self.key_width, self.value_width),
            "width must be a multiple of num_heads, or key_width and value_width be given; "
            f"got {self.width} and {self.num_heads}",
        )
        if self.positions in ("sinusoid", "concatenated"):
            require_pairs(self.width)
        elif self.positions == "rotary":
            require_pairs(self.key_width or self.width // self.num_heads)

    @classmethod
    def base(cls, vocab_size: int, **changed: Any) -> TransformerConfig:
        """The base model: 6 layers, 512 wide, 8 heads, P_drop 0.1; V = 37000 for En-De."""
        return cls(vocab_size, **changed)

    @classmethod
    def big(cls, vocab_size: int, **changed: Any) -> TransformerConfig:
        """The big model: 1024 wide, 16 heads, P_drop 0.3 (En-De; 0.1 for En-Fr)."""
        sizes = {"width": 1024, "hidden": 4096, "num_heads": 16, "dropout_rate": 0.3}
        return cls(vocab_size, **(sizes | changed))

    @classmethod
    def bert(cls, vocab_size: int, **changed: Any) -> TransformerConfig:
        """BERT base (Devlin et al. 2018, §3): 12 layers, 768 wide, 12 heads, 512 positions.

        As released: biases, GELU by tanh, N(0, 0.02) cut off at two deviations, ε 1e-12 in
        LayerNorm, dropout 0.1 everywhere. BERT large is 24 layers, 1024 wide, hidden 4096, 16
        heads.
        """
        init = nn.initializers.truncated_normal(0.02)
        given: dict[str, Any] = {
            "num_layers": 12,
            "width": 768,
            "hidden": 3072,
            "num_heads": 12,
            "scale_embeddings": False,
            "positions": "learned",
            "num_types": 2,
            "norm_inputs": True,
            "activation": nn.gelu,
            "attention_bias": True,
            "attention_dropout_rate": 0.1,
            "norm_epsilon": 1e-12,
            "kernel_init": init,
            "embedding_init": init,
        }
        return cls(vocab_size, **(given | changed))

    def attention(self, route: Route | None = None, **changed: Any) -> MultiHeadAttention:
        """The self-attention of a layer; change it and give it to a model as `attention=`.

        Args:
          route: a value of `attnlab.routes`; None = all pairs, or those within the config's window.
          **changed: other attributes of `MultiHeadAttention`, such as `score=AdditiveScore()`.
        """
        head = self.width // self.num_heads
        given: dict[str, Any] = {
            "num_heads": self.num_heads,
            "qkv_features": self.num_heads * (self.key_width or head),
            "value_features": self.num_heads * (self.value_width or head),
            "out_features": self.width,
            "route": self._route() if route is None else route,
            "rotary": self.positions == "rotary",
            "position_bias": self._position_bias(),
            "use_bias": self.attention_bias,  # the paper has W^Q, W^K, W^V, W^O only
            "dropout_rate": self.attention_dropout_rate,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "kernel_init": self.kernel_init,
        }
        # Without a parent: it may be made inside of a model.
        return MultiHeadAttention(**(given | changed), parent=None)

    def _position_bias(self) -> nn.Module | None:
        if self.positions == "relative":
            return RelativePositionBias(param_dtype=self.param_dtype, parent=None)
        return AlibiBias(parent=None) if self.positions == "alibi" else None

    def _route(self) -> Route:
        return AllPairs() if self.window is None else Window(self.window, self.window)

    def cross_attention(self, **changed: Any) -> MultiHeadAttention:
        """The encoder–decoder attention of a layer, which knows no positions."""
        given: dict[str, Any] = {"rotary": False, "position_bias": None, "route": AllPairs()}
        return self.attention(**(given | changed))
