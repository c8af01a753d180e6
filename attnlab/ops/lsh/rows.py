"""Rows of LSH attention: one head of one example, how all are sorted and how they are gone through.

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

from attnlab.core.axes import pad_to_multiple
from attnlab.devices.meshes import vary_like
from attnlab.masks import Mask
from attnlab.ops import dropout
from attnlab.ops.layout import slice_heads
from attnlab.ops.lsh.order import Geometry, Order, sort_rounds, take

# Weights in a tile: on a CPU a tile stays in the cache, and is large enough for several threads;
# elsewhere one tile should fill the device, over all rows together.
_TILE_ON_CPU, _TILE_ELSEWHERE = 2**18, 2**24
# XLA:CPU runs many small products on one core each, and independent ones of a loop body side by
# side. Fewer or more tiles in a body, of this size or another, were slower.
_TILES_SIDE_BY_SIDE = 4
_TOKENS_TOGETHER = 2**16  # in rows that an accelerator computes together


@dataclasses.dataclass(frozen=True)
class CallSettings:
    """What is static in a call.

    Attributes:
      geometry: rules of which slots are neighbors.
      key_norm: norm of the keys: "rms", "l2" or None.
      dropout_rate: probability of dropping a weight.
      rows_at_once: number of rows computed together; None = what `map_rows` finds.
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


class Operands(NamedTuple):
    """The arrays of a call with shared queries and keys, or a device's part of them.

    Attributes:
      buckets: buckets [B, R, L, N].
      qk: shared queries and keys [B, L, N, H].
      v: values [B, L, N, D].
      valid: booleans [B, L], False for padding; None = there is none.
      segments: segment ids [B, L], or None.
      pairs: mask in layout, [B|1, N|1, …], or None.
      seeds: dropout seeds [B, N, 2] uint32.
      factor: factors of the contexts, [B, L]; None = 1.
    """

    buckets: jax.Array
    qk: jax.Array
    v: jax.Array
    valid: jax.Array | None
    segments: jax.Array | None
    pairs: Mask | None
    seeds: jax.Array
    factor: jax.Array | None

    def in_chunks(self, chunk_size: int) -> Operands:
        """The same in whole chunks, what fills the last one being padding; all padding is zero."""
        qk, v, valid = self.qk, self.v, self.valid
        batch, length = qk.shape[:2]
        if valid is not None:
            # Whatever stands in the padding, NaN included, ends here.
            qk = jnp.where(valid[:, :, None, None], qk, 0)
            v = jnp.where(valid[:, :, None, None], v, 0)
        if length % chunk_size == 0:
            return self._replace(qk=qk, v=v)
        valid = jnp.ones((batch, length), bool) if valid is None else valid

        def pad(x, axis=1):
            return None if x is None else pad_to_multiple(x, axis, chunk_size)

        buckets, segments, factor = pad(self.buckets, 2), pad(self.segments), pad(self.factor)
        return Operands(
            buckets, pad(qk), pad(v), pad(valid), segments, self.pairs, self.seeds, factor
        )


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


def multiply_or_zero(x: jax.Array, factor: jax.Array | None) -> jax.Array:
    """x [*B, T, …] times factor [*B, T], zero where that is zero, whatever x is there."""
    if factor is None:
        return x
    factor = jnp.expand_dims(factor, range(factor.ndim, x.ndim)).astype(x.dtype)
    return jnp.where(factor == 0, 0, x * factor)


def at(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index]."""
    return lax.dynamic_index_in_dim(x, index, 0, keepdims=False)


def row_of(x: jax.Array, index: jax.Array) -> jax.Array:
    """[B, L, N, H] to the [L, H] of a row."""
    _, length, heads, width = x.shape
    # One slice, not two: slicing the example first would copy all of its heads.
    start = (index // heads, jnp.int32(0), index % heads, jnp.int32(0))
    return lax.dynamic_slice(x, start, (1, length, 1, width)).reshape(length, width)


def sort_operands(geometry: Geometry, given: Operands) -> tuple[Order, Operands]:
    """The order of the rounds, and the arrays in whole chunks."""
    given = given.in_chunks(geometry.chunk_size)
    with jax.named_scope("lsh_sort"):
        # [B, R, L, N] to [B, N, R, L]
        buckets = jnp.moveaxis(given.buckets, 3, 1)
        order = sort_rounds(buckets, given.valid, given.segments, geometry)
    return order._replace(pairs=given.pairs, factor=given.factor), given


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor that is at most `most`, or 1: `lax.map` would compile a remainder anew.

    >>> largest_divisor(6, 4), largest_divisor(6, 0)
    (3, 1)
    """
    return max(n for n in range(1, max(1, min(number, most)) + 1) if number % n == 0)


def heads_inside(x: jax.Array, batch: int) -> jax.Array:
    """[B·N, L, width] to [B, L, N, width]; [B·N, L] stays."""
    if x.ndim == 2:
        return x
    # [B, N, L, width] to [B, L, N, width]
    return jnp.moveaxis(x.reshape(batch, -1, *x.shape[1:]), 1, 2)


def count_known_rows(batch: int, heads: int) -> int:
    """The number of rows, B·N; of a symbolic batch that of one example."""
    return batch * heads if isinstance(batch, int) else heads


def map_together(row: Callable[[jax.Array], Any], batch: int, heads: int, at_once: int) -> Any:
    """Computes all rows, some at once.

    Args:
      row: function of the row's index; returns arrays of [L] or [L, width].
      batch: number of examples, B.
      heads: number of heads, N.
      at_once: number of rows that are computed together.

    Returns:
      The rows' [L] as [B·N, L], their [L, width] as [B, L, N, width].
    """
    indices = jnp.arange(batch * heads, dtype=jnp.int32)
    rows = lax.map(row, indices, batch_size=min(at_once, count_known_rows(batch, heads)))
    return jax.tree.map(lambda x: heads_inside(x, batch), rows)


class Tiling(NamedTuple):
    """How the chunks of a round are divided, one by one or some tiles at a time.

    Attributes:
      tiles: number of tiles, each of ⌈chunks / tiles⌉ chunks.
      side_by_side: number of tiles that the body of the loop computes, a divisor of `tiles`.
      on_cpu: whether it is for a CPU.
    """

    tiles: int
    side_by_side: int
    on_cpu: bool


def map_rows(
    row: Callable[[jax.Array, Tiling], Any], settings: CallSettings, order: Order, batch: int
) -> Any:
    """Computes all rows.

    Args:
      row: function of the row's index and of how to divide it; returns arrays of [L] or
        [L, width].
      settings: static settings of the call.
      order: sorted order of all rounds.
      batch: number of examples, B.

    Returns:
      What `map_together` returns.
    """
    num_rows, _, slots = order.token.shape
    heads, chunk = num_rows // batch, settings.geometry.chunk_size
    at_once = settings.rows_at_once
    # Traced once for its shapes and the loop.
    row = jax.jit(row, static_argnums=1, inline=True)

    def count_tiles(weights):
        chunks_at_once = max(1, weights // (settings.geometry.span * chunk * chunk))
        return -(-slots // (chunk * chunks_at_once))

    def one_by_one():
        tiles = count_tiles(_TILE_ON_CPU)
        side_by_side = _TILES_SIDE_BY_SIDE if tiles > 1 else 1
        turns = -(-tiles // side_by_side)
        tiling = Tiling(turns * side_by_side, side_by_side, on_cpu=True)
        # [L] or [L, width] each
        shapes = jax.eval_shape(lambda i: row(i, tiling), jnp.int32(0))

        def write(all_rows, of_row, index):
            if of_row.ndim == 1:
                return lax.dynamic_update_index_in_dim(all_rows, of_row, index, 0)
            start = (index // heads, jnp.int32(0), index % heads, jnp.int32(0))
            return lax.dynamic_update_slice(all_rows, of_row[None, :, None, :], start)

        def next_row(index, all_rows):
            index = jnp.asarray(index, jnp.int32)
            return jax.tree.map(lambda x, y: write(x, y, index), all_rows, row(index, tiling))

        # [B·N, L] or [B, L, N, width]: written where they belong, because stacking them first would
        # copy everything once more.
        empty = jax.tree.map(
            lambda x: jnp.zeros(
                (num_rows, *x.shape) if x.ndim == 1 else (batch, len(x), heads, x.shape[1]), x.dtype
            ),
            shapes,
        )
        return lax.fori_loop(0, num_rows, next_row, vary_like(empty, order))

    def together():
        known_rows = count_known_rows(batch, heads)
        size_of_batch = at_once or largest_divisor(known_rows, _TOKENS_TOGETHER // slots)
        tiles = count_tiles(_TILE_ELSEWHERE // min(known_rows, size_of_batch))
        tiling = Tiling(tiles, 1, on_cpu=False)
        return map_together(lambda i: row(i, tiling), batch, heads, size_of_batch)

    if at_once is not None:
        return together()
    # Chosen in here rather than around the custom VJP, where residuals of both would be kept.
    return lax.platform_dependent(cpu=one_by_one, default=together)
