"""Attention over ranges on a Hopper GPU: a Pallas kernel for Mosaic GPU, the forward pass.

For every row and block of queries, the blocks of keys that it sees one after another, with an
online softmax: context_i = Σ_j e^{s_ij − lse_i} v_j over the keys j that query i sees. Blocks that
nobody looks at are neither fetched nor computed. Matrix products are wgmma's, of 16 bits into
float32; P is rounded to the type of v. Who copies and who computes: see `tile`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from attnlab.ops.kernels.pallas import tiles
from attnlab.ops.kernels.pallas.gpu.launch import Launch, Program, arrays_of, simulator
from attnlab.ops.kernels.pallas.gpu.tile import ROWS, Tile, swizzle, write
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Visible, query_blocks

_WIDTHS = (64, 128)
_BLOCKS = (64, 128)
_UNITS = (32, 64, 96, 128)  # every thread waits for as many bytes of w


def forward(x: Inputs, visible: Visible, config: Config) -> tuple[jax.Array, jax.Array]:
    """Σ_j softmax_j(s_ij) v_j over the keys in each query's range.

    Returns:
      The context [M, T, D] in config.dtype and the log-sum-exp [M, T] float32; 0 and
      `tiles.MASKED` where a query sees nothing. Time O(visits · bq · bk · (H + D)), memory
      O((T + S)(H + D)).
    """
    (rows, num_queries, _), (_, num_keys, width) = x.q.shape, x.v.shape
    arrays, layout = arrays_of(x, visible)
    tile = Tile(config.block_k, 0, config.interpret, config.scale)
    groups = config.block_q // ROWS

    def compute(program: Program, outputs, scratch):
        (context, lse), (buffer,) = outputs, scratch
        mine = program.rows

        def add_tile(row, at, slot, carry):
            sums, largest, total = carry
            keys = program.columns.at(slot)
            s = tile.logits(mine.q, keys.k, keys.w)
            shows = tile.visible(mine.ranges, keys.slots, at * tile.columns)
            largest, total, p, shrink = tiles.softmax_step(
                largest, total, s, shows,
                spread=lambda y: lax.broadcast_in_dim(y, tile.shape, [0]), axis=1,
            )  # fmt: skip
            sums = sums * lax.broadcast_in_dim(shrink, sums.shape, [0])
            return tile.matmul(p.astype(x.v.dtype), keys.v, onto=sums), largest, total

        start = tile.zeros(width), tile.zeros() + tiles.MASKED, tile.zeros()
        sums, largest, total = program.queue.go_through(add_tile, start)
        inverse, log_sum = tiles.finish(largest, total)
        at = pl.ds(program.position, ROWS)
        lse[program.row, at] = log_sum
        mean = sums * lax.broadcast_in_dim(inverse, sums.shape, [0])
        write(mean, buffer.at[program.group], context.at[program.row, at])

    launch = Launch(
        layout, tile, groups, num_queries, config.block_q, 1,
        rows=("q", "ranges"), columns=("k", "v", "slots", "w"),
    )  # fmt: skip
    outputs = (
        jax.ShapeDtypeStruct((rows, num_queries, width), config.dtype),
        jax.ShapeDtypeStruct((rows, num_queries), jnp.float32),
    )
    scratch = (swizzle((groups, ROWS, width), config.dtype),)
    blocks = query_blocks(visible, config, num_keys)
    context, lse = launch("range_forward", compute, arrays, blocks, outputs, scratch)
    return context, lse


def refusal(x: Inputs, visible: Visible, config: Config) -> str | None:
    """What this kernel does not serve, ending 'implementation="pallas" …'; None if it serves."""
    hidden, width = x.q.shape[2], x.v.shape[2]
    if x.q.dtype not in (jnp.bfloat16, jnp.float16):
        return f"takes bfloat16 and float16 on a GPU, not {x.q.dtype}"
    if x.k.dtype != x.q.dtype or x.v.dtype != x.q.dtype:
        return f"takes q, k and v of one type on a GPU, not {x.q.dtype}, {x.k.dtype}, {x.v.dtype}"
    if width not in _WIDTHS:
        return f"takes values 64 or 128 wide on a GPU, not {width}"
    if x.w is None and hidden not in _WIDTHS:
        return f"takes heads 64 or 128 wide on a GPU, not {hidden}"
    if x.w is not None and hidden not in _UNITS:
        return f"takes 32, 64, 96 or 128 hidden units on a GPU, not {hidden}"
    if config.block_q not in _BLOCKS or config.block_k not in _BLOCKS:
        return f"takes blocks of 64 or 128 on a GPU, not {config.block_q} and {config.block_k}"
    largest, out = (
        min(hidden, width, config.block_q, config.block_k) == 128,
        jnp.dtype(config.dtype),
    )
    if largest and out.itemsize > 2:
        return f"has no shared memory on a GPU for blocks of 128, 128 wide, and {out}"
    if config.interpret and simulator() is None:
        return f"is simulated for a GPU from jax 0.11 on, not by {jax.__version__}"
    return None
