"""Common to the kernels for Hopper GPUs: the arrays, the queue of tiles, a tile's logits and mask.

A program has a warpgroup (128 threads) for every 64 rows of its block. Rows, the program's own,
are queries in the forward and for dq, keys for dk and dv; columns are the other side, one block of
which after another is copied into `STAGES` slots of shared memory. The first warpgroup starts the
copies: one that did nothing else would take the registers of a second program, and LSH has so few
tiles a program that only other programs can fill the time until a copy lands. A slot's `full`
completes when all its copies have landed; its `free` completes when every warpgroup is done with
it. These, and `ready` for the rows, are all that the warpgroups have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from attnlab.ops.kernels.pallas import tiles

# Rows of a warpgroup's tile: those of a wgmma instruction.
ROWS = 64
# Blocks of columns in shared memory: one to compute with, one that is on its way.
STAGES = 2


class Arrays(NamedTuple):
    """What the kernels read, or where it lies in shared memory; what is absent is None.

    What wgmma multiplies has positions first and is swizzled in shared memory. Of the rest, single
    rows along the positions are read, so positions come last.

    Attributes:
      q: queries [M, T, H]; for the additive score [M, H, T].
      k: keys [M / group, S, H]; for the additive score [M / group, H, S].
      v: values [M / group, S, D].
      dout: gradient of the context, [M, T, D].
      stats: log-sum-exp and δ of the queries, [M, 2, T] float32.
      ranges: ranges of visible keys, [V, 2 + 2E, T] int32: the first and one past the last, then
        all firsts and all ends in E other orders. Ends, not extents: an instruction less a pair.
      slots: slots of the keys in E other orders, [V, E, S] int32.
      w: weights of the additive score's hidden units, [M, H] float32.
    """

    q: Any = None
    k: Any = None
    v: Any = None
    dout: Any = None
    stats: Any = None
    ranges: Any = None
    slots: Any = None
    w: Any = None

    def only(self, *names: str) -> Arrays:
        return Arrays(**{name: getattr(self, name) for name in names})

    def present(self) -> dict[str, Any]:
        return {name: x for name, x in self._asdict().items() if x is not None}

    def at(self, index) -> Arrays:
        return Arrays(**{name: x.at[index] for name, x in self.present().items()})


class Layout(NamedTuple):
    """How the arrays of a call belong together; static.

    Attributes:
      additive: whether the score is additive; q and k then have positions last.
      group: number of query rows that share a row of keys.
      sharing: number of query rows that share a row of `ranges` and `slots`.
    """

    additive: bool
    group: int
    sharing: int

    def _is_multiplied(self, name: str) -> bool:
        return name in ("v", "dout") or (name in ("q", "k") and not self.additive)

    def buffers(self, arrays: Arrays, slots: int, positions: int) -> Arrays:
        """Shared memory for some positions of each array, `slots` times."""

        def buffer(name, x):
            if self._is_multiplied(name):
                return swizzle((slots, positions, x.shape[2]), x.dtype)
            # [slots, H] of w, which has no positions; else [slots, rows of the array, positions]
            last = x.shape[1:] if name == "w" else (x.shape[1], positions)
            return plgpu.SMEM((slots, *last), x.dtype)

        return Arrays(**{name: buffer(name, x) for name, x in arrays.present().items()})

    def copy(self, arrays: Arrays, buffers: Arrays, row, position, barrier) -> None:
        """Starts the copies that fill `buffers` from `position` on; each arrives at the barrier.

        `row` is one of q; those of the other arrays follow from it.
        """
        # What `buffers` has a slot of: [positions, width], [rows, positions], or w's [H].
        for name, buffer in buffers.present().items():
            x, of = getattr(arrays, name), row
            # Query rows of a group share a row of keys; heads and rounds share a row of ranges.
            if name in ("k", "v"):
                of = lax.div(row, jnp.int32(self.group))
            if name in ("ranges", "slots"):
                of = lax.div(row, jnp.int32(self.sharing))
            if self._is_multiplied(name):
                source = x.at[of, pl.ds(position, buffer.shape[0])]
            elif name == "w":
                source = x.at[of]
            else:
                source = x.at[of, :, pl.ds(position, buffer.shape[1])]
            plgpu.copy_gmem_to_smem(source, buffer, barrier)


class Queue(NamedTuple):
    """The tiles of a program, in the order in which their columns pass through shared memory.

    Attributes:
      visits: blocks of columns that each block of rows visits, [V, blocks, 2] int32: the first, and
        how many from there on.
      block: index of the program's block of rows, as `visits` counts them.
      pieces: number of tiles that a block of columns makes.
      first: first row of q that is visited.
      rows: number of rows of q from there on, which share a row of `visits`.
      sharing: number of rows of q that share a row of `visits`.
      ready: barrier that completes when the program's own rows are there.
      full: barrier of each slot that completes when the slot has been filled.
      free: barrier of each slot that completes when every warpgroup has read the slot.
      copy: function (row of q, tile, slot, barrier) that starts the copies into a slot.
      leads: whether this warpgroup is the one that copies.
    """

    visits: Any
    block: jax.Array
    pieces: int
    first: jax.Array
    rows: int
    sharing: int
    ready: Any
    full: Any
    free: Any
    copy: Callable
    leads: jax.Array

    def go_through(self, compute: Callable, carry):
        """carry = compute(row of q, tile, slot, carry) for every tile; the last carry."""
        visits_row = lax.div(self.first, jnp.int32(self.sharing))
        # Blocks of columns to tiles: a block makes `pieces` of them.
        start = self.visits[visits_row, self.block, 0] * self.pieces
        count = self.visits[visits_row, self.block, 1] * self.pieces
        steps = self.rows * count

        def row_and_tile(step):
            return self.first + lax.div(step, count), start + lax.rem(step, count)

        def fetch(step):
            @pl.when(self.leads & (step < steps))
            def _copy():
                slot = lax.rem(step, jnp.int32(STAGES))
                self.copy(*row_and_tile(step), slot, self.full.at[slot])

        for stage in range(STAGES):
            fetch(jnp.int32(stage))
        plgpu.barrier_wait(self.ready)

        def use_slot(step, carry):
            slot = lax.rem(step, jnp.int32(STAGES))
            plgpu.barrier_wait(self.full.at[slot])
            # What compute returns is in registers, and what it adds to is memory of its own.
            carry = compute(*row_and_tile(step), slot, carry)
            plgpu.commit_smem()  # the slot was read; only then may a copy overwrite it
            plgpu.barrier_arrive(self.free.at[slot])

            @pl.when(self.leads)
            def _wait_for_others():
                plgpu.barrier_wait(self.free.at[slot])

            fetch(step + STAGES)
            return carry

        return lax.fori_loop(0, steps, use_slot, carry)


class Tile(NamedTuple):
    """A warpgroup's 64 rows against some columns, in the registers of its threads.

    Attributes:
      columns: number of columns.
      queries: axis of the queries: 0 where they are the tile's rows, 1 where they are its columns.
      interpret: whether the tile is simulated on the CPU, which knows no layouts of registers, nor
        wgmma from them.
      scale: factor of the dot product.
    """

    columns: int
    queries: int
    interpret: bool
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        return ROWS, self.columns

    def _laid_out(self, x: jax.Array, axis: int | None) -> jax.Array:
        """x of the whole tile (None), of its rows (0) or of its columns (1), in registers."""
        if self.interpret:
            return x
        # One number for each row is a tile reduced along its columns (axis 1), and the reverse.
        layout = plgpu.Layout.WGMMA
        return plgpu.layout_cast(x, layout if axis is None else layout.reduce(1 - axis))

    def zeros(self, width: int | None = None) -> jax.Array:
        """Float32 for each row, [64] or [64, width]."""
        if width is None:
            return self._laid_out(jnp.zeros(ROWS, jnp.float32), 0)
        return self._laid_out(jnp.zeros((ROWS, width), jnp.float32), None)

    def read(self, ref, axis: int) -> jax.Array:
        """What belongs to the rows (axis 0) or columns (1), from shared memory."""
        return self._laid_out(ref[...], axis)

    def spread(self, ref, axis: int) -> jax.Array:
        """What belongs to the rows (axis 0) or columns (1), over the whole tile."""
        return lax.broadcast_in_dim(self.read(ref, axis), self.shape, [axis])

    def visible(self, ranges, slots, first_key) -> jax.Array:
        """Which pairs count.

        Args:
          ranges: ranges of the queries in shared memory, [2 + 2E, queries].
          slots: slots of the keys in shared memory, [E, keys]; None where E is 0.
          first_key: position of the tile's first key.
        """
        # [2 + 2E, queries]: first, end, E firsts, E ends
        keys, others = 1 - self.queries, (ranges.shape[0] - 2) // 2
        key = self._laid_out(lax.broadcasted_iota(jnp.int32, self.shape, keys), None) + first_key

        def of_queries(i):
            return self.spread(ranges.at[i], self.queries)

        # [64, columns] booleans, whichever axis is the queries'
        shows = (key >= of_queries(0)) & (key < of_queries(1))
        for e in range(others):
            slot = self.spread(slots.at[e], keys)
            shows &= (slot < of_queries(2 + e)) | (slot >= of_queries(2 + others + e))
        return shows

    def logits(self, rows, columns, w) -> jax.Array:
        """The scaled dot product of [64, H] and [columns, H], or the additive score.

        That is Σ_h w_h tanh(rows_h + columns_h), of [H, 64], [H, columns] and [H]: one hidden unit
        after another, for each pair of positions one instruction, tanh.approx.f32. Its relative
        error is at most 2⁻¹¹ by NVIDIA's PTX manual, eight times finer than bfloat16's rounding.
        """
        if w is None:
            product = self.matmul(rows, columns, transposed=True)
            return product if self.scale == 1.0 else product * self.scale

        def add_unit(h, total):
            row, column = self.unit(h, rows, columns)
            return total + tiles.unit_logits(row, column, w[h])

        return lax.fori_loop(0, w.shape[0], add_unit, self.zeros(self.columns), unroll=2)

    def unit(self, h, rows, columns) -> tuple[jax.Array, jax.Array]:
        """A hidden unit of [H, 64] and [H, columns], each over the tile, float32."""
        row = self.spread(rows.at[h], 0)
        column = self.spread(columns.at[h], 1)
        return row.astype(jnp.float32), column.astype(jnp.float32)

    def matmul(self, a, b, *, transposed: bool = False, onto: jax.Array | None = None) -> jax.Array:
        """a b, or a bᵀ, in float32 by wgmma, added onto something.

        a is in shared memory or in registers, b in shared memory.
        """
        # wgmma takes a from registers too, which the simulation on a CPU cannot.
        if self.interpret and isinstance(a, jax.Array):
            b = b[...].T if transposed else b[...]
            product = jnp.dot(a, b, preferred_element_type=jnp.float32)
            return product if onto is None else onto + product
        b = b.transpose((1, 0)) if transposed else b
        if onto is not None:
            return pl.run_state(lambda total: plgpu.wgmma(total, a, b))(plgpu.ACC.init(onto))

        def multiply(total):
            plgpu.wgmma(total, a, b)
            return total[...]

        return pl.run_scoped(multiply, plgpu.ACC((ROWS, b.shape[1]), jnp.float32))


def swizzle(shape: tuple[int, ...], dtype) -> Any:
    """Shared memory in the order that wgmma reads without bank conflicts."""
    # Rows of 128 bytes, eight to a tile, as the swizzle of 128 bytes wants them.
    across = 128 // jnp.dtype(dtype).itemsize
    transforms = plgpu.TilingTransform((8, across)), plgpu.SwizzleTransform(128)
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def write(value: jax.Array, buffer, target) -> None:
    """A warpgroup's tile from registers through shared memory to the device's memory."""
    # Registers → shared memory; committed before the copy engine, another proxy, reads it.
    buffer[...] = value.astype(buffer.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(buffer, target)
    plgpu.wait_smem_to_gmem(0)
