"""Attention in hash-sorted order, rounds merged as they come, with a backward pass of its own.

For round r, tile by tile of chunks: gather the keys and values of the chunks that the tile visits,
side by side and each once (queries are among them, unless they are other tokens), attend, put the
result back into position order, and merge it with the rounds before (running maximum, sum and
output). Nothing R times or L·L large is ever alive.

The backward pass recomputes the weights of a round from the log-sum-exp of all rounds together,
P_ij = exp(s_ij − lse_i), as FlashAttention does over key blocks; what a permutation gathered, its
inverse gathers back, so no gradient is scattered.

Every sum over keys is one matrix product over all visited chunks, none is split at a chunk border:
the order of summation is that of the slots wherever the borders fall. This is what keeps the past
bit for bit the same when the future changes: on CPUs with AVX-512, and up to 256 keys a query
(causal chunks of 128). With more keys, or with AVX2 alone, some products add up in blocks, which
moves the past by a rounding. Hence also tiles with the queries last: with the keys last XLA:CPU
takes a faster product that at some widths adds keys up in pairs, wherever they begin.

The named scopes lsh_hash, lsh_sort, lsh_gather, lsh_attend and lsh_merge are what a profile shows.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from attnlab.devices.meshes import vary_like
from attnlab.ops.kernels.pallas.tiles import MASKED
from attnlab.ops.lsh.order import Geometry, Order, take
from attnlab.ops.lsh.rows import (
    CallSettings,
    Row,
    Tiling,
    at,
    keep_weights,
    map_rows,
    multiply_or_zero,
    row_of,
    select_row,
    unit_keys,
)
from attnlab.ops.lsh.tiles import home_chunks, make_tile


# jit: so that a call outside any other compiles once and not each time.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def attend_rounds(settings: CallSettings, q, k, v, scale, order: Order, seeds) -> jax.Array:
    """Σ_j softmax_j(scale·⟨q_i, k_j / |k_j|⟩) v_j over the keys that the rounds show.

    Where they show none: v_i if the keys are the queries, else zero.

    Args:
      settings: static settings of the call.
      q: queries [B, T, N, H].
      k: keys [B, S, N, H], S a multiple of the chunk size; None: the keys are the queries.
      v: values [B, S, N, D].
      scale: factor of the logits, a scalar that gets no gradient.
      order: sorted order of all rounds.
      seeds: dropout seeds of the rows, [B·N, 2] uint32, used if there is dropout.

    Returns:
      [B, T, N, D] in v's dtype. Time O(R·slots·E·C·(H + D)), slots as in `Order`; memory
      O((T + S)·(R + H + D)) beside one tile.
    """
    rounds = order.token.shape[1]
    return attend_some_rounds(settings, rounds, q, k, v, scale, order, seeds, jnp.int32(0))[0]


def attend_some_rounds(
    settings: CallSettings, count: int, q, k, v, scale, order: Order, seeds, first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What some of the rounds show, to be merged with the others: `attend_rounds` for all of them.

    `count` rounds, an int, are gone through from the round `first` on, an int32; all else is as for
    `attend_rounds`. The order is that of all rounds, so that a pair which an earlier one shows
    counts once.

    Returns:
      The context [B, T, N, D], and the log-sum-exp of its logits [B·N, T]; that is MASKED / 2 where
      nothing is visible. Both have gradients.
    """
    return _attend(settings, count, *vary_like((q, k, v, scale, order, seeds, first)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(settings, count, q, k, v, scale, order, seeds, first):
    def row(index, tiling):
        selected = select_row(settings, q, k, v, scale, order, seeds, index)
        out, lse = _attend_row(settings, selected, first + _indices(count), tiling)
        # A row at a time: of all rows it would be a copy of the context, and of the cotangent.
        return multiply_or_zero(out, selected.order.factor), lse

    return map_rows(row, settings, order, q.shape[0])


def _forward_rule(settings, count, *operands):
    outputs = _attend(settings, count, *operands)
    return outputs, (operands, outputs)


def _backward_rule(settings, count, residuals, g):
    (q, k, v, scale, order, seeds, first), (context, lse) = residuals
    g, g_lse = g

    def row(index, tiling):
        selected = select_row(settings, q, k, v, scale, order, seeds, index)
        # [L, D] each, δ [L]. The gradient of lse itself is taken off δ, since ∂lse/∂s = P.
        g_row = multiply_or_zero(row_of(g, index), selected.order.factor)
        context_row = row_of(context, index)
        products = g_row.astype(lse.dtype) * context_row.astype(lse.dtype)
        delta = jnp.sum(products, axis=-1) - at(g_lse, index)
        dq, dk, dv = _attend_row_vjp(
            settings,
            selected,
            first + _indices(count),
            g_row,
            at(lse, index),
            delta,
            tiling,
        )
        # [S, H]: through the normalization of the keys, of which dk is the gradient after it.
        raw_keys = selected.q if k is None else row_of(k, index)
        (dk,) = jax.vjp(
            lambda x: unit_keys(x, scale, settings.key_norm), raw_keys.astype(dk.dtype)
        )[1](dk)
        # Shared queries and keys are one array, so it gets both gradients.
        dq, dk = (dq + dk, None) if k is None else (dq, dk.astype(k.dtype))
        return dq.astype(q.dtype), dk, dv.astype(v.dtype)

    return *map_rows(row, settings, order, q.shape[0]), None, None, None, None


_attend.defvjp(_forward_rule, _backward_rule)


def _indices(count: int) -> jax.Array:
    return jnp.arange(count, dtype=jnp.int32)


def _attend_row(settings: CallSettings, row: Row, indices: jax.Array, tiling: Tiling):
    """One row, rounds `indices`: context [L, D] and log-sum-exp [L], MASKED / 2 where alone."""
    length, width = row.q.shape[0], row.v.shape[1]
    slots, chunk = row.order.token.shape[1], settings.geometry.chunk_size
    chunks_at_once = _chunks_at_once(slots // chunk, tiling)
    dtype = jnp.promote_types(row.q.dtype, jnp.float32)

    @jax.named_scope("lsh_merge")
    def one_round(carry, r):
        # merged: out [T, D], total [T], largest [T] of the rounds before, in the order of
        # positions; buffers: the same of this round by slot, [slots, D], [slots], [slots].
        merged, buffers = carry

        @jax.named_scope("lsh_attend")
        def one_tile(i, buffers):
            c0 = _first_chunk(i, chunks_at_once, slots // chunk)
            tile = make_tile(settings, row, r, c0, chunks_at_once)
            # logits [g, E·C, C], keys before queries: sums over keys go along axis 1, to [g, C].
            # Not below MASKED / 2: a query that sees nothing then has weights e^{MASKED / 2} = 0.
            largest = jnp.maximum(jnp.max(tile.logits, axis=1), MASKED / 2)
            weights = jnp.exp(tile.logits - largest[:, None])
            # [g, C]; a product rather than a sum, which may split the keys as it likes.
            total = settings.einsum("ckq,ck->cq", weights, jnp.ones(tile.k.shape[:2], dtype))
            if tile.keep is not None:
                weights *= tile.keep
            # [g, C, D], not yet divided by the total: rounds are merged first.
            out = settings.einsum("ckq,ckd->cqd", weights.astype(row.v.dtype), tile.v)
            return _write(buffers, (out, total, largest), c0 * chunk)

        buffers = lax.fori_loop(0, tiling.tiles, one_tile, buffers, unroll=tiling.side_by_side)
        # Back into the order of positions: [slots, …] to [T, …], each query from its own slot.
        slot = row.order.slot[r]
        out, total, largest = buffers
        out = take(out, slot)
        total = take(total, slot)
        largest = take(largest, slot)
        out_before, total_before, largest_before = merged
        new_largest = jnp.maximum(largest_before, largest)
        # Both factors are ≤ 1, and one of them is 1.
        before, now = jnp.exp(largest_before - new_largest), jnp.exp(largest - new_largest)
        merged = (
            out_before * before[:, None] + out * now[:, None],
            total_before * before + total * now,
            new_largest,
        )
        return (merged, buffers), None

    def nothing(size):
        largest = jnp.full((size,), MASKED / 2, dtype)
        return jnp.zeros((size, width), dtype), jnp.zeros((size,), dtype), largest

    start = nothing(length), nothing(slots)
    ((out, total, largest), _), _ = lax.scan(one_round, vary_like(start, row.q), indices)
    alone = total == 0
    # alone [T]: no round shows the query a key.
    context = out / jnp.where(alone, 1, total)[:, None]
    if row.order.keys is None:
        own = row.v.astype(dtype) * _own_weight(settings, row, dtype)
        context = jnp.where(alone[:, None], own, context)
    lse = jnp.where(alone, MASKED / 2, largest + jnp.log(jnp.where(alone, 1, total)))
    return context.astype(row.v.dtype), lse


def _attend_row_vjp(settings: CallSettings, row: Row, indices, g, lse, delta, tiling: Tiling):
    """One row: the gradients of its q, k and v, [T, H], [S, H] and [S, D]."""
    geometry, order = settings.geometry, row.order
    (num_queries, width), (num_keys, value_width) = row.q.shape, row.v.shape
    slots, chunk = order.token.shape[1], geometry.chunk_size
    chunks_at_once = _chunks_at_once(slots // chunk, tiling)
    # Gradients of k and v side by side: 64 + 64 fill the 128 lanes of a TPU, to which each alone is
    # padded; a CPU would only copy once more.
    together = not tiling.on_cpu
    alone = lse <= MASKED / 2
    # e^{s − lse} with an lse of 1e30 is 0, whatever the logit.
    lse = jnp.where(alone, -MASKED, lse)  # the weights are then zero
    if order.keys is None:
        row = row._replace(kv=jnp.concatenate([row.k, row.v, g], axis=1))

    @jax.named_scope("lsh_merge")
    def one_round(carry, r):
        # By token, all rounds: d_queries [T, H], d_keys [S, H] and [S, D], or [S, H + D] together.
        # By slot, this round: by_query [slots, H], by_key [S + (E − 1)·C, …], of which the first
        # look_back chunks lie before slot 0 and the last look_ahead behind the end.
        (d_queries, d_keys), (by_query, by_key) = carry

        @jax.named_scope("lsh_attend")
        def one_tile(i, buffers):
            c0 = _first_chunk(i, chunks_at_once, slots // chunk)
            tile = make_tile(settings, row, r, c0, chunks_at_once)
            # [g, C, D]
            g_own = take(g, tile.own) if tile.g is None else tile.g
            # P [g, E·C, C], of the softmax over all rounds together, not over this one.
            weights = jnp.exp(tile.logits - take(lse, tile.own)[:, None])
            kept = weights
            # dP [g, E·C, C]; δ [g, C] is that of all rounds as well, and so is ds below.
            d_weights = settings.einsum("ckd,cqd->ckq", tile.v, g_own)
            if tile.keep is not None:
                kept, d_weights = weights * tile.keep, d_weights * tile.keep
            d_logits = weights * (d_weights - take(delta, tile.own)[:, None])
            # A masked key's value may be so large that its d_weights is infinite.
            d_logits = jnp.where(weights > 0, d_logits, 0).astype(row.q.dtype)
            # dq [g, C, H], dk [g, E·C, H], dv [g, E·C, D]
            dq = settings.einsum("ckq,ckh->cqh", d_logits, tile.k)
            dk = settings.einsum("ckq,cqh->ckh", d_logits, tile.q)
            dv = settings.einsum("ckq,cqd->ckd", kept.astype(row.v.dtype), g_own)
            by_query, by_key = buffers
            by_query = _write(by_query, dq, c0 * chunk)
            parts = (jnp.concatenate([dk, dv], axis=-1),) if together else (dk, dv)
            # The last tiles were moved back: what an earlier tile has added is not added twice.
            done = c0 + jnp.arange(chunks_at_once) < i * chunks_at_once
            new = tuple(jnp.where(done[:, None, None], 0, x) for x in parts)
            if order.keys is not None:
                home = home_chunks(order, r, c0, chunks_at_once)
                return by_query, _add_to_chunks(by_key, new, home, geometry)
            return by_query, _add_in_order(by_key, new, i, c0, geometry)

        # In order, the first visit of a chunk writes; anywhere, all visits add, so they begin at 0.
        if order.keys is not None:  # added to wherever they are, not in order
            by_key = jax.tree.map(jnp.zeros_like, by_key)
        buffers = by_query, by_key
        by_query, by_key = lax.fori_loop(
            0, tiling.tiles, one_tile, buffers, unroll=tiling.side_by_side
        )
        # A gather by the inverse permutation, where autodiff would scatter: [slots, H] to [T, H].
        d_queries += take(by_query, order.slot[r])
        # [S]: row of by_key at which each key stands.
        key_slot = order.key_slot[r] + geometry.look_back * chunk
        d_keys = [x + take(new, key_slot) for x, new in zip(d_keys, by_key, strict=True)]
        return ((d_queries, tuple(d_keys)), (by_query, by_key)), None

    def zeros(size, *widths):
        return tuple(jnp.zeros((size, n), lse.dtype) for n in widths)

    widths = (width + value_width,) if together else (width, value_width)
    # Chunk c of the queries visits rows c … c + E of these chunks, none of them out of bounds.
    extended = num_keys + (geometry.span - 1) * chunk
    gradients = *zeros(num_queries, width), zeros(num_keys, *widths)
    start = gradients, (*zeros(slots, width), zeros(extended, *widths))
    ((dq, d_keys), _), _ = lax.scan(one_round, vary_like(start, row.q), indices)
    # [S, H + D] to [S, H] and [S, D]
    dk, dv = jnp.split(d_keys[0], [width], axis=-1) if together else d_keys
    if order.keys is None:
        own = g.astype(lse.dtype) * _own_weight(settings, row, lse.dtype)
        dv += jnp.where(alone[:, None], own, 0)
    return dq, dk, dv


def _own_weight(settings, row, dtype):
    """The weight 1 of a token that sees only itself, [L, 1], or [1, 1] where it is 1 for all.

    It is 0 where the mask hides the token from itself, and under dropout.
    """
    position, own = jnp.arange(row.q.shape[0]), jnp.ones((1,), dtype)
    if row.order.pairs is not None:
        own = own * row.order.pairs.visible(position, position)
    if settings.dropout_rate > 0:
        own = own * keep_weights(settings, row.seed, position, position, dtype)
    return own[:, None]


def _add_in_order(buffers, parts, i, c0, geometry: Geometry):
    """Adds [g, E·C, width] to the chunks that the g query chunks of tile i, from c0 on, visit.

    The first to come to a chunk writes over what an earlier round has left there.
    """
    chunk, span = geometry.chunk_size, geometry.span

    def add(buffer, part):
        size = part.shape[0]
        # [g, E, C, width]: what each query chunk adds to the chunk it visits as its e-th
        visits = part.reshape(size, span, chunk, -1)
        # [g·C]: number of the query chunk within the tile
        index = jnp.arange(size * chunk) // chunk
        # Chunks below this were written by earlier tiles of this round, counted from c0 on.
        by_earlier_tiles = jnp.where(i == 0, 0, i * size + span - 1) - c0
        # Turn e adds [g·C, width] at once, to the g chunks from c0 + e on: all but the first of
        # them are those that turn e + 1 has added to.
        for e in reversed(range(span)):
            new = visits[:, e].reshape(size * chunk, -1)
            written = index + e < by_earlier_tiles
            if e < span - 1:  # all but the first were written in the last turn
                written |= index > 0
            start = (c0 + e) * chunk
            before = lax.dynamic_slice_in_dim(buffer, start, len(new))
            new += jnp.where(written[:, None], before, 0)
            buffer = lax.dynamic_update_slice_in_dim(buffer, new, start, 0)
        return buffer

    return jax.tree.map(add, buffers, parts)


def _add_to_chunks(buffers, parts, home, geometry: Geometry):
    """Adds [g, E·C, width] to the chunks of [.., width] that query chunks of these homes visit."""
    # [g, E] chunks; several query chunks may have one home, so these are true sums (a scatter).
    visited = home[:, None] + jnp.arange(geometry.span)[None, :]

    def add(buffer, part):
        # [chunks, C, width], and the part as [g, E, C, width]
        chunks = buffer.reshape(-1, geometry.chunk_size, buffer.shape[1])
        part = part.reshape(*visited.shape, *chunks.shape[1:])
        return chunks.at[visited].add(part, mode="promise_in_bounds").reshape(buffer.shape)

    return jax.tree.map(add, buffers, parts)


def _chunks_at_once(num_chunks, tiling: Tiling):
    return -(-num_chunks // tiling.tiles)


def _first_chunk(i, chunks_at_once, num_chunks):
    """The last tiles are moved back to end with the sequence: chunks computed and written twice."""
    return jnp.minimum(jnp.asarray(i, jnp.int32) * chunks_at_once, num_chunks - chunks_at_once)


def _write(buffers, parts, start):
    """Writes [g, C, ...] into rows start … start + g·C of every buffer."""

    def write(buffer, part):
        part = part.reshape(-1, *buffer.shape[1:]).astype(buffer.dtype)
        return lax.dynamic_update_slice_in_dim(buffer, part, start, 0)

    return jax.tree.map(write, buffers, parts)
