"""Attention over ranges on a Hopper GPU, the backward pass: Pallas kernels for Mosaic GPU.

With P = e^{s − lse} and ds = P ∘ (do·v − δ): dv_j = Σ_i P_ij do_i, and for the dot product
dq_i = Σ_j ds_ij k_j, dk_j = Σ_i ds_ij q_i; for the additive score, with t = tanh(q_ih + k_jh),

    dq_ih = w_h Σ_j ds_ij (1 − t²),  dk_jh = w_h Σ_i ds_ij (1 − t²),  dw_h = Σ_ij ds_ij t.

Two kernels compute every tile again, each with its sums along the rows of the tile, where they are
cheap: one for dq and dw, with queries as rows, one for dk and dv, with keys as rows.
P and ds are rounded to the type of v for the matrix products.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from attnlab.ops.kernels.pallas import tiles
from attnlab.ops.kernels.pallas.gpu.launch import Launch, Program, arrays_of
from attnlab.ops.kernels.pallas.gpu.tile import ROWS, Tile, swizzle, write
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Visible, key_blocks, query_blocks

__all__ = ["backward"]

# Columns of a tile: dk and dv, 64 × 128 each, leave registers for two tiles of so many.
COLUMNS = 64


def backward(
    x: Inputs,
    visible: Visible,
    config: Config,
    dout: jax.Array,
    lse: jax.Array,
    delta: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The gradients, from those of the context and the given log-sum-exp.

    Args:
      x: inputs of the forward pass.
      visible: visible keys of the forward pass.
      config: static configuration of the forward pass.
      dout: gradient of the context, [M, T, D].
      lse: log-sum-exp, [M, T] float32, such that P = e^{s − lse}; it may cover more keys than
        these.
      delta: rowsum(do ∘ o), [M, T] float32.

    Returns:
      dq [M, T, H], dk [M / group, S, H], dv [M / group, S, D] and dw [M, H]; dw is None for the dot
      product. Those of the dot product are in config.dtype, the others float32. Memory
      O((T + S)(H + D)), as the terms of dw are one a query.
    """
    # [M, 2, T]: what belongs to a query has positions last.
    stats = jnp.stack([lse, delta], axis=1)
    arrays, layout = arrays_of(x, visible, dout=dout.astype(x.v.dtype), stats=stats)
    num_keys = x.k.shape[1]
    dq, dw = _of_queries(x, arrays, layout, config, query_blocks(visible, config, num_keys))
    dk, dv = _of_keys(x, arrays, layout, config, key_blocks(visible, config, num_keys))
    return dq, dk, dv, dw


def _groups(layout, block: int) -> int:
    """Computing warpgroups; what the additive score sums up in shared memory fits once only."""
    return 1 if layout.additive else block // ROWS


def _of_queries(x, arrays, layout, config, blocks):
    """dq, and dw of the additive score: a program a block of queries."""
    # x.q [M, T, H]; P and ds are rounded to `narrow` before a product.
    (rows, num_queries, hidden), narrow = x.q.shape, x.v.dtype
    tile = Tile(COLUMNS, 0, config.interpret, config.scale)
    groups = _groups(layout, config.block_q)

    def compute(program: Program, outputs, scratch):
        mine, at = program.rows, pl.ds(program.position, ROWS)

        def gradients(key_tile, keys):
            # [64 queries, 64 keys] from q [64, H], k [64, H]; additive from [H, 64] each.
            s = tile.logits(mine.q, keys.k, keys.w)
            shows = tile.visible(mine.ranges, keys.slots, key_tile * COLUMNS)
            p = _weights(tile, s, shows, mine.stats)
            # do vᵀ, of [64, D] and [64, D]
            dp = tile.matmul(mine.dout, keys.v, transposed=True)
            return _logit_gradients(tile, p, dp, shows, mine.stats)

        def add_dot(row, key_tile, slot, dq):
            keys = program.columns.at(slot)
            # dq [64, H] += ds [64, 64] k [64, H], in registers from tile to tile
            return tile.matmul(gradients(key_tile, keys).astype(narrow), keys.k, onto=dq)

        def add_additive(row, key_tile, slot, _):
            keys = program.columns.at(slot)
            ds = gradients(key_tile, keys)
            _add_units(tile, ds, mine.q, keys.k, keys.w, sums.at[0], sums.at[1])

        if layout.additive:
            sums = scratch[0].at[program.group]
            _clear(tile, sums)
            # sums [2, H, 64] float32: of dq, and of each query's terms of dw
            program.queue.go_through(add_additive, None)
            _write_units(sums, [out.at[program.row, :, at] for out in outputs])
        else:
            (dq,), (buffer,) = outputs, scratch
            sums = program.queue.go_through(add_dot, tile.zeros(hidden)) * config.scale
            write(sums, buffer.at[program.group], dq.at[program.row, at])

    launch = Launch(
        layout, tile, groups, num_queries, config.block_q, config.block_k // COLUMNS,
        rows=("q", "dout", "stats", "ranges"), columns=("k", "v", "slots", "w"),
    )  # fmt: skip
    if not layout.additive:
        out = jax.ShapeDtypeStruct((rows, num_queries, hidden), config.dtype)
        scratch = (swizzle((groups, ROWS, hidden), config.dtype),)
        (dq,) = launch("range_dq", compute, arrays, blocks, (out,), scratch)
        return dq, None
    out = jax.ShapeDtypeStruct((rows, hidden, num_queries), jnp.float32)
    scratch = (plgpu.SMEM((groups, 2, hidden, ROWS), jnp.float32),)
    dq, dw = launch("range_dq", compute, arrays, blocks, (out, out), scratch)
    # [M, H, T] to [M, T, H]; dw sums over queries only here: [M, H, T] to [M, H]
    return dq.swapaxes(1, 2), dw.sum(2)


def _of_keys(x, arrays, layout, config, blocks):
    """dk and dv: a program a block of keys, the tile on its side."""
    (rows, num_keys, hidden), (_, _, width), narrow = x.k.shape, x.v.shape, x.v.dtype
    tile = Tile(COLUMNS, 1, config.interpret, config.scale)
    groups = _groups(layout, config.block_k)

    def compute(program: Program, outputs, scratch):
        mine, at = program.rows, pl.ds(program.position, ROWS)

        def gradients(queries, dv):
            slots = queries.slots
            # Slots belong to keys, this program's rows: [E, block] to the group's [E, 64].
            if slots is not None:
                slots = slots.at[:, pl.ds(program.group * ROWS, ROWS)]
            # [64 keys, 64 queries]: the tile on its side, so that sums over queries run along rows.
            s = tile.logits(mine.k, queries.q, queries.w)
            shows = tile.visible(queries.ranges, slots, program.position)
            p = _weights(tile, s, shows, queries.stats)
            # dv [64, D] += P [64, 64] do [64, D]
            dv = tile.matmul(p.astype(narrow), queries.dout, onto=dv)
            # v doᵀ: dP with keys first
            dp = tile.matmul(mine.v, queries.dout, transposed=True)
            return _logit_gradients(tile, p, dp, shows, queries.stats), dv

        def add_dot(row, query_tile, slot, carry):
            dk, dv = carry
            queries = program.columns.at(slot)
            ds, dv = gradients(queries, dv)
            # dk [64, H] += ds [64, 64] q [64, H]
            return tile.matmul(ds.astype(narrow), queries.q, onto=dk), dv

        def add_additive(row, query_tile, slot, dv):
            queries = program.columns.at(slot)
            ds, dv = gradients(queries, dv)
            _add_units(tile, ds, mine.k, queries.q, queries.w, sums.at[0], None)
            return dv

        dk, dv = outputs
        if layout.additive:
            sums = scratch[0].at[program.group]
            _clear(tile, sums)
            dv[program.row, at] = program.queue.go_through(add_additive, tile.zeros(width))
            _write_units(sums, [dk.at[program.row, :, at]])
        else:
            start = tile.zeros(hidden), tile.zeros(width)
            dk_sums, dv_sums = program.queue.go_through(add_dot, start)
            dk_buffer, dv_buffer = scratch
            dk_buffer = dk_buffer.at[program.group]
            dv_buffer = dv_buffer.at[program.group]
            write(dk_sums * config.scale, dk_buffer, dk.at[program.row, at])
            write(dv_sums, dv_buffer, dv.at[program.row, at])

    launch = Launch(
        layout, tile, groups, num_keys, config.block_k, config.block_q // COLUMNS,
        rows=("k", "v"), columns=("q", "dout", "stats", "ranges", "w"),
    )  # fmt: skip
    if layout.additive:  # its sums are by unit, [M / group, H, S]
        dk_shape, dtype = (rows, hidden, num_keys), jnp.float32
        scratch = (plgpu.SMEM((groups, 1, hidden, ROWS), dtype),)
    else:
        dk_shape, dtype = (rows, num_keys, hidden), config.dtype
        scratch = tuple(swizzle((groups, ROWS, n), dtype) for n in (hidden, width))
    outputs = (
        jax.ShapeDtypeStruct(dk_shape, dtype),
        jax.ShapeDtypeStruct((rows, num_keys, width), dtype),
    )
    dk, dv = launch("range_dk_dv", compute, arrays, blocks, outputs, scratch)
    return dk.swapaxes(1, 2) if layout.additive else dk, dv


def _weights(tile: Tile, s, shows, stats):
    return tiles.weights(s, shows, tile.spread(stats.at[0], tile.queries))


def _logit_gradients(tile: Tile, p, dp, shows, stats):
    return tiles.logit_gradients(p, dp, tile.spread(stats.at[1], tile.queries), shows)


def _clear(tile: Tile, sums) -> None:
    def clear_unit(h, _):
        for i in range(sums.shape[0]):
            sums[i, h] = tile.zeros()

    lax.fori_loop(0, sums.shape[1], clear_unit, None)


def _add_units(tile: Tile, ds, rows, columns, w, of_rows, of_w) -> None:
    """Adds the tile's gradients for its rows, and its terms of dw, to sums [H, 64]."""

    def add_unit(h, _):
        row, column = tile.unit(h, rows, columns)
        # A NaN that matters is in ds; where nobody sees it, it must not meet the gradient 0.
        row = jnp.where(jnp.isnan(row), 0.0, row)
        column = jnp.where(jnp.isnan(column), 0.0, column)
        slopes, terms = tiles.unit_gradients(row, column, ds)
        # [64] of one unit: w_h Σ over the columns of ds (1 − t²)
        of_rows[h] = tile.read(of_rows.at[h], 0) + w[h] * jnp.sum(slopes, axis=1)
        if of_w is not None:
            of_w[h] = tile.read(of_w.at[h], 0) + jnp.sum(terms, axis=1)

    lax.fori_loop(0, w.shape[0], add_unit, None)


def _write_units(sums, targets) -> None:
    plgpu.commit_smem()
    for i, target in enumerate(targets):
        plgpu.copy_smem_to_gmem(sums.at[i], target)
    plgpu.wait_smem_to_gmem(0)
