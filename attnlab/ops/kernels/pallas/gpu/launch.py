"""How the kernels for Hopper GPUs start: programs, warpgroups, barriers and shared memory.

The ring of slots and what the warpgroups wait for: see `tile`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from attnlab.ops.kernels.pallas.gpu.tile import ROWS, STAGES, Arrays, Layout, Queue, Tile
from attnlab.ops.kernels.pallas.ranges import Blocks, Inputs, Visible


class Program(NamedTuple):
    """Arguments of a warpgroup.

    Attributes:
      row: row of the program's own side: of q where the tile's rows are queries, of k where they
        are keys.
      position: position of the warpgroup's first row of the tile.
      group: index of this warpgroup in its program.
      rows: program's own rows in shared memory; they are there while the queue is gone through.
      columns: columns that pass by, in shared memory, the slot first.
      queue: queue of the tiles whose columns pass by.
    """

    row: jax.Array
    position: jax.Array
    group: jax.Array
    rows: Arrays
    columns: Arrays
    queue: Queue


class Launch(NamedTuple):
    """A kernel's shape; static.

    Attributes:
      layout: layout of the arrays.
      tile: tile of a warpgroup; its `queries` say which side the rows are.
      groups: number of warpgroups of a program.
      positions: number of positions on the side of the rows.
      block: number of rows that a block of `visits` counts, a multiple of the program's 64 ·
        groups.
      pieces: number of tiles that a block of columns of `visits` makes.
      rows: names of the arrays of the rows.
      columns: names of the arrays of the columns.
    """

    layout: Layout
    tile: Tile
    groups: int
    positions: int
    block: int
    pieces: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def __call__(
        self,
        name: str,
        compute: Callable,
        arrays: Arrays,
        blocks: Blocks,
        outputs: Sequence[jax.ShapeDtypeStruct],
        scratch: Sequence[Any],
    ) -> Sequence[jax.Array]:
        """Runs compute(program, outputs, scratch) in every warpgroup.

        The first axis of the outputs counts the rows of q, or of k where the rows are keys.
        """
        tile, layout, groups = self.tile, self.layout, self.groups
        height, q_rows = ROWS * groups, 1 if tile.queries == 0 else layout.group
        num_rows, num_blocks = outputs[0].shape[0], self.positions // height
        row_arrays, column_arrays = arrays.only(*self.rows), arrays.only(*self.columns)
        # The slots of keys differ by the row of q; where keys are the rows, they pass by with it.
        by_row = arrays.only("slots") if tile.queries == 1 else Arrays()

        def kernel(arrays, visits, *refs):
            *outputs, (rows, columns, passing, ready, full, free, scratch) = refs
            index, group = lax.axis_index("program"), lax.axis_index("warpgroup")
            row = lax.div(index, jnp.int32(num_blocks))
            position = lax.rem(index, jnp.int32(num_blocks)) * height
            first, leads = row * q_rows, group == 0

            @pl.when(leads)
            def _copy_rows():
                for i in range(groups):
                    layout.copy(arrays, rows.at(i), first, position + i * ROWS, ready)

            def copy(row, at, slot, barrier):
                layout.copy(arrays, columns.at(slot), row, at * tile.columns, barrier)
                layout.copy(arrays, passing.at(slot), row, position, barrier)

            queue = Queue(
                visits, lax.div(position, jnp.int32(self.block)), self.pieces,
                first, q_rows, layout.sharing, ready, full, free, copy, leads,
            )  # fmt: skip
            at, streamed = position + group * ROWS, columns._replace(**passing.present())
            program = Program(row, at, group, rows.at(group), streamed, queue)
            compute(program, outputs, scratch)

        kernel.__name__ = name
        return plgpu.kernel(
            kernel,
            out_type=tuple(outputs),
            scratch_types=(
                (
                    layout.buffers(row_arrays, groups, ROWS),
                    layout.buffers(column_arrays, STAGES, tile.columns),
                    layout.buffers(by_row, STAGES, height),
                    plgpu.Barrier(num_arrivals=groups * len(row_arrays.present())),
                    plgpu.Barrier(
                        num_arrivals=len(column_arrays.present()) + len(by_row.present()),
                        num_barriers=STAGES,
                    ),
                    plgpu.Barrier(num_arrivals=groups, num_barriers=STAGES),
                    tuple(scratch),
                ),
            ),
            grid=(num_rows * num_blocks,),
            grid_names=("program",),
            num_threads=groups,
            thread_name="warpgroup",
            compiler_params=plgpu.CompilerParams(
                approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane
            ),
            interpret=simulator() if tile.interpret else False,
        )(arrays, jnp.stack([blocks.start, blocks.number], axis=2))


def arrays_of(x: Inputs, visible: Visible, **of_backward: jax.Array) -> tuple[Arrays, Layout]:
    """The arrays as the kernels read them, and how they belong together."""
    layout = Layout(x.w is not None, x.group, x.q.shape[0] // visible.first.shape[0])
    q, k = x.q, x.k
    if layout.additive:
        # [M, L, H] to [M, H, L]
        q = q.swapaxes(1, 2)
        k = k.swapaxes(1, 2)
    first, slots = visible.first[:, None], None
    all_ranges = [first, first + visible.extent[:, None]]
    if visible.seen is not None:
        slots, first, extent = visible.seen
        all_ranges += [first, first + extent]
    w = x.w if x.w is None else x.w.astype(jnp.float32)
    ranges = jnp.concatenate(all_ranges, axis=1)
    return Arrays(q, k, x.v, ranges=ranges, slots=slots, w=w, **of_backward), layout


def simulator() -> Any:
    """What simulates the kernels on the CPU; None where this version of jax cannot."""
    # That of jax 0.10 is internal still, and its wgmma transposes nothing.
    params = getattr(plgpu, "InterpretGPUParams", None)
    return None if params is None else params()
