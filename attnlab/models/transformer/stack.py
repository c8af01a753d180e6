"""The layers of a Transformer on top of each other: one stack for encoders, decoders and both.

Letters: B batch, T tokens, S tokens of the source, D width of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax

from attnlab.core.checks import require, require_instance
from attnlab.core.shapes import fit
from attnlab.masks import Mask
from attnlab.models.transformer.config import POSITION_BIASES, TransformerConfig
from attnlab.models.transformer.layers import FeedForward, layer_norm

__all__ = ["Attention", "Stack", "layer_paths", "pattern_of", "require_width", "through_layers"]

Attention: TypeAlias = nn.Module | Sequence[nn.Module]


class TransformerLayer(nn.Module):
    """Self-attention, attention over a memory if there is one, feed-forward; each in a residual.

    Attributes:
      config: configuration of the model.
      attention: a module to clone, called as `attention(x, mask=, deterministic=, decode=)`.
      cross_attention: a module to clone, called as `cross_attention(x, memory, mask=,
        deterministic=, decode=, return_weights=)`; None = the layer has no memory.
    """

    config: TransformerConfig
    attention: nn.Module
    cross_attention: nn.Module | None = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        deterministic: bool = True,
        decode: bool = False,
        return_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """States [B, T, D], and the weights [B, T, S] over the memory, the heads' mean, or None.

        Args:
          x: states [B, T, D].
          memory: states of the source, [B, S, D].
          mask: mask of self-attention.
          memory_mask: mask of the attention over the memory.
          deterministic: whether dropout is off.
          decode: whether to continue after the tokens in the cache.
          return_weights: whether to compute the weights.
        """
        weights = None
        cross_attention: Any = self.cross_attention
        common = {"deterministic": deterministic, "decode": decode}

        def over_memory(x):
            nonlocal weights
            options = common | {"mask": memory_mask}
            if not return_weights:
                return cross_attention(x, memory, **options)
            y, of_heads = cross_attention(x, memory, return_weights=True, **options)
            weights = of_heads.mean(-3)
            return y

        sublayers = {"attention": lambda x: self.attention(x, mask=mask, **common)}
        if cross_attention is not None:
            sublayers["cross_attention"] = over_memory
        feed_forward = FeedForward(self.config, name="feed_forward")
        sublayers["feed_forward"] = lambda x: feed_forward(x, deterministic=deterministic)

        drop = nn.Dropout(self.config.dropout_rate, deterministic=deterministic)
        for name, sublayer in sublayers.items():
            norm = layer_norm(self.config, f"{name}_norm")
            y = sublayer(norm(x) if self.config.pre_norm else x)
            require_width(y, x)
            x = x + drop(y) if self.config.pre_norm else norm(x + drop(y))
        return x, weights


def require_width(y: jax.Array, x: jax.Array) -> None:
    """Refuses what cannot be added to x.

    Raises:
      ValueError: y has another shape.
    """
    remedy = "make it with config.attention(…), or leave out_features out"
    fit("input: *B T D", x, "attention in a layer: *B T D", y, remedy=remedy)


class Stack(nn.Module):
    """`config.num_layers` layers on top of each other, and with pre-norm a LayerNorm on top of all.

    Parameters: "layer_0", "layer_1", …, each with "attention", "attention_norm", "cross_attention",
    "cross_attention_norm", "feed_forward", "feed_forward_norm"; with pre-norm also "norm". With
    `config.scan_layers` they are stacked; see `layer_paths`.

    Attributes:
      config: configuration of the model.
      attention: module to clone for each layer, or a sequence of them, the pattern that the layers
        repeat.
      cross_attention: module to clone for each layer; None = the layers have no memory.
    """

    config: TransformerConfig
    attention: Attention
    cross_attention: nn.Module | None = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array | None = None,
        *,
        return_weights: bool = False,
        **options: Any,
    ) -> tuple[jax.Array, jax.Array | None]:
        """States [B, T, D] and the last layer's weights; arguments as for a layer."""
        c = self.config

        def make_layer(attention: nn.Module, name: str) -> TransformerLayer:
            cross = None if self.cross_attention is None else self.cross_attention.copy(parent=None)
            return TransformerLayer(c, attention, cross, name=name)

        def call(layer: TransformerLayer, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
            def run(layer, x):
                return layer(x, memory, return_weights=return_weights, **options)

            # Inside a scan XLA cannot undo the recomputation, so it need not be kept from it.
            lifted = nn.remat(run, prevent_cse=not c.scan_layers) if c.remat else run
            return lifted(layer, x)

        x, weights = through_layers(self, self.attention, make_layer, call, x)
        return (layer_norm(c, "norm")(x) if c.pre_norm else x), weights


def through_layers(
    stack: Any,
    attention: Attention,
    make_layer: Callable[[nn.Module, str], nn.Module],
    call: Callable[[Any, Any], tuple[Any, Any]],
    x: Any,
) -> tuple[Any, Any]:
    """x after `config.num_layers` layers, and what the last one returned besides.

    With `config.scan_layers` one program serves all repetitions of the pattern; `layer_paths` says
    where its parameters are.

    Args:
      stack: module with a `config` whose children the layers become; call this in its compact
        method.
      attention: module to clone for each layer, or the pattern that the layers repeat.
      make_layer: function of a clone and a name that makes a layer.
      call: function of a layer and x that returns the next x and something besides.
      x: first layer's input, a pytree.
    """
    config: TransformerConfig = stack.config
    pattern = pattern_of(config, attention)
    paths = layer_paths(config, pattern)
    besides = None
    if not config.scan_layers:
        for i, (name,) in enumerate(paths):
            layer = make_layer(pattern[i % len(pattern)].copy(parent=None), name)
            x, besides = call(layer, x)
        return x, besides

    if len(pattern) == 1:
        repeated, run = make_layer(pattern[0].copy(parent=None), paths[0][0]), call
    else:
        repeated = Repetition(pattern, make_layer, call, name=paths[0][0])
        run = Repetition.__call__
    scanned = nn.scan(
        lambda module, x, _: run(module, x),
        variable_axes={True: 0},
        split_rngs={True: True},
        length=config.num_layers // len(pattern),
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    x, besides = scanned(repeated, x, None)
    return x, jax.tree.map(lambda layers: layers[-1], besides)


class Repetition(nn.Module):
    """The layers of a pattern, once: "layer_0", "layer_1", …; what `through_layers` scans.

    Attributes: as the arguments of `through_layers`.
    """

    pattern: Sequence[nn.Module]
    make_layer: Callable[[nn.Module, str], nn.Module]
    call: Callable[[Any, Any], tuple[Any, Any]]

    @nn.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        """x after the layers, and what the last one returned besides."""
        besides = None
        for i, module in enumerate(self.pattern):
            x, besides = self.call(self.make_layer(module.copy(parent=None), f"layer_{i}"), x)
        return x, besides


def pattern_of(config: TransformerConfig, attention: Attention | None) -> tuple[nn.Module, ...]:
    """The attentions that the layers repeat: those given, or one, the config's."""
    given = config.attention() if attention is None else attention
    pattern = tuple(given) if isinstance(given, Sequence) else (given,)
    modules = bool(pattern) and all(isinstance(module, nn.Module) for module in pattern)
    wanted = "a module, or a sequence of modules that the layers repeat"
    require_instance("attention", attention, modules, wanted)
    require(
        len(pattern) <= config.num_layers,
        f"a pattern has at most an attention for each of the {config.num_layers} layers; got "
        f"{len(pattern)}",
    )
    for module in pattern:
        rotary = getattr(module, "rotary", False)
        require(
            (rotary is not False) == (config.positions == "rotary"),
            "rotary positions are set in the config and in the attention alike; got "
            f"positions={config.positions!r} and {type(module).__name__}(rotary={rotary}) "
            "(derive it with config.attention(…))",
        )
        has_bias = getattr(module, "position_bias", None) is not None
        require(
            has_bias or config.positions not in POSITION_BIASES,
            f"positions={config.positions!r} are a bias that the attention makes; got"
            f" {type(module).__name__} without position_bias (derive it with config.attention(…))",
        )
    return pattern


def layer_paths(
    config: TransformerConfig, pattern: Sequence[nn.Module]
) -> tuple[tuple[str, ...], ...]:
    """Where a stack has the variables of each layer, or of each of the pattern if it scans.

    "layer_0", "layer_1", … With `config.scan_layers` every array of a layer, in all collections, is
    stacked along a first axis: layer i is at i // P of "layers", "layer_{i mod P}" for a pattern of
    P attentions, and at i of "layers" for one.
    """
    if not config.scan_layers:
        return tuple((f"layer_{i}",) for i in range(config.num_layers))
    require(
        config.num_layers % len(pattern) == 0,
        f"scan_layers=True needs a pattern that divides num_layers={config.num_layers}; got"
        f" {len(pattern)} attentions (set scan_layers=False)",
    )
    if len(pattern) == 1:
        return (("layers",),)
    return tuple(("layers", f"layer_{i}") for i in range(len(pattern)))
