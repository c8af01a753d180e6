"""A tile of attention over ranges in a TPU's memory: what it reads, its logits and its mask.

Everything stands with positions along the 128 lanes: q as [M, H, T], the context as [M, D, T], what
belongs to a query as [M, 1, T]. No array's last axis is then short, which would be padded to 128. A
tile is [bk, bq]: keys along the sublanes, so that a query's range and statistics are rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attnlab.core.axes import pad_to_multiple
from attnlab.ops.kernels.pallas import tiles
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Visible, query_blocks
from attnlab.ops.kernels.pallas.tpu.additive import UNITS, add_logits


class Operands(NamedTuple):
    """The arrays of one call, or a kernel's references to their blocks.

    Attributes:
      q: queries [M, H, T].
      k: keys [M / group, H, S].
      v: values [M / group, D, S].
      w: weights of the additive score's hidden units, [M, 1, H] float32, or None.
      first: first key that each query sees, [V, 1, T].
      extent: number of keys from there on, [V, 1, T].
      slot: slot of each key in E other orders, [V, E, S], or None.
      seen_first: first slot that each query may see in these orders, [V, E, T], or None.
      seen_extent: number of slots from there on, [V, E, T], or None.
      dout: gradient of the context, [M, D, T]; None in the forward.
      lse: log-sum-exp of each query, [M, 1, T]; None in the forward.
      delta: δ = Σ_d do ∘ o of each query, [M, 1, T]; None in the forward.
    """

    q: Any
    k: Any
    v: Any
    w: Any
    first: Any
    extent: Any
    slot: Any = None
    seen_first: Any = None
    seen_extent: Any = None
    dout: Any = None
    lse: Any = None
    delta: Any = None

    @classmethod
    def of(cls, x: Inputs, visible: Visible) -> Operands:
        """What the forward reads."""
        slot, seen_first, seen_extent = visible.seen or (None, None, None)
        return cls(
            # [M, T, H] to [M, H, T], and so on; padded widths add 0 to every product.
            q=by_lane(x.q),
            k=by_lane(x.k),
            v=by_lane(x.v),
            w=None if x.w is None else pad_to_multiple(x.w, 1, UNITS).astype(jnp.float32)[:, None],
            # An axis of 1: a block is then [1, bq], a row along the lanes.
            first=visible.first[:, None],
            extent=visible.extent[:, None],
            slot=slot,
            seen_first=seen_first,
            seen_extent=seen_extent,
        )


class Place(NamedTuple):
    """Where a step of a grid is: a row of the queries, a block of them, and one of keys."""

    row: Any
    query_block: Any
    key_block: Any


class Walk(NamedTuple):
    """A grid: what it reads in scalar memory, and where its steps are."""

    grid: tuple[int, ...]
    prefetched: tuple[jax.Array, ...]
    place: Callable[..., Place]
    visits: Callable[..., jax.Array]


def over_queries(x: Operands, visible: Visible, config: Config) -> Walk:
    """Rows × query blocks × the key blocks that each visits."""
    num_rows, _, num_queries = x.q.shape
    # [V, T / bq]; row m of the queries has row m // (M / V) of them.
    blocks = query_blocks(visible, config, x.k.shape[2])
    num_blocks = num_queries // config.block_q
    shared = num_rows // visible.first.shape[0]

    def place(row, block, visit, start, count):
        at = lax.div(row, np.int32(shared)) * num_blocks + block
        # Beyond the last it stays there: what is there already is not fetched again.
        return Place(row, block, start[at] + jnp.minimum(visit, jnp.maximum(count[at] - 1, 0)))

    def visits(row, block, visit, start, count):
        return visit < count[lax.div(row, np.int32(shared)) * num_blocks + block]

    # Flat, for scalar memory: [V · T / bq]
    prefetched = blocks.start.reshape(-1), blocks.number.reshape(-1)
    return Walk((num_rows, num_blocks, blocks.most), prefetched, place, visits)


def by_lane(x: jax.Array) -> jax.Array:
    """[.., positions, width] to [.., width, positions], the width padded to whole `UNITS`.

    Zeros add nothing to a dot product; to the additive score neither, as w is zero there.
    """
    return pad_to_multiple(jnp.swapaxes(x, 1, 2), 1, UNITS)


def specs(x: Operands, config: Config, place: Callable[..., Place]) -> Operands:
    """The block of each operand that a step of the grid needs; `place` maps the step's indices."""
    group = x.q.shape[0] // x.k.shape[0]
    shared = x.q.shape[0] // x.first.shape[0]

    def blocks(array, size, index):
        return None if array is None else pl.BlockSpec((None, array.shape[1], size), index)

    def of_queries(array, rows=1):
        def index(*step):
            at = place(*step)
            return lax.div(at.row, np.int32(rows)), 0, at.query_block

        return blocks(array, config.block_q, index)

    def of_keys(array, rows):
        def index(*step):
            at = place(*step)
            return lax.div(at.row, np.int32(rows)), 0, at.key_block

        return blocks(array, config.block_k, index)

    weights = None
    if x.w is not None:
        block = (None, 1, x.w.shape[2])
        weights = pl.BlockSpec(block, lambda *s: (place(*s).row, 0, 0), memory_space=pltpu.SMEM)
    return Operands(
        of_queries(x.q),
        of_keys(x.k, group),
        of_keys(x.v, group),
        weights,
        of_queries(x.first, shared),
        of_queries(x.extent, shared),
        of_keys(x.slot, shared),
        of_queries(x.seen_first, shared),
        of_queries(x.seen_extent, shared),
        of_queries(x.dout),
        of_queries(x.lse),
        of_queries(x.delta),
    )


def dot(a: jax.Array, b: jax.Array, axes: tuple[int, int], config: Config) -> jax.Array:
    """Σ over axis axes[0] of a and axes[1] of b, in float32."""
    dtype = jnp.promote_types(a.dtype, b.dtype)
    # Mosaic knows no products of bfloat16 of higher precision: they are exact.
    precision = config.precision if dtype == jnp.float32 else lax.Precision.DEFAULT
    # Axis axes[0] of a and axes[1] of b vanish; what is left of a comes first.
    return lax.dot_general(
        a.astype(dtype),
        b.astype(dtype),
        (((axes[0],), (axes[1],)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def shows(x: Operands, key_block: jax.Array, config: Config) -> jax.Array:
    """[bk, bq] booleans: which pairs of the tile count."""
    shape = config.block_k, config.block_q
    position = key_block * config.block_k + lax.broadcasted_iota(jnp.int32, shape, 0)
    # [bk, bq] positions of the keys against the queries' ranges [1, bq]
    visible = tiles.in_range(position, x.first[...], x.extent[...])
    if x.slot is not None:
        # [E, bk] to [bk, E]: one order's slots are a column, its ranges [1, bq] a row.
        slot = x.slot[...].T
        for e in range(slot.shape[1]):
            first, extent = x.seen_first[e : e + 1], x.seen_extent[e : e + 1]
            visible &= ~tiles.in_range(slot[:, e : e + 1], first, extent)
    return visible


def logits(x: Operands, config: Config, scratch: tuple[Any, ...]) -> jax.Array:
    """[bk, bq]; of the additive score they are added up in the scratch."""
    if x.w is None:
        # kᵀ q of [H, bk] and [H, bq]: the sum is along the sublanes of both.
        product = dot(x.k[...], x.q[...], (0, 0), config)
        return product if config.scale == 1.0 else product * config.scale
    tile, column = scratch
    # tile [bk, bq] float32, column [bk, UNITS]: keys turned to stand along the sublanes.
    add_logits(x.q, x.k, x.w, tile, column)
    return tile[...]


def unit_scratch(x: Operands, rows: int, lanes: int) -> tuple[Any, ...]:
    """A tile and a column of `UNITS` units, which only the additive score needs."""
    if x.w is None:
        return ()
    return pltpu.VMEM((rows, lanes), jnp.float32), pltpu.VMEM((rows, UNITS), jnp.float32)
