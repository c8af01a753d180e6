"""Rows of LSH attention: one head of one example, and how all rows are gone through.

On a CPU one row after the other, so that a row's arrays stay in the cache; elsewhere as many
together as fill the device, because what is in between is as large as many times their inputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from attnlab.devices.meshes import vary_like
from attnlab.ops import dropout
from attnlab.ops.layout import slice_heads
from attnlab.ops.lsh.order import Geometry, Order, take

__all__ = [
    "Row",
    "CallSettings",
    "at",
    "factored",
    "heads_inside",
    "keep_weights",
    "map_rows",
    "pad",
    "row_of",
    "row_seeds",
    "rows_together",
    "select_row",
    "unit_keys",
]

# Weights in a tile: on a CPU a tile stays in the cache, and is large enough for several threads;
# elsewhere one tile should fill the device, over all rows together.
_TILE_ON_CPU, _TILE_ELSEWHERE = 2**18, 2**24
_TOKENS_TOGETHER = 2**16  # in rows that an accelerator computes together


@dataclasses.dataclass(frozen=True)
class CallSettings:
    """What is static in a call.

    Attributes:
      geometry: rules of which slots are neighbors.
      key_norm: norm of the keys: "rms", "l2" or None.
      dropout_rate: probability of dropping a weight.
      rows_at_once: number of rows computed together; None = 1 on CPU, elsewhere `rows_together`.
      precision: precision of the matrix products.
    """

    geometry: Geometry
    key_norm: str | None
    dropout_rate: float
    rows_at_once: int | None
    precision: Any

    def einsum(self, equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
        """A product with sums in float32 at least."""
        dtype = jnp.promote_types(y.dtype, jnp.float32)
        return jnp.einsum(equation, x, y, precision=self.precision, preferred_element_type=dtype)


class Row(NamedTuple):
    """One head of one example.

    Attributes:
      q: queries [T, H].
      k: unit keys times the scale of the logits, [S, H].
      q_over_k: factors [L] with q = q_over_k · k, where the keys are the queries and the type is
        wide enough to take q from k; else None.
      v: values [S, D].
      kv: k and v side by side, [S, H + D], so that a tile waits once for both; behind them, in the
        backward pass where the keys are the queries, the cotangent of the context, [S, H + 2D].
      order: arrays of `Order` without their first axis, `pairs` of one example and head.
      seen_by: slots by token, to tell in one round what the others show: [S, R] the slot of a key,
        [T, R] the first slot and the extent of a query; None where a pair may count several times.
      seed: dropout seed of the row, [2] uint32.
    """

    q: jax.Array
    k: jax.Array
    q_over_k: jax.Array | None
    v: jax.Array
    kv: jax.Array
    order: Order
    seen_by: tuple[jax.Array, jax.Array, jax.Array] | None
    seed: jax.Array


def unit_keys(k: jax.Array, scale: ArrayLike, norm: str | None) -> jax.Array:
    """scale · k / |k| in k's dtype, without the division if `norm` is None; zero rows stay zero."""
    x = k.astype(jnp.promote_types(k.dtype, jnp.float32))
    scale = jnp.asarray(scale, x.dtype)
    if norm is None:
        return (x * scale).astype(k.dtype)
    if norm == "rms":
        # […, 1]; √mean = |x|/√H, hence the division: unit keys are of norm 1, not √H.
        mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
        inverse = lax.rsqrt(mean_square + 1e-6) / math.sqrt(k.shape[-1])
    else:
        square = jnp.sum(x * x, axis=-1, keepdims=True)
        # Twice `where`: the gradient of rsqrt(0) is not finite, and 0 · ∞ would be NaN.
        inverse = jnp.where(square > 0, lax.rsqrt(jnp.where(square > 0, square, 1)), 0)
    return (x * (inverse * scale)).astype(k.dtype)


def row_seeds(rate: float, key: jax.Array | None, batch: int, heads: int) -> jax.Array:
    """[B, N, 2] uint32 for `keep_weights`; zeros where nothing is dropped."""
    if rate == 0 or key is None:
        return jnp.zeros((batch, heads, 2), jnp.uint32)
    return dropout.seeds(key, batch, heads, 1)[:, :, 0]


def keep_weights(settings: CallSettings, seed, queries, keys, dtype) -> jax.Array:
    """0 where the weight of (query, key) is dropped, else 1 / (1 − rate).

    The same weights as in `dropout.keep_mask`, whatever the round and the chunks.
    """
    words, rate = dropout.words(seed, queries, keys), settings.dropout_rate
    return jnp.where(dropout.is_kept(words, rate), 1 / (1 - rate), 0).astype(dtype)


def select_row(settings: CallSettings, q, k, v, scale, order: Order, seeds, index) -> Row:
    """Row `index` = example · N + head; k None: the keys are the queries."""
    # Factors are of an example, pairs of an example and a head; all else is of a row.
    factor = None if order.factor is None else at(order.factor, index // q.shape[2])
    pairs = slice_heads(order.pairs, *divmod(index, q.shape[2]))
    row_order = jax.tree.map(lambda x: at(x, index), order._replace(pairs=None, factor=None))
    row_order = row_order._replace(pairs=pairs, factor=factor)
    seen_by = None
    if settings.geometry.union:
        first = jax.vmap(take)(row_order.first, row_order.slot).T
        extent = jax.vmap(take)(row_order.extent, row_order.slot).T
        # [S, R], [T, R], [T, R]: from slots to tokens, so that a tile takes whole rows of them.
        seen_by = row_order.key_slot.T, first, extent
    q_row = row_of(q, index)
    keys = unit_keys(q_row if k is None else row_of(k, index), scale, settings.key_norm)
    q_over_k = None
    if k is None and jnp.finfo(q.dtype).nmant >= jnp.finfo(jnp.float32).nmant:
        # [L] each: with k = c·q is q·q / q·k = 1/c; 0 where the row is 0.
        qq, qk = jnp.sum(q_row * q_row, axis=-1), jnp.sum(q_row * keys, axis=-1)
        q_over_k = jnp.where(qk == 0, 0, qq / jnp.where(qk == 0, 1, qk))
    values = row_of(v, index)
    kv = jnp.concatenate([keys, values], axis=1)
    return Row(q_row, keys, q_over_k, values, kv, row_order, seen_by, at(seeds, index))


def factored(x: jax.Array, factor: jax.Array | None) -> jax.Array:
    """x [*B, T, …] times factor [*B, T], zero where that is zero, whatever x is there."""
    if factor is None:
        return x
    factor = jnp.expand_dims(factor, range(factor.ndim, x.ndim)).astype(x.dtype)
    return jnp.where(factor == 0, 0, x * factor)


def at(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index]."""
    return lax.dynamic_index_in_dim(x, index, 0, keepdims=False)


def pad(x: jax.Array, padding: int, axis: int) -> jax.Array:
    """Zeros behind x along one axis."""
    return jnp.pad(x, [(0, padding if a == axis else 0) for a in range(x.ndim)])


def row_of(x: jax.Array, index: jax.Array) -> jax.Array:
    """[B, L, N, H] to the [L, H] of a row."""
    _, length, heads, width = x.shape
    # One slice, not two: slicing the example first would copy all of its heads.
    start = (index // heads, jnp.int32(0), index % heads, jnp.int32(0))
    return lax.dynamic_slice(x, start, (1, length, 1, width)).reshape(length, width)


def rows_together(num_rows: int, length: int, most: int | None = None) -> int:
    """How many rows an accelerator computes together: a divisor of their number, at most `most`.

    >>> rows_together(8, 2**20), rows_together(64, 8192), rows_together(6, 16384)
    (1, 8, 3)
    >>> rows_together(6, 16384, most=4), rows_together(6, 16384, most=2)
    (3, 2)
    """
    if most is None:
        most = max(1, _TOKENS_TOGETHER // length)
    # A divisor, since `lax.map` would compile the remainder once more.
    return max(n for n in range(1, min(num_rows, most) + 1) if num_rows % n == 0)


def heads_inside(x: jax.Array, batch: int) -> jax.Array:
    """[B·N, L, width] to [B, L, N, width]; [B·N, L] stays."""
    if x.ndim == 2:
        return x
    # [B, N, L, width] to [B, L, N, width]
    return jnp.moveaxis(x.reshape(batch, -1, *x.shape[1:]), 1, 2)


def map_rows(
    row: Callable[[jax.Array, int, bool], Any], settings: CallSettings, order: Order, batch: int
) -> Any:
    """Computes all rows.

    Args:
      row: function of the row's index, the number of chunks to put into a tile, and whether it is
        for a CPU; returns arrays of [L] or [L, width].
      settings: static settings of the call.
      order: sorted order of all rounds.
      batch: number of examples, B.

    Returns:
      The rows' [L] as [B·N, L], their [L, width] as [B, L, N, width].
    """
    num_rows, _, slots = order.token.shape
    heads, chunk = num_rows // batch, settings.geometry.chunk_size
    at_once = settings.rows_at_once
    # Traced once for its shapes and the loop.
    row = jax.jit(row, static_argnums=(1, 2), inline=True)

    def chunks_at_once(weights):
        return max(1, min(slots // chunk, weights // (settings.geometry.span * chunk * chunk)))

    def one_by_one(indices):
        size = chunks_at_once(_TILE_ON_CPU)
        # [L] or [L, width] each
        shapes = jax.eval_shape(lambda i: row(i, size, True), indices[0])

        def write(all_rows, of_row, index):
            if of_row.ndim == 1:
                return lax.dynamic_update_index_in_dim(all_rows, of_row, index, 0)
            start = (index // heads, jnp.int32(0), index % heads, jnp.int32(0))
            return lax.dynamic_update_slice(all_rows, of_row[None, :, None, :], start)

        def next_row(index, all_rows):
            index = jnp.asarray(index, jnp.int32)
            return jax.tree.map(lambda x, y: write(x, y, index), all_rows, row(index, size, True))

        # [B·N, L] or [B, L, N, width]: written where they belong, because stacking them first would
        # copy everything once more.
        empty = jax.tree.map(
            lambda x: jnp.zeros(
                (num_rows, *x.shape) if x.ndim == 1 else (batch, len(x), heads, x.shape[1]), x.dtype
            ),
            shapes,
        )
        return lax.fori_loop(0, num_rows, next_row, vary_like(empty, order))

    def together(indices):
        known_rows = num_rows if isinstance(num_rows, int) else heads  # of a symbolic batch
        size_of_batch = at_once or rows_together(known_rows, slots)
        size = chunks_at_once(_TILE_ELSEWHERE // min(known_rows, size_of_batch))
        # [B·N, L] or [B·N, L, width]
        rows = lax.map(lambda i: row(i, size, False), indices, batch_size=size_of_batch)
        return jax.tree.map(lambda x: heads_inside(x, batch), rows)

    indices = jnp.arange(num_rows, dtype=jnp.int32)
    if at_once is not None:
        return together(indices)
    # Chosen in here rather than around the custom VJP, where residuals of both would be kept.
    return lax.platform_dependent(indices, cpu=one_by_one, default=together)
