"""LSH attention by the range kernels: rounds gathered into sorted order, merged as they come.

In sorted order the keys that a query sees are one range of slots, and those of a block of queries
stand in its own block and its neighbors, so a kernel reads every key once or twice a round. What
an earlier round has shown already is told by comparing slots (`ranges.Seen`). Rounds are merged by
their log-sum-exps, and the backward pass of each round uses the merged one.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attnlab.axes import pad_to_multiple
from attnlab.ops.kernels.pallas import Pallas, block_sizes, kernels_for, why_not_on
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Seen, Visible
from attnlab.ops.kernels.pallas.tiles import MASKED
from attnlab.ops.lsh.order import Geometry, Order, take
from attnlab.ops.lsh.rows import (
    CallSettings,
    Row,
    factored,
    heads_inside,
    row_of,
    rows_together,
    select_row,
    unit_keys,
)
from attnlab.platforms import Platform

__all__ = ["Kernel", "attend_with", "kernel_for"]


class Kernel(NamedTuple):
    """A kernel of a platform and how it is called; static."""

    platform: Platform
    config: Config
    causal: bool


def kernel_for(
    options: Pallas,
    platform: Platform,
    settings: CallSettings,
    q: jax.Array,
    v: jax.Array,
    order: Order,
) -> Kernel:
    """The kernel for these rounds.

    Raises:
      NotImplementedError: there is none.
    """
    geometry = settings.geometry
    reason = why_not_on(platform, options.interpret)
    if order.keys is not None:
        reason = "attends within one sequence, not across two"
    if not geometry.same_bucket or geometry.wrap:
        reason = "shows keys of the query's own bucket only (same_bucket=True, wrap=False)"
    if order.pairs is not None:
        reason = "takes masks of keys, causal and segments, not of other pairs"
    if settings.dropout_rate > 0:
        reason = "takes no dropout"
    if reason is None:
        back, ahead = _reach(geometry)
        blocks = block_sizes(options, platform, "dot", (back, ahead))
        config = Config(*blocks, back, ahead, jnp.float32, settings.precision, options.interpret)
        kernel = Kernel(platform, config, geometry.causal)
        operands = jax.eval_shape(
            lambda: _in_order(kernel, _rows(settings, q, v, 1.0, order, jnp.arange(1)), 0)
        )
        reason = kernels_for(platform).refusal(*operands, config)
        if reason is None:
            return kernel
    raise NotImplementedError(
        f'implementation="pallas" {reason}; use implementation="sorted" or None'
    )


# jit: so that a call outside any other compiles once and not each time.
@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def attend_with(kernel: Kernel, settings: CallSettings, q, k, v, scale, order, seeds) -> jax.Array:
    """What `rounds.attend_rounds` computes, with its arguments; k and seeds are not used."""
    del k, seeds
    return factored(_attend(kernel, settings, q, v, scale, order), order.factor)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(kernel, settings, q, v, scale, order):
    return _forward(kernel, settings, q, v, scale, order)[0]


def _forward(kernel, settings, q, v, scale, order):
    def rows(indices):
        return _attend_rows(kernel, _rows(settings, q, v, scale, order, indices))

    # [B, L, N, D] and [B·N, L]
    context, lse = _map_rows(rows, settings, order, q.shape[0])
    return context, (q, v, scale, order, context, lse)


def _backward(kernel, settings, residuals, g):
    q, v, scale, order, context, lse = residuals

    def rows(indices):
        row = _rows(settings, q, v, scale, order, indices)
        # [g, L, D]: the rows at hand, flat, as kernels take them
        g_rows, context_rows = (_take_rows(x, indices) for x in (g, context))
        delta = jnp.sum(g_rows.astype(lse.dtype) * context_rows.astype(lse.dtype), axis=-1)
        dq, dk, dv = _attend_rows_vjp(kernel, row, g_rows, lse[indices], delta)
        keys = functools.partial(unit_keys, scale=scale, norm=settings.key_norm)
        (dk,) = jax.vjp(keys, row.q.astype(dk.dtype))[1](dk)
        return (dq + dk).astype(q.dtype), dv.astype(v.dtype)

    return *_map_rows(rows, settings, order, q.shape[0]), None, None


_attend.defvjp(_forward, _backward)


def _attend_rows(kernel: Kernel, row: Row) -> tuple[jax.Array, jax.Array]:
    """Some rows: contexts [g, L, D] and log-sum-exps [g, L], −MASKED where no key is visible."""
    kernels, config = kernels_for(kernel.platform), kernel.config
    rows, rounds, length = row.order.token.shape

    @jax.named_scope("lsh_merge")
    def one_round(merged, r):
        x, visible = _in_order(kernel, row, r)
        with jax.named_scope("lsh_attend"):
            by_slot = kernels.forward(x, visible, config)
        # From slots to tokens, [g, L, D] and [g, L]; what pads the last block stays behind.
        out, lse = (jax.vmap(take)(y, row.order.slot[:, r]) for y in by_slot)
        out_before, lse_before = merged
        # Each round's context is divided by its own total already: they are averaged by e^{lse of
        # the round − lse of all}.
        lse_now = jnp.logaddexp(lse_before, lse)
        before, now = (jnp.exp(y - lse_now)[..., None] for y in (lse_before, lse))
        return (out_before * before + out * now, lse_now), None

    nothing = jnp.zeros(row.v.shape, jnp.float32), jnp.full((rows, length), MASKED)
    (out, lse), _ = lax.scan(one_round, nothing, jnp.arange(rounds, dtype=jnp.int32))
    alone = lse <= MASKED / 2
    context = jnp.where(alone[..., None], row.v.astype(out.dtype), out)
    return context.astype(row.v.dtype), jnp.where(alone, -MASKED, lse)


def _attend_rows_vjp(kernel: Kernel, row: Row, g, lse, delta):
    """Some rows: the gradients of q, k and v, each [g, L, width] in float32."""
    kernels, config = kernels_for(kernel.platform), kernel.config

    @jax.named_scope("lsh_merge")
    def one_round(total, r):
        x, visible = _in_order(kernel, row, r)
        # From tokens to slots; lse and δ are those of all rounds, so ds is too.
        sorted_ = (_sorted(kernel, row, r, y) for y in (g, lse, delta))
        with jax.named_scope("lsh_attend"):
            dq, dk, dv, _ = kernels.backward(x, visible, config, *sorted_)
        slot = row.order.slot[:, r]
        by_token = (jax.vmap(take)(x, slot) for x in (dq, dk, dv))
        return tuple(x + dx for x, dx in zip(total, by_token, strict=True)), None

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (row.q, row.k, row.v))
    rounds = jnp.arange(row.order.token.shape[1], dtype=jnp.int32)
    (dq, dk, dv), _ = lax.scan(one_round, zeros, rounds)
    alone = (lse == -MASKED)[..., None]
    return dq, dk, dv + jnp.where(alone, g.astype(dv.dtype), 0)


def _in_order(kernel: Kernel, row: Row, r) -> tuple[Inputs, Visible]:
    """Round r of some rows as the kernels take it."""
    with jax.named_scope("lsh_gather"):
        q, k, v = (_sorted(kernel, row, r, x) for x in (row.q, row.k, row.v))
        seen = _seen(kernel, row, r, q.shape[1])
    first, extent = (
        _padded(kernel, lax.dynamic_index_in_dim(x, r, 1, keepdims=False))
        for x in (row.order.first, row.order.extent)
    )
    return Inputs(q, k, v, None), Visible(first, extent, seen)


def _seen(kernel: Kernel, row: Row, r, slots: int) -> Seen | None:
    """Pairs that round r does not count: shown by an earlier round, or of a token with itself."""
    orders = []
    rows, rounds, _ = row.order.token.shape
    if row.seen_by is not None and rounds > 1:
        # Rounds that are not earlier are emptied, so that all rounds are one program.
        token = lax.dynamic_index_in_dim(row.order.token, r, 1, keepdims=False)
        # Positions last: an axis of a few rounds would be padded to a TPU's 128 lanes.
        slot, first, extent = (
            _padded(kernel, jax.vmap(_take_last)(jnp.swapaxes(x[..., :-1], 1, 2), token), 2)
            for x in row.seen_by
        )
        # [1, R − 1, 1]: of all rounds but the last, which no round comes after
        earlier = (jnp.arange(rounds - 1) < r)[None, :, None]
        orders.append((slot, first, jnp.where(earlier, extent, 0)))
    if not kernel.causal:
        # [g, 1, slots]: an order more, in which each slot shows itself and nothing else.
        own = lax.broadcasted_iota(jnp.int32, (rows, 1, slots), 2)
        orders.append((own, own, jnp.ones_like(own)))
    if not orders:
        return None
    return Seen(*(jnp.concatenate(parts, axis=1) for parts in zip(*orders, strict=True)))


def _sorted(kernel: Kernel, row: Row, r, x: jax.Array) -> jax.Array:
    """x [g, L, …] by token to the slots of round r, in whole blocks."""
    token = lax.dynamic_index_in_dim(row.order.token, r, 1, keepdims=False)
    return _padded(kernel, jax.vmap(take)(x, token))


def _take_last(x: jax.Array, index: jax.Array) -> jax.Array:
    return x.at[..., index].get(mode="promise_in_bounds")


def _padded(kernel: Kernel, x: jax.Array, axis: int = 1) -> jax.Array:
    blocks = math.lcm(kernel.config.block_q, kernel.config.block_k)
    return pad_to_multiple(x, axis, blocks)


def _reach(geometry: Geometry) -> tuple[int, int]:
    """How many slots before and after its own a query sees at most."""
    if geometry.window is not None:
        return geometry.window, 0 if geometry.causal else geometry.window
    within = geometry.chunk_size - 1
    ahead = 0 if geometry.causal else geometry.look_ahead * geometry.chunk_size + within
    return geometry.look_back * geometry.chunk_size + within, ahead


def _rows(settings: CallSettings, q, v, scale, order: Order, indices) -> Row:
    seeds = jnp.zeros((order.token.shape[0], 2), jnp.uint32)  # there is no dropout
    return jax.vmap(
        lambda i: select_row(settings, q, None, v, jnp.asarray(scale), order, seeds, i)
    )(indices)


def _take_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    return jax.vmap(lambda i: row_of(x, i))(indices)


def _map_rows(rows, settings: CallSettings, order: Order, batch: int):
    """As many rows at a time as fill the device, or `rows_at_once` at most."""
    count, _, length = order.token.shape
    # [B·N] rows as [turns, rows at once]
    at_once = rows_together(count, length, settings.rows_at_once)
    indices = jnp.arange(count, dtype=jnp.int32).reshape(-1, at_once)
    by_turn = lax.map(rows, indices)
    return jax.tree.map(lambda x: heads_inside(x.reshape(count, *x.shape[2:]), batch), by_turn)
