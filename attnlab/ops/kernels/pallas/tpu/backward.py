"""The backward pass of attention over ranges on a TPU, in two kernels.

From P = e^{s − lse}, dP = do·v, ds = P ∘ (dP − δ): one kernel walks each query block over the keys
it sees, for dq and dw; the other each key block over the queries that may see it, for dk and dv,
with the heads that share the keys inside. Either makes its tiles again, so that nothing larger than
a gradient is ever in memory. Layout: see `tile`.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attnlab.ops.kernels.pallas import tiles
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Visible, key_blocks
from attnlab.ops.kernels.pallas.tpu.additive import row_gradients
from attnlab.ops.kernels.pallas.tpu.tile import (
    Operands,
    Place,
    Walk,
    by_lane,
    dot,
    logits,
    over_queries,
    shows,
    specs,
    unit_scratch,
)


def backward(
    x: Inputs,
    visible: Visible,
    config: Config,
    dout: jax.Array,
    lse: jax.Array,
    delta: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The gradients of the inputs, all in float32.

    Arguments and result are those of the GPU's `backward`; here, as there, lse and delta may be of
    more keys than these.

    Returns:
      dq [M, T, H], dk [M / group, S, H], dv [M / group, S, D] and dw [M, H], None without w.
    """
    # [M, T, D] to [M, D, T]; [M, T] to [M, 1, T]
    operands = Operands.of(x, visible)._replace(
        dout=by_lane(dout), lse=lse[:, None], delta=delta[:, None]
    )
    dq, dw = _of_queries(operands, visible, config)
    dk, dv = _of_keys(operands, visible, config)
    # Back to positions first, without what pads a width to whole units.
    dq = jnp.swapaxes(dq, 1, 2)[..., : x.q.shape[2]]
    dk = jnp.swapaxes(dk, 1, 2)[..., : x.k.shape[2]]
    dv = jnp.swapaxes(dv, 1, 2)[..., : x.v.shape[2]]
    dw = None if dw is None else dw[:, : x.q.shape[2]]
    return dq * config.scale, dk * config.scale, dv, dw


def _of_queries(x: Operands, visible: Visible, config: Config):
    """dq [M, H, T] and dw [M, H], None without w."""
    walk = over_queries(x, visible, config)
    (rows, width, queries), bq = x.q.shape, config.block_q
    # dw of a row is kept as [H, lanes], so that no tile sums across lanes; they are summed below.
    lanes = math.gcd(bq, 128)

    def of_queries(*step):
        at = walk.place(*step)
        return at.row, 0, at.query_block

    # dq [M, H, T]; dw [M, H, lanes], which all blocks of a row add to
    shape = (rows, width, queries), (rows, width, lanes)
    out_specs = (
        pl.BlockSpec((None, width, bq), of_queries),
        pl.BlockSpec((None, width, lanes), lambda row, *_: (row, 0, 0)),
    )
    outputs = slice(1 if x.w is None else 2)
    dq, *dw = pl.pallas_call(
        functools.partial(_query_kernel, config=config, walk=walk),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(walk.prefetched),
            grid=walk.grid,
            in_specs=(specs(x, config, walk.place),),
            out_specs=(out_specs[outputs],),
            scratch_shapes=(unit_scratch(x, config.block_k, bq),),
        ),
        out_shape=(tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shape[outputs]),),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
        interpret=config.interpret,
        name="range_backward_queries",
    )(*walk.prefetched, x)[0]
    return dq, jnp.sum(dw[0], axis=2) if dw else None


def _query_kernel(start, count, x: Operands, outputs, scratch, *, config, walk):
    step = (*(pl.program_id(axis) for axis in range(3)), start, count)
    dq, *dw = outputs

    # The grid is rows × query blocks × visits: a block of dq stays in memory for all visits…
    @pl.when(step[2] == 0)
    def _():
        dq[...] = jnp.zeros_like(dq)

    # …and that of dw for all query blocks too.
    @pl.when((step[1] == 0) & (step[2] == 0))
    def _():
        for sums in dw:
            sums[...] = jnp.zeros_like(sums)

    @pl.when(walk.visits(*step))
    def _():
        _, ds = _weights_and_gradients(x, walk.place(*step).key_block, config, scratch)
        if x.w is None:
            k = x.k[...]
            # dq [H, bq] += k [H, bk] ds [bk, bq]
            dq[...] += dot(k, ds.astype(k.dtype), (1, 0), config)
        else:
            tile, column = scratch
            tile[...] = ds
            row_gradients(x.q, x.k, x.w, tile, dq, dw[0], column)


def _of_keys(x: Operands, visible: Visible, config: Config):
    """dk [M / group, H, S] and dv [M / group, D, S]."""
    walk = _over_keys(x, visible, config)
    bq, bk = config.block_q, config.block_k
    shapes = x.k.shape, x.v.shape
    return pl.pallas_call(
        functools.partial(_key_kernel, config=config, walk=walk),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(walk.prefetched),
            grid=walk.grid,
            in_specs=(specs(x, config, walk.place),),
            out_specs=tuple(
                pl.BlockSpec((None, size, bk), lambda row, block, *_: (row, 0, block))
                for _, size, _ in shapes
            ),
            scratch_shapes=(unit_scratch(x, bk, bq), unit_scratch(x, bq, bk)),
        ),
        out_shape=tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary")
        ),
        interpret=config.interpret,
        name="range_backward_keys",
    )(*walk.prefetched, x)


def _over_keys(x: Operands, visible: Visible, config: Config) -> Walk:
    """Rows of keys × key blocks × query rows that share them × query blocks that may see them."""
    num_rows, _, num_keys = x.k.shape
    group = x.q.shape[0] // num_rows
    blocks = key_blocks(visible, config, num_keys)
    by_query = over_queries(x, visible, config)
    shared, num_blocks = x.q.shape[0] // visible.first.shape[0], by_query.grid[1]

    def place(row, block, member, visit, start, count, *_):
        # Beyond the last visit it stays where it is, as in `over_queries`.
        visit = jnp.minimum(visit, jnp.maximum(count[block] - 1, 0))
        return Place(row * group + member, start[block] + visit, block)

    def visits(row, block, member, visit, start, count, first, extent):
        at = place(row, block, member, visit, start, count)
        # `key_blocks` knows only how far ranges reach; this block's own may not hold the key block.
        query = lax.div(at.row, np.int32(shared)) * num_blocks + at.query_block
        return (visit < count[block]) & tiles.in_range(block, first[query], extent[query])

    # Every row of the ranges has the same: `back` and `ahead` say them.
    prefetched = blocks.start[0], blocks.number[0], *by_query.prefetched
    return Walk(
        (num_rows, num_keys // config.block_k, group, blocks.most), prefetched, place, visits
    )


def _key_kernel(start, count, first, extent, x: Operands, dk, dv, scratch, turned, *, config, walk):
    step = (*(pl.program_id(axis) for axis in range(4)), start, count, first, extent)

    # Rows of keys × key blocks × query rows that share them × visits: one block of dk and dv.
    @pl.when((step[2] == 0) & (step[3] == 0))
    def _():
        dk[...] = jnp.zeros_like(dk)
        dv[...] = jnp.zeros_like(dv)

    @pl.when(walk.visits(*step))
    def _():
        p, ds = _weights_and_gradients(x, walk.place(*step).key_block, config, scratch)
        dout = x.dout[...]
        # dv [D, bk] += do [D, bq] P [bk, bq]ᵀ
        dv[...] += dot(dout, p.astype(dout.dtype), (1, 1), config)
        if x.w is None:
            q = x.q[...]
            # dk [H, bk] += q [H, bq] ds [bk, bq]ᵀ
            dk[...] += dot(q, ds.astype(q.dtype), (1, 1), config)
        else:
            # The same sums over rows as for dq, with the tile turned: [bq, bk].
            tile, column = turned
            tile[...] = ds.T
            row_gradients(x.k, x.q, x.w, tile, dk, None, column)


def _weights_and_gradients(x: Operands, key_block, config: Config, scratch):
    """P and ds of a tile, [bk, bq]."""
    visible = shows(x, key_block, config)
    # All [bk, bq]; lse and δ are rows [1, bq], spread by broadcasting.
    p = tiles.weights(logits(x, config, scratch), visible, x.lse[...])
    # vᵀ do of [D, bk] and [D, bq]
    dp = dot(x.v[...], x.dout[...], (0, 0), config)
    return p, tiles.logit_gradients(p, dp, x.delta[...], visible)
