"""The Reformer as a language model: reversible layers, their stack, the model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from attnlab.core.checks import require
from attnlab.masks import Mask
from attnlab.models.chunks import in_chunks
from attnlab.models.reformer.couplings import Coupling, Streams, reversible
from attnlab.models.transformer.config import TransformerConfig
from attnlab.models.transformer.language_model import LanguageModel
from attnlab.models.transformer.layers import (
    FeedForward,
    Inputs,
    Vocabulary,
    dense,
    gathered_network,
    layer_norm,
)
from attnlab.models.transformer.stack import (
    Attention,
    layer_paths,
    pattern_of,
    require_width,
    through_layers,
)
from attnlab.ops import routes


class ReversibleLayer(nn.Module):
    """y1 = x1 + attention(LN(x2)), y2 = x2 + feed-forward(LN(y1)): Kitaev et al. 2020, §3.

    Parameters: as those of a `TransformerLayer`.

    Attributes:
      config: configuration of the model.
      attention: module of the layer, called as `attention(x, mask=, deterministic=, decode=)`.
    """

    config: TransformerConfig
    attention: nn.Module

    def setup(self):
        c = self.config
        self.attention_norm = layer_norm(c)
        self.feed_forward_norm = layer_norm(c)
        self.feed_forward = FeedForward(c)
        # Each draws masks of its own.
        self.attention_dropout = nn.Dropout(c.dropout_rate)
        self.feed_forward_dropout = nn.Dropout(c.dropout_rate)

    def __call__(self, streams: Streams, **options: Any) -> Streams:
        """The streams after the layer."""
        x1, x2 = streams
        y1 = x1 + self.attend(x2, **options)
        return y1, x2 + self.feed(y1, deterministic=options["deterministic"])

    def attend(
        self,
        x: jax.Array,
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
        decode: bool = False,
    ) -> jax.Array:
        """What the attention adds, [B, T, D] in the dtype of x."""
        attention: Any = self.attention
        y = attention(self.attention_norm(x), mask=mask, deterministic=deterministic, decode=decode)
        require_width(y, x)
        return self.attention_dropout(y, deterministic=deterministic).astype(x.dtype)

    def feed(self, x: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """What the feed-forward network adds, [B, T, D] in the dtype of x."""
        y = self.feed_forward(self.feed_forward_norm(x), deterministic=deterministic)
        return self.feed_forward_dropout(y, deterministic=deterministic).astype(x.dtype)


class ReversibleStack(nn.Module):
    """`config.num_layers` reversible layers, both of whose streams begin with the input.

    Its parameters are laid out as those of a `Stack`. A backward pass keeps no activations but the
    last layer's (`couplings.reversible`) and draws the same dropout and the same rotations again:
    layer i's keys are those of the call folded with i. With `config.scan_layers` memory is that of
    one layer; without, a compiler may keep some activations of each. Call it under `jax.jit`:
    outside, each call compiles.

    To look into a model costs memory: where "intermediates", or a collection that is not there yet,
    is mutable, the activations are kept. Such calls, and decoding, draw other masks and rotations.
    No gradient flows through the collections that layers move.

    Attributes:
      config: configuration of the model.
      attention: module to clone for each layer, or the pattern that the layers repeat.
      stream_dtype: dtype of the two streams. In bfloat16 the activations that the backward pass
        computes are not those of the forward pass.
    """

    config: TransformerConfig
    attention: Attention
    stream_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
        decode: bool = False,
    ) -> jax.Array:
        """Both streams side by side, [B, T, 2·D], for x [B, T, D]."""
        x = x.astype(self.stream_dtype)
        if self.is_initializing() or decode or self._makes_collections():
            options = {"mask": mask, "deterministic": deterministic, "decode": decode}

            def make_layer(attention: nn.Module, name: str) -> ReversibleLayer:
                return ReversibleLayer(self.config, attention, name=name)

            def call(layer: ReversibleLayer, streams: Streams) -> tuple[Streams, None]:
                return layer(streams, **options), None

            streams, _ = through_layers(self, self.attention, make_layer, call, (x, x))
        else:
            streams = self._reversible((x, x), mask, deterministic)
        return jnp.concatenate(streams, axis=-1)

    def _makes_collections(self) -> bool:
        """Whether layers may leave something that was not there before, as `sow` does."""
        assert self.scope is not None
        mutable = self.scope.mutable
        if isinstance(mutable, bool):
            return mutable
        names = (mutable,) if isinstance(mutable, str) else mutable
        return not isinstance(names, Collection) or any(x not in self.variables for x in names)

    def _reversible(self, streams: Streams, mask: Mask | None, deterministic: bool) -> Streams:
        c = self.config
        pattern = pattern_of(c, self.attention)
        paths = layer_paths(c, pattern)
        variables = nn.meta.unbox(dict(self.variables))
        if not c.scan_layers:  # a repetition of all layers, once
            pattern = tuple(pattern[i % len(pattern)] for i in range(c.num_layers))
            variables = jax.tree.map(lambda x: x[None], variables)
        params = variables.pop("params")
        repetitions = c.num_layers // len(paths)
        assert self.scope is not None
        keys = {name: self.make_rng(name) for name in self.scope.rngs}
        # A Python number stays one: implementations ask, while tracing, whether an offset is 0.
        parts, structure = jax.tree.flatten(mask)
        arrays = {i: x for i, x in enumerate(parts) if isinstance(x, jax.Array)}

        def mask_of(arrays: dict[int, jax.Array]) -> Mask | None:
            now = [arrays.get(i, x) for i, x in enumerate(parts)]
            return jax.tree.unflatten(structure, now)

        def rest_of(k: int, path: tuple[str, ...]) -> tuple[Any, Any]:
            """The other variables of the k-th layer of a repetition, and its keys."""
            layers = jnp.arange(repetitions) * len(paths) + k
            fold = jax.vmap(jax.random.fold_in, (None, 0))
            layers_of = {kind: _branch(tree, path) for kind, tree in variables.items()}
            return (
                {kind: x for kind, x in layers_of.items() if x is not None},
                {stream: fold(key, layers) for stream, key in keys.items()},
            )

        mutable = [kind for kind in variables if self.is_mutable_collection(kind)]
        couplings = tuple(
            self._coupling(module, mask_of, mutable=mutable, deterministic=deterministic)
            for module in pattern
        )
        streams, moved = reversible(
            couplings,
            tuple(_split_layer(_branch(params, path)) for path in paths),
            streams,
            tuple(rest_of(k, path) for k, path in enumerate(paths)),
            arrays,
        )
        if not c.scan_layers:
            moved = jax.tree.map(lambda x: x[0], moved)
        flat = {
            (kind, *path): x
            for path, kinds in zip(paths, moved, strict=True)
            for kind, x in kinds.items()
        }
        for kind, layers in unflatten_dict(flat).items():
            for name, x in layers.items():
                self.put_variable(kind, name, x)
        return streams

    def _coupling(
        self,
        attention: nn.Module,
        mask_of: Callable[[dict[int, jax.Array]], Mask | None],
        *,
        mutable: list[str],
        deterministic: bool,
    ) -> Coupling:
        """A layer as pure functions. The chunks of its feed-forward network are theirs."""
        layer = ReversibleLayer(self.config, attention.copy(parent=None), parent=None)

        def f(params, x, rest):
            (collections, keys), arrays = rest
            return layer.apply(
                {"params": params, **collections},
                x,
                mask=mask_of(arrays),
                deterministic=deterministic,
                rngs=keys,
                mutable=mutable,
                method="attend",
            )

        def g(params, x, rest, index):
            (_, keys), _ = rest
            keys = {stream: jax.random.fold_in(key, index) for stream, key in keys.items()}
            return layer.apply(
                {"params": params}, x, deterministic=deterministic, rngs=keys, method="feed"
            )

        return Coupling(f, *in_chunks(g, self.config.feed_forward_chunk, _gather))


def _split_layer(params: Any) -> tuple[Any, Any]:
    """A layer's parameters, those of its attention and those of its feed-forward network."""
    of_feed = {name: x for name, x in params.items() if name.startswith("feed_forward")}
    return {name: x for name, x in params.items() if name not in of_feed}, of_feed


def _gather(params: Any) -> Any:
    return params | {"feed_forward": gathered_network(params["feed_forward"])}


def _branch(tree: Any, path: tuple[str, ...]) -> Any:
    """The branch of a tree of dicts, None where there is none."""
    for name in path:
        tree = tree.get(name, None) if tree is not None else None
    return tree


class Reformer(LanguageModel):
    """Logits LN([y1, y2]) W + b of the two streams after all layers (Kitaev et al. 2020, §3).

    Its layers are pre-norm and its softmax has a matrix of its own, [2·D, V]. `Reformer.enwik8()`
    is the released model of 149,182,722 parameters.

    Parameters: "vocabulary", "inputs" (axial or learned positions), "decoder" (`ReversibleStack`),
    "norm", "softmax".

    Attributes:
      config: sizes and choices, without `remat` and `window`; `share_embeddings` and `pre_norm` are
        ignored.
      attention: self-attention module, copied for each layer, or the pattern of modules that the
        layers repeat; None = LSH with 4 rounds.
      stream_dtype: dtype of the residual streams, as for `ReversibleStack`.
    """

    stream_dtype: Any = jnp.float32

    def setup(self):
        c = self.config
        require(
            not c.remat and c.window is None,
            "a Reformer is reversible, and its attention is LSH or attention=; got"
            f" remat={c.remat}, window={c.window} (leave them out)",
        )
        attention = c.attention(routes.LSH()) if self.attention is None else self.attention
        self.vocabulary = Vocabulary(c.vocab_size, c)
        self.inputs = Inputs(c)
        self.decoder = ReversibleStack(c, pattern_of(c, attention), self.stream_dtype)
        self.norm = layer_norm(c)
        self.drop = nn.Dropout(c.dropout_rate)
        self.softmax = dense(c, c.vocab_size, makes_logits=True)

    def logits_of(self, x: jax.Array, **options: Any) -> jax.Array:
        x = self.norm(self.decoder(x, **options))
        return self.softmax(self.drop(x, deterministic=options["deterministic"]))

    @classmethod
    def enwik8(cls, **changed: Any) -> Reformer:
        """The released model of enwik8's bytes, 65,536 at a time: 12 layers of width 1024.

        Every fourth layer, from the third on, has LSH with 2 rounds, 512 buckets and chunks of 256;
        the others have `routes.Chunked(128)`: a position sees the past in its own chunk of 128 and
        in the one before. LSH is strictly causal here. Source: the paper's code of January 2020;
        dropout 0.2. The layers are scanned.

        Args:
          **changed: other fields of `TransformerConfig`, such as `dtype=jnp.bfloat16`.
        """
        given: dict[str, Any] = {
            "num_layers": 12,
            "width": 1024,
            "hidden": 4096,
            "num_heads": 8,
            "key_width": 128,
            "value_width": 128,
            "share_embeddings": False,
            "scale_embeddings": False,
            "positions": "axial",
            "max_length": 65536,
            "axial_shape": (128, 512),
            "axial_widths": (256, 768),
            "dropout_rate": 0.2,
            "attention_dropout_rate": 0.2,
            "hidden_dropout_rate": 0.2,
            "scan_layers": True,
        }
        config = TransformerConfig(258, **(given | changed))
        local = config.attention(routes.Chunked(128))
        lsh = config.attention(routes.LSH(num_hashes=2, num_buckets=512, chunk_size=256))
        return cls(config, attention=(local, local, lsh, local))
