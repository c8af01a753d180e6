"""The layers of a Transformer: one stack for encoders, decoders and both, and what goes into it.

Letters: B batch, T tokens, S tokens of the source, D width of the model, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import positions as pos
from attnlab.checks import require
from attnlab.masks import Mask
from attnlab.models.transformer_config import TransformerConfig
from attnlab.modules.cache import cache_index

__all__ = ["FeedForward", "Inputs", "Stack", "TransformerLayer", "Vocabulary"]


class Vocabulary(nn.Module):
    """A matrix E [V, D] that is read by rows, as embeddings, or by columns, before a softmax.

    Attributes:
      size: number of ids, V.
      config: configuration of the model.
    """

    size: int
    config: TransformerConfig

    def setup(self):
        c = self.config
        init = c.embedding_init or nn.initializers.normal(c.width**-0.5)
        self.embedding = self.param("embedding", init, (self.size, c.width), c.param_dtype)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """E[tokens] · √D, [B, T, D]."""
        return self.embedding[tokens].astype(self._dtype) * math.sqrt(self.config.width)

    def logits(self, x: jax.Array) -> jax.Array:
        """x E^T, [B, T, V] in at least float32, of x [B, T, D]."""
        return jnp.einsum(
            "btd,vd->btv",
            x.astype(self._dtype),
            self.embedding.astype(self._dtype),
            preferred_element_type=jnp.promote_types(self._dtype, jnp.float32),
        )

    @property
    def _dtype(self):
        return self.config.dtype or self.config.param_dtype


class Inputs(nn.Module):
    """dropout(embeddings + positions): what the first layer reads.

    Attributes:
      config: configuration of the model.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        positions: jax.Array | None = None,
        *,
        deterministic: bool = True,
        decode: bool = False,
    ) -> jax.Array:
        """The sum [B, T, D], with dropout.

        Args:
          x: embeddings [B, T, D].
          positions: positions of the tokens, [B, T] or [T]; None = 0, 1, 2 …, or while decoding
            those after the last call.
          deterministic: whether dropout is off.
          decode: whether to count the tokens in the cache.
        """
        c = self.config
        count = x.shape[1]
        if positions is None:
            positions = jnp.arange(count)
            if decode:
                index = cache_index(self)
                positions += index.value
                if not self.is_initializing():
                    index.value += count
        if c.positions == "sinusoid":
            added = pos.sinusoids(positions, c.width)
        elif c.positions == "learned":
            require(
                count <= c.max_length,
                f"there are max_length={c.max_length} learned positions; got {count} tokens",
            )
            init = c.position_init or c.embedding_init or nn.initializers.normal(c.width**-0.5)
            table = self.param("positions", init, (c.max_length, c.width), c.param_dtype)
            added = pos.learned(table, positions)
        else:
            added = jnp.zeros((1, c.width))
        if added.ndim == 2:
            added = added[None]
        x += added.astype(x.dtype)
        return nn.Dropout(c.dropout_rate)(x, deterministic=deterministic)


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2, at each position alone (Vaswani et al. 2017, §3.3).

    Attributes:
      config: configuration of the model.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """The network's output [B, T, D] for x [B, T, D]."""
        c = self.config

        def dense(features: int, name: str) -> nn.Dense:
            return nn.Dense(
                features,
                dtype=c.dtype,
                param_dtype=c.param_dtype,
                kernel_init=c.kernel_init,
                name=name,
            )

        hidden = c.activation(dense(c.hidden, "hidden")(x))
        hidden = nn.Dropout(c.hidden_dropout_rate)(hidden, deterministic=deterministic)
        return dense(c.width, "out")(hidden)


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
            if self.config.pre_norm:
                x += drop(sublayer(norm(x)))
            else:
                x = norm(x + drop(sublayer(x)))
        return x, weights


class Stack(nn.Module):
    """`config.num_layers` layers on top of each other, and with pre-norm a LayerNorm on top of all.

    Parameters: "layer_0", "layer_1", …, each with "attention", "attention_norm", "cross_attention",
    "cross_attention_norm", "feed_forward", "feed_forward_norm"; with pre-norm also "norm". With
    `config.scan_layers` every array of a layer, in all collections, is stacked along a first axis
    [N, …] in "layers".

    Attributes: as for `TransformerLayer`. The modules are copied for each layer, their scores too.
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
        return_weights: bool = False,
        **options: Any,
    ) -> tuple[jax.Array, jax.Array | None]:
        """States [B, T, D] and the last layer's weights; arguments as for a layer."""
        c = self.config

        def make_layer(name: str) -> TransformerLayer:
            cross = None if self.cross_attention is None else self.cross_attention.copy(parent=None)
            return TransformerLayer(c, self.attention.copy(parent=None), cross, name=name)

        def run(layer, x, return_weights):
            def call(layer, x):
                return layer(x, memory, return_weights=return_weights, **options)

            # Inside a scan XLA cannot undo the recomputation, so it need not be kept from it.
            lifted = nn.remat(call, prevent_cse=not c.scan_layers) if c.remat else call
            return lifted(layer, x)

        weights = None
        if c.scan_layers:
            layers = nn.scan(
                lambda layer, x, _: run(layer, x, return_weights),
                variable_axes={True: 0},
                split_rngs={True: True},
                length=c.num_layers,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            x, weights = layers(make_layer("layers"), x, None)
            weights = None if weights is None else weights[-1]
        else:
            for i in range(c.num_layers):
                is_last = i == c.num_layers - 1
                x, weights = run(make_layer(f"layer_{i}"), x, return_weights and is_last)
        return (layer_norm(c, "norm")(x) if c.pre_norm else x), weights


def layer_norm(config: TransformerConfig, name: str) -> nn.LayerNorm:
    """The LayerNorm that `config` describes; call it inside of a compact module."""
    return nn.LayerNorm(
        epsilon=config.norm_epsilon,
        dtype=config.dtype,
        param_dtype=config.param_dtype,
        name=name,
    )
