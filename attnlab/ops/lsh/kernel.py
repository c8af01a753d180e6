"""LSH attention by the range kernels: rounds gathered into sorted order, then merged.

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

from attnlab.core.axes import pad_to_multiple
from attnlab.devices.platforms import Platform
from attnlab.ops.kernels.pallas import Pallas, block_sizes, kernels_for, why_not_on
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Seen, Visible
from attnlab.ops.kernels.pallas.tiles import MASKED
from attnlab.ops.lsh.order import Order, take
from attnlab.ops.lsh.rows import (
    CallSettings,
    Row,
    heads_inside,
    largest_divisor,
    multiply_or_zero,
    row_of,
    select_row,
    unit_keys,
)

# Of rows and rounds that are computed together: 131,072 tokens in four rounds. On an H200 a turn of
# half as many took 1.25 times as long at 16,384 tokens, and one of twice as many gained nothing.
_SLOTS_TOGETHER = 2**19


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
) -> Kernel | str:
    """The kernel for these rounds, or why there is none."""
    geometry = settings.geometry
    if reason := why_not_on(platform, options.interpret):
        return reason
    if order.keys is not None:
        return "attends within one sequence, not across two"
    if order.pairs is not None:
        return "takes masks of keys, causal and segments, not of other pairs"
    if settings.dropout_rate > 0:
        return "takes no dropout"
    # How many slots before and after its own a query sees at most.
    back = geometry.window
    ahead = 0 if geometry.causal else geometry.window
    blocks = block_sizes(options, platform, "dot", (back, ahead))
    config = Config(*blocks, back, ahead, q.dtype, settings.precision, options.interpret)
    kernel = Kernel(platform, config, geometry.causal)

    def first_round():
        only = jnp.arange(1, dtype=jnp.int32)
        return _in_order(kernel, _rows(settings, q, v, 1.0, order, only), only)

    return kernels_for(platform).refusal(*jax.eval_shape(first_round), config) or kernel


# jit: so that a call outside any other compiles once and not each time.
@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def attend_with(kernel: Kernel, settings: CallSettings, q, k, v, scale, order, seeds) -> jax.Array:
    """What `rounds.attend_rounds` computes, with its arguments; k and seeds are not used."""
    del k, seeds
    return multiply_or_zero(_attend(kernel, settings, q, v, scale, order), order.factor)


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
        g_rows = _take_rows(g, indices)
        context_rows = _take_rows(context, indices)
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
    rows, _, length = row.order.token.shape

    @jax.named_scope("lsh_merge")
    def some_rounds(merged, rounds):
        x, visible = _in_order(kernel, row, rounds)
        with jax.named_scope("lsh_attend"):
            out, lse = kernels.forward(x, visible, config)
        out_before, lse_before = merged
        # [g, r, L]
        lse = jnp.stack(_by_token(lse, row, rounds), axis=1)
        lse_now = jnp.logaddexp(lse_before, jax.nn.logsumexp(lse, axis=1))
        # Each round's context is divided by its own total already: they are averaged by e^{lse of
        # the round − lse of all}.
        context = out_before * jnp.exp(lse_before - lse_now)[..., None]
        shares = jnp.exp(lse - lse_now[:, None])
        for i, of_round in enumerate(_by_token(out, row, rounds)):
            context += of_round * shares[:, i, :, None]
        return (context, lse_now), None

    nothing = jnp.zeros(row.v.shape, jnp.float32), jnp.full((rows, length), MASKED)
    (out, lse), _ = lax.scan(some_rounds, nothing, _turns(row))
    alone = lse <= MASKED / 2
    context = jnp.where(alone[..., None], row.v.astype(out.dtype), out)
    return context.astype(row.v.dtype), jnp.where(alone, -MASKED, lse)


def _attend_rows_vjp(kernel: Kernel, row: Row, g, lse, delta):
    """Some rows: the gradients of q, k and v, each [g, L, width] in float32."""
    kernels, config = kernels_for(kernel.platform), kernel.config

    @jax.named_scope("lsh_merge")
    def some_rounds(total, rounds):
        x, visible = _in_order(kernel, row, rounds)
        # From tokens to slots; lse and δ are those of all rounds, so ds is too.
        sorted_ = (_sort_by_slot(kernel, row, rounds, y) for y in (g, lse, delta))
        with jax.named_scope("lsh_attend"):
            *gradients, _ = kernels.backward(x, visible, config, *sorted_)
        return [
            sum(_by_token(x, row, rounds), y) for x, y in zip(gradients, total, strict=True)
        ], None

    zeros = [jnp.zeros(x.shape, jnp.float32) for x in (row.q, row.k, row.v)]
    (dq, dk, dv), _ = lax.scan(some_rounds, zeros, _turns(row))
    alone = (lse == -MASKED)[..., None]
    return dq, dk, dv + jnp.where(alone, g.astype(dv.dtype), 0)


def _turns(row: Row) -> jax.Array:
    """The rounds [turns, r]: those of a turn are computed together, and alive at once."""
    rows, rounds, length = row.order.token.shape
    together = largest_divisor(rounds, _SLOTS_TOGETHER // (rows * length))
    return jnp.arange(rounds, dtype=jnp.int32).reshape(-1, together)


def _in_order(kernel: Kernel, row: Row, rounds: jax.Array) -> tuple[Inputs, Visible]:
    """Some rounds [r] of some rows [g] as the kernels take them, as g·r rows."""
    with jax.named_scope("lsh_gather"):
        q = _sort_by_slot(kernel, row, rounds, row.q)
        k = _sort_by_slot(kernel, row, rounds, row.k)
        v = _sort_by_slot(kernel, row, rounds, row.v)
        seen = _hide_seen(kernel, row, rounds, q.shape[1])
    first = _pad_to_blocks(kernel, _flat(row.order.first[:, rounds]))
    extent = _pad_to_blocks(kernel, _flat(row.order.extent[:, rounds]))
    return Inputs(q, k, v, None), Visible(first, extent, seen)


def _hide_seen(kernel: Kernel, row: Row, rounds: jax.Array, slots: int) -> Seen | None:
    """Pairs that a round does not count: shown by an earlier round, or of a token with itself."""
    orders = []
    rows, num_rounds, _ = row.order.token.shape
    if row.seen_by is not None and num_rounds > 1:
        # [g, r, slots]
        token = row.order.token[:, rounds]

        def in_other_orders(x):
            # Positions last: an axis of a few rounds would be padded to a TPU's 128 lanes.
            # [g, L, R − 1] to [g·r, R − 1, slots]
            x = jnp.swapaxes(x[..., :-1], 1, 2)
            return _pad_to_blocks(kernel, _flat(_other_orders(x, token)), 2)

        slot, first, extent = row.seen_by
        slot = in_other_orders(slot)
        first = in_other_orders(first)
        extent = in_other_orders(extent)
        # Rounds that are not earlier are emptied, so that all rounds are one program.
        # [r, R − 1]: of all rounds but the last, which no round comes after
        earlier = jnp.arange(num_rounds - 1)[None, :] < rounds[:, None]
        earlier = jnp.tile(earlier, (rows, 1))[..., None]
        orders.append((slot, first, jnp.where(earlier, extent, 0)))
    if not kernel.causal:
        # [g·r, 1, slots]: an order more, in which each slot shows itself and nothing else.
        own = lax.broadcasted_iota(jnp.int32, (rows * len(rounds), 1, slots), 2)
        orders.append((own, own, jnp.ones_like(own)))
    if not orders:
        return None
    return Seen(*(jnp.concatenate(parts, axis=1) for parts in zip(*orders, strict=True)))


def _sort_by_slot(kernel: Kernel, row: Row, rounds: jax.Array, x: jax.Array) -> jax.Array:
    """x [g, L, …] by token to the slots of some rounds, in whole blocks: [g·r, slots, …]."""
    return _pad_to_blocks(kernel, _flat(jax.vmap(take)(x, row.order.token[:, rounds])))


def _by_token(x: jax.Array, row: Row, rounds: jax.Array) -> list[jax.Array]:
    """x [g·r, slots, …] by slot to the tokens, [g, L, …] of each of the rounds.

    What pads the last block stays behind.
    """
    x = x.reshape(-1, len(rounds), *x.shape[1:])
    slot = row.order.slot[:, rounds]
    return [jax.vmap(take)(x[:, i], slot[:, i]) for i in range(len(rounds))]


def _flat(x: jax.Array) -> jax.Array:
    """[g, r, …] to [g·r, …]."""
    return x.reshape(-1, *x.shape[2:])


@jax.vmap
def _other_orders(x: jax.Array, token: jax.Array) -> jax.Array:
    """[R − 1, L] and the tokens [r, slots] to [r, R − 1, slots]."""
    return jnp.swapaxes(x.at[:, token].get(mode="promise_in_bounds"), 0, 1)


def _pad_to_blocks(kernel: Kernel, x: jax.Array, axis: int = 1) -> jax.Array:
    blocks = math.lcm(kernel.config.block_q, kernel.config.block_k)
    return pad_to_multiple(x, axis, blocks)


def _rows(settings: CallSettings, q, v, scale, order: Order, indices) -> Row:
    seeds = jnp.zeros((order.token.shape[0], 2), jnp.uint32)  # there is no dropout
    return jax.vmap(
        lambda i: select_row(settings, q, None, v, jnp.asarray(scale), order, seeds, i)
    )(indices)


def _take_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    return jax.vmap(lambda i: row_of(x, i))(indices)


def _map_rows(rows, settings: CallSettings, order: Order, batch: int):
    """As many rows at a time as fill the device, or `rows_at_once` at most."""
    count, rounds, length = order.token.shape
    # [B·N] rows as [turns, rows at once]
    most = settings.rows_at_once or _SLOTS_TOGETHER // (rounds * length)
    at_once = largest_divisor(count, most)
    indices = jnp.arange(count, dtype=jnp.int32).reshape(-1, at_once)
    by_turn = lax.map(rows, indices)
    return jax.tree.map(lambda x: heads_inside(x.reshape(count, *x.shape[2:]), batch), by_turn)
