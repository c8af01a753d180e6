"""Attention over ranges on a TPU: a Pallas kernel for Mosaic, the forward pass.

For every row and block of queries, the blocks of keys that it sees one after another, with an
online softmax: context_i = Σ_j e^{s_ij − lse_i} v_j over the keys j that query i sees. Blocks that
nobody looks at are neither fetched nor computed. Layout: see `tile`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attnlab.devices.platforms import current
from attnlab.ops.kernels.pallas import tiles
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Visible
from attnlab.ops.kernels.pallas.tpu.additive import UNITS
from attnlab.ops.kernels.pallas.tpu.tile import (
    Operands,
    dot,
    logits,
    over_queries,
    shows,
    specs,
    unit_scratch,
)

_SCALAR_MEMORY = (1 << 20) - (1 << 16)  # 1 MiB on v4 to v7; some of it is the compiler's
_VECTOR_MEMORY = 16 << 20  # what XLA grants a kernel on v5e
_WITHOUT_BFLOAT16 = ("TPU v2", "TPU v3")


def forward(x: Inputs, visible: Visible, config: Config) -> tuple[jax.Array, jax.Array]:
    """Σ_j softmax_j(s_ij) v_j over the keys in each query's range.

    Returns:
      The context [M, T, D] in config.dtype and the log-sum-exp [M, T] float32; 0 and
      `tiles.MASKED` where a query sees nothing. Time O(visits · bq · bk · (H + D)), memory
      O((T + S)(H + D)).
    """
    operands = Operands.of(x, visible)
    walk = over_queries(operands, visible, config)
    (rows, queries, _), (width, bq) = x.q.shape, (operands.v.shape[1], config.block_q)

    def of_queries(size):
        def index(*step):
            at = walk.place(*step)
            return at.row, 0, at.query_block

        return pl.BlockSpec((None, size, bq), index)

    context, lse = pl.pallas_call(
        functools.partial(_kernel, config=config, walk=walk),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(walk.prefetched),
            grid=walk.grid,
            in_specs=(specs(operands, config, walk.place),),
            out_specs=(of_queries(width), of_queries(1)),
            scratch_shapes=(
                pltpu.VMEM((width, bq), jnp.float32),
                pltpu.VMEM((1, bq), jnp.float32),
                pltpu.VMEM((1, bq), jnp.float32),
                *unit_scratch(operands, config.block_k, bq),
            ),
        ),
        out_shape=(
            jax.ShapeDtypeStruct((rows, width, queries), config.dtype),
            jax.ShapeDtypeStruct((rows, 1, queries), jnp.float32),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=config.interpret,
        name="range_forward",
    )(*walk.prefetched, operands)
    return jnp.swapaxes(context, 1, 2)[..., : x.v.shape[2]], lse[:, 0]


def _kernel(start, count, x: Operands, context, lse, sums, largest, total, *scratch, config, walk):
    step = (*(pl.program_id(axis) for axis in range(3)), start, count)
    visit, last = step[2], walk.grid[2] - 1

    @pl.when(visit == 0)
    def _():
        sums[...] = jnp.zeros_like(sums)
        largest[...] = jnp.full_like(largest, tiles.MASKED)
        total[...] = jnp.zeros_like(total)

    @pl.when(walk.visits(*step))
    def _():
        s = logits(x, config, scratch)
        visible = shows(x, walk.place(*step).key_block, config)
        new_largest, new_total, p, shrink = tiles.softmax_step(
            largest[0], total[0], s, visible, spread=lambda row: row[None], axis=0
        )
        largest[0], total[0] = new_largest, new_total
        v = x.v[...]
        sums[...] = sums[...] * shrink[None] + dot(v, p.astype(v.dtype), (1, 0), config)

    @pl.when(visit == last)
    def _():
        inverse, lse[0] = tiles.finish(largest[0], total[0])
        context[...] = (sums[...] * inverse[None]).astype(context.dtype)


def refusal(x: Inputs, visible: Visible, config: Config) -> str | None:
    """What this kernel does not serve, ending 'implementation="pallas" …'; None if it serves."""
    dtypes = sorted({y.dtype.name for y in (x.q, x.k, x.v)})
    if not set(dtypes) <= {"float32", "bfloat16"}:
        return f"serves float32 and bfloat16 on TPU, not {' and '.join(dtypes)}"
    if config.interpret:
        return None
    if "bfloat16" in dtypes and current().kind in _WITHOUT_BFLOAT16:
        return f"multiplies no bfloat16 on {current().kind}; give float32"
    if config.precision not in (None, lax.Precision.DEFAULT, lax.Precision.HIGHEST):
        return f"knows precision None, DEFAULT and HIGHEST on TPU, not {config.precision}"
    blocks = config.block_q, config.block_k
    if any(size % 128 for size in blocks):
        return f"takes multiples of 128 as block_q and block_k on TPU; got {blocks}"
    scalars = 8 * (visible.first.size // config.block_q + x.k.shape[1] // config.block_k)
    if scalars > _SCALAR_MEMORY:
        rows, queries = visible.first.shape
        return (
            f"has no room for the ranges of {rows} rows of {queries // config.block_q} blocks in "
            f"a TPU's scalar memory; take larger blocks or fewer rows at once"
        )
    needed = _vector_memory(x, config)
    if needed > _VECTOR_MEMORY:
        return (
            f"would need about {needed >> 20} of a TPU's {_VECTOR_MEMORY >> 20} MiB of vector "
            f"memory for blocks of {blocks}; take smaller ones"
        )
    return None


def _vector_memory(x: Inputs, config: Config) -> int:
    """Bytes that the backward's tile takes: an estimate, never low where compilers were asked."""
    bq, bk = config.block_q, config.block_k
    width = -(-x.q.shape[2] // UNITS) * UNITS
    value_width = -(-x.v.shape[2] // UNITS) * UNITS
    both = width + value_width
    read = (bq + bk) * both * max(y.dtype.itemsize for y in (x.q, x.k, x.v))
    written = max(bk * both, bq * width) * 4
    tile = bq * bk * 4 * (4 if x.w is None else 5)
    return 2 * (read + written) + tile  # two: the next block is fetched meanwhile
