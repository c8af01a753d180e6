"""The parts of a Transformer beside attention.

Letters: B batch, T tokens, D width of the model, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import positions as pos
from attnlab.core.checks import as_array, require
from attnlab.core.shapes import fit
from attnlab.core.tokens import rows_of
from attnlab.devices.split import gathered
from attnlab.models.chunks import in_chunks
from attnlab.models.output import DeferredLogits, product, wide_product
from attnlab.models.transformer.config import TransformerConfig
from attnlab.modules.cache import tokens_before


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
        """E[tokens] · √D, [B, T, D]; without √D where the config says so. NaN for an id of none."""
        scale = math.sqrt(self.config.width) if self.config.scale_embeddings else 1.0
        return rows_of(self.embedding, tokens).astype(self._dtype) * scale

    def logits(self, x: jax.Array) -> jax.Array:
        """x E^T, [B, T, V] in at least float32, of x [B, T, D]."""
        return self.deferred(x).logits()

    def deferred(self, x: jax.Array, bias: jax.Array | None = None) -> DeferredLogits:
        """x E^T + bias, of x [B, T, D], for a loss that computes it in blocks of tokens."""
        return DeferredLogits(x.astype(self._dtype), self.embedding.astype(self._dtype), bias)

    @property
    def _dtype(self):
        return self.config.dtype or self.config.param_dtype


class Inputs(nn.Module):
    """dropout(embeddings + positions + types): what the first layer reads.

    "concatenated" positions stand beside the embeddings, and a matrix makes the width of both.

    With `config.norm_inputs` a LayerNorm is before the dropout.

    Attributes:
      config: configuration of the model.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        positions: jax.Array | None = None,
        types: jax.Array | None = None,
        *,
        deterministic: bool = True,
        decode: bool = False,
    ) -> jax.Array:
        """The sum [B, T, D], with dropout.

        Args:
          x: embeddings [B, T, D].
          positions: positions of the tokens, [B, T] or [T]; None = 0, 1, 2 …, or while decoding
            those after the last call.
          types: types of the tokens, [B, T] or [T]; None = all 0.
          deterministic: whether dropout is off.
          decode: whether to count the tokens in the cache.

        Raises:
          ValueError: positions or types are of other shapes, or too many for the config.
        """
        c = self.config
        count, given = x.shape[1], positions is not None
        for name, of_tokens in (("positions", positions), ("types", types)):
            if of_tokens is not None:
                fit("x: *B T D", x, f"{name}: *B|1 T", as_array(name, of_tokens))
        before = tokens_before(self, count) if decode else 0
        if positions is None:
            positions = before + jnp.arange(count)
        if c.positions in ("sinusoid", "concatenated"):
            added = pos.sinusoids(positions, c.width)
        elif c.positions in ("learned", "axial"):
            require(
                given or count <= c.max_length,
                f"there are positions for max_length={c.max_length} tokens; got {count} (raise it)",
            )
            added = self._learned(positions)
        else:
            added = jnp.zeros((1, c.width))
        if added.ndim == 2:
            added = added[None]
        added = added.astype(x.dtype)
        x = self._beside(x, added) if c.positions == "concatenated" else x + added
        require(
            types is None or c.num_types > 0,
            "types need a config with num_types; got types and num_types=0",
        )
        if c.num_types:
            init = c.embedding_init or nn.initializers.normal(c.width**-0.5)
            table = self.param("types", init, (c.num_types, c.width), c.param_dtype)
            types = jnp.zeros((1, 1), jnp.int32) if types is None else types
            x += rows_of(table, types).astype(x.dtype)
        if c.norm_inputs:
            x = layer_norm(c, "norm")(x)
        return nn.Dropout(c.dropout_rate)(x, deterministic=deterministic)

    def _beside(self, x: jax.Array, at: jax.Array) -> jax.Array:
        """[x; PE] W: a sum of both is what W = [I; I] makes of them."""
        c = self.config
        project = dense(c, c.width, "positions", use_bias=False)
        return project(jnp.concatenate([x, jnp.broadcast_to(at, x.shape)], -1))

    def _learned(self, positions: jax.Array) -> jax.Array:
        c = self.config
        init = c.position_init or c.embedding_init or nn.initializers.normal(c.width**-0.5)
        if c.positions == "learned":
            table = self.param("positions", init, (c.max_length, c.width), c.param_dtype)
            return pos.learned(table, positions)
        tables = [
            self.param(f"positions_{axis}", init, shape, c.param_dtype)
            for axis, shape in enumerate(zip(c.axial_shape, c.axial_widths, strict=True))
        ]
        return pos.axial(tables, positions)


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2, at each position alone (Vaswani et al. 2017, §3.3).

    With `config.feed_forward_chunk` the hidden layer exists for that many positions at a time, in
    the backward pass too, where it is computed again (Kitaev et al. 2020, §3).

    Attributes:
      config: configuration of the model.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """The network's output [B, T, D] for x [B, T, D]."""
        c = self.config
        size = c.feed_forward_chunk
        if size is not None and x.shape[-2] > size and not self.is_initializing():
            return self._in_chunks(size, x, deterministic)
        hidden = c.activation(dense(c, c.hidden, "hidden")(x))
        hidden = nn.Dropout(c.hidden_dropout_rate)(hidden, deterministic=deterministic)
        return dense(c, c.width, "out")(hidden)

    def _in_chunks(self, size: int, x: jax.Array, deterministic: bool) -> jax.Array:
        network = self.copy(parent=None)  # it does not cut a single chunk

        def of_chunk(params, x, keys, index):
            keys = {stream: jax.random.fold_in(key, index) for stream, key in keys.items()}
            return network.apply({"params": params}, x, deterministic=deterministic, rngs=keys)

        # Inside a scan XLA cannot undo the recomputation, so it need not be kept from it.
        recomputed = jax.checkpoint(of_chunk, prevent_cse=False)
        forward, _ = in_chunks(recomputed, size, gathered_network)
        assert self.scope is not None
        keys = {stream: self.make_rng(stream) for stream in self.scope.rngs}
        return forward(nn.meta.unbox(self.variables["params"]), x, keys)


def gathered_network(params: Any) -> Any:
    """A feed-forward network's parameters, `split.gathered` before a loop over chunks."""
    hidden = {name: gathered(x, hidden=-1) for name, x in params["hidden"].items()}
    out = {
        name: gathered(x, hidden=0 if name == "kernel" else None)
        for name, x in params["out"].items()
    }
    return {"hidden": hidden, "out": out}


def dense(
    config: TransformerConfig,
    features: int,
    name: str | None = None,
    *,
    use_bias: bool = True,
    makes_logits: bool = False,
) -> nn.Dense:
    """The projection to so many features that `config` describes; a compact module gives a name.

    What makes logits sums them in at least float32, and they stay that.
    """
    return nn.Dense(
        features,
        use_bias=use_bias,
        dtype=config.dtype,
        param_dtype=config.param_dtype,
        kernel_init=config.kernel_init,
        dot_general=wide_product if makes_logits else product,
        name=name,
    )


def layer_norm(config: TransformerConfig, name: str | None = None) -> nn.LayerNorm:
    """The LayerNorm that `config` describes; a compact module gives it a name."""
    return nn.LayerNorm(
        epsilon=config.norm_epsilon,
        dtype=config.dtype,
        param_dtype=config.param_dtype,
        name=name,
    )


def require_positions(
    config: TransformerConfig, segments: jax.Array | None, positions: jax.Array | None
) -> None:
    """Packed rows must say where their tokens stand, if that is added to the embeddings, alone."""
    added = config.positions in ("sinusoid", "learned", "axial", "concatenated")
    require(
        segments is None or positions is not None or not added,
        "positions restart with each packed sequence; got segments alone (give positions too)",
    )
    require(
        positions is None or added or segments is not None,
        f"positions are added to embeddings, which positions={config.positions!r} does not; got"
        " positions (leave them out)",
    )
