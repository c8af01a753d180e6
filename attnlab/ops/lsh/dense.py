"""LSH attention as one masked softmax: the same function, for inputs too short to be sorted for.

A pair may be seen in a round if the key's slot lies in the query's range of slots, so how often it
is seen is a sum of one comparison a round,

    n_ij = Σ_r [first_i^r ≤ slot_j^r < first_i^r + extent_i^r],

and the result of sorting, chunking, attending round by round and merging is one softmax,

    P_ij ∝ m_ij exp(c·⟨q_i, k_j⟩),    m = min(n, 1) for the union of rounds, n for the multiset,

with P_ii = 1 where no m_ij > 0 in self-attention. It costs R·T·S comparisons and T·S·(H + D)
products, which is less than the rounds' R·T·2C·(H + D) while S < 2·R·C.

Letters: B examples, N heads, M = B·N rows, R rounds, T queries, S keys.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from attnlab.ops.layout import slice_heads
from attnlab.ops.lsh.order import Geometry, Order, in_range, take
from attnlab.ops.lsh.rows import (
    CallSettings,
    at,
    keep_weights,
    map_together,
    multiply_or_zero,
    row_of,
    unit_keys,
)

# Weights computed together: as many rows as this leaves room for, so that memory does not grow with
# the batch.
_WEIGHTS_AT_ONCE = 2**20


def visible_counts(slot: jax.Array, first: jax.Array, extent: jax.Array) -> jax.Array:
    """How many times each query is shown each key.

    Args:
      slot: slot of each key in each round, [R, S].
      first: first slot that each query may see, [R, T].
      extent: number of slots from there on, [R, T].

    Returns:
      int32 [T, S].
    """
    rounds, num_slots = slot.shape
    counts = jnp.zeros((first.shape[1], num_slots), jnp.int32)
    for r in range(rounds):
        shown = in_range(slot[r][None, :], first[r][:, None], extent[r][:, None])
        counts += shown.astype(counts.dtype)
    return counts


def row_times(
    geometry: Geometry,
    order: Order,
    num_heads: int,
    index: jax.Array,
    start: jax.Array | int = 0,
    size: int | None = None,
) -> jax.Array:
    """How often each pair of row `index` = example · N + head counts in its softmax.

    Args:
      geometry: rules of which slots are neighbors.
      order: sorted order of all rounds.
      num_heads: number of heads, N.
      index: index of the row.
      start: index of the first query.
      size: number of queries from there on; None = all.

    Returns:
      int32 [size, S]: 0 where the query does not see the key, else 1 or, for a multiset, in how
      many rounds it does.
    """
    slot = at(order.slot, index)
    size = slot.shape[1] if size is None else size

    def queries(x, axis=0):
        return lax.dynamic_slice_in_dim(x, start, size, axis)

    # [R, size]: slots of the queries, by which ranges go from slots to tokens
    own = queries(slot, 1)
    first = jax.vmap(take)(at(order.first, index), own)
    extent = jax.vmap(take)(at(order.extent, index), own)
    times = visible_counts(at(order.key_slot, index), first, extent)
    if geometry.union:
        times = jnp.minimum(times, 1)
    query, key = _positions(times.shape, start)
    if order.pairs is not None:
        mask = slice_heads(order.pairs, *divmod(index, num_heads))
        times = jnp.where(mask.visible(query, key), times, 0)
    if order.keys is None:
        times = jnp.where(query == key, 0, times)
    return times


def softmax_times(logits: jax.Array, times: jax.Array) -> jax.Array:
    """P_ij = m_ij exp(s_ij) / Σ_j m_ij exp(s_ij), a row of zeros where all m_ij are 0.

    Args:
      logits: logits s, [T, S]; any value where m is 0.
      times: multiplicities m, [T, S].

    Returns:
      [T, S] in the logits' dtype.
    """
    visible = times > 0
    logits = jnp.where(visible, logits, -jnp.inf)
    largest = jnp.max(logits, axis=1, keepdims=True, initial=jnp.finfo(logits.dtype).min)
    # A key seen m times weighs m e^s: as if it stood there m times.
    weights = times.astype(logits.dtype) * jnp.exp(logits - lax.stop_gradient(largest))
    total = jnp.sum(weights, axis=1, keepdims=True)
    # Also cuts the gradient: a masked key's value may be so large that its own is infinite.
    return jnp.where(visible, weights / jnp.where(total > 0, total, 1), 0)


@jax.named_scope("lsh_attend")
@functools.partial(jax.jit, static_argnums=0, inline=True)  # compiled once outside any other, too
def attend_dense(
    settings: CallSettings,
    q: jax.Array,
    k: jax.Array | None,
    v: jax.Array,
    scale: jax.Array,
    order: Order,
    seeds: jax.Array,
) -> jax.Array:
    """What `rounds.attend_rounds` computes, with the same arguments.

    Returns:
      [B, T, N, D] in v's dtype. Time O(B·N·T·S·(R + H + D)); memory that of the arguments, beside
      `settings.rows_at_once` (None = as many as 2²⁰ allow) times T·S weights: the backward pass
      computes them again.
    """
    batch, num_queries, heads, _ = q.shape

    @jax.checkpoint
    def row(index):
        # [T, S]
        weights = _row_weights(settings, q, k, scale, order, seeds, index)
        return settings.einsum("ts,sd->td", weights.astype(v.dtype), row_of(v, index))

    at_once = settings.rows_at_once or max(1, _WEIGHTS_AT_ONCE // (num_queries * v.shape[1]))
    out = map_together(row, batch, heads, at_once)
    return multiply_or_zero(out.astype(v.dtype), order.factor)


def _row_weights(settings: CallSettings, q, k, scale, order: Order, seeds, index) -> jax.Array:
    """[T, S] of row `index`."""
    q_row = row_of(q, index)
    keys = unit_keys(q_row if k is None else row_of(k, index), scale, settings.key_norm)
    times = row_times(settings.geometry, order, q.shape[2], index)
    weights = softmax_times(settings.einsum("th,sh->ts", q_row, keys), times)
    query, key = _positions(times.shape, 0)
    if k is None:
        own = ~jnp.any(times > 0, axis=1, keepdims=True) & (query == key)
        if order.pairs is not None:
            own &= slice_heads(order.pairs, *divmod(index, q.shape[2])).visible(query, key)
        weights = jnp.where(own, 1, weights)
    if settings.dropout_rate > 0:
        weights *= keep_weights(settings, at(seeds, index), query, key, weights.dtype)
    return weights


def _positions(shape: tuple[int, ...], start) -> tuple[jax.Array, jax.Array]:
    """[T, 1] queries from `start` on and [1, S] keys."""
    query = start + lax.broadcasted_iota(jnp.int32, (shape[0], 1), 0)
    return query, lax.broadcasted_iota(jnp.int32, (1, shape[1]), 1)
