"""The additive score's tile on a TPU: Σ_h w_h tanh(q_h + k_h) and its gradients, unit by unit.

A hidden unit's part of a tile comes from a row, what stands along the lanes, and a column, what
stands along the sublanes; no array has a third axis. Units are read `UNITS` at once, and a tile is
passed through in strips, so that a strip is read once for so many units.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from attnlab.ops.kernels.pallas import tiles

UNITS = 16  # a tile of bfloat16 has 16 sublanes; widths are padded to this too
# Positions along the sublanes. Of 16 to 128, the compiler for v5e needs the fewest cycles for 128.
_STRIP = 128


def add_logits(x_row: Any, x_column: Any, w: Any, tile: Any, column: Any) -> None:
    """Writes the logits of a tile.

    Args:
      x_row: queries [H, n].
      x_column: keys [H, m].
      w: weights of the hidden units in scalar memory, [1, H].
      tile: logits [m, n] float32, which this function writes.
      column: scratch memory [m, UNITS].
    """
    tile[...] = jnp.zeros_like(tile)

    def add(first_unit, rows, columns, strip):
        s = tile[strip]
        for u in range(UNITS):
            unit = rows[u : u + 1], columns[:, u : u + 1]
            s += tiles.unit_logits(*unit, w[0, first_unit + u])
        tile[strip] = s
        return ()

    _pass_through(x_row, x_column, column, add, lambda *_: None, ())


def row_gradients(x_row: Any, x_column: Any, w: Any, ds: Any, out: Any, out_w: Any, column: Any):
    """Adds Σ_columns of ds ∘ (slope of the additive score) to `out`, a unit at a time.

    Args:
      x_row: array along the lanes, q or k, [H, n]; its gradient is computed.
      x_column: array along the sublanes, the other of q and k, [H, m].
      w: weights of the hidden units in scalar memory, [1, H].
      ds: gradients of the tile's logits, [m, n].
      out: gradient of `x_row` [H, n], which this function adds to.
      out_w: gradient of w [H, lanes], which this function adds to, to be summed over the lanes; or
        None.
      column: scratch memory [m, UNITS].
    """
    kinds = 1 if out_w is None else 2

    def add(first_unit, rows, columns, strip, *sums):
        ds_strip = ds[strip]
        new = []
        for u in range(UNITS):
            terms = tiles.unit_gradients(rows[u : u + 1], columns[:, u : u + 1], ds_strip)
            new += [t.reshape(-1, 8, t.shape[1]).sum(0) for t in terms[:kinds]]
        return tuple(a + b for a, b in zip(sums, new, strict=True))

    def write(first_unit, sums):
        for u in range(UNITS):
            at = pl.ds(first_unit + u, 1)
            slope = sums[u * kinds].sum(0, keepdims=True)
            out[at] += w[0, first_unit + u] * slope
            if out_w is not None:
                tanh = sums[u * kinds + 1].sum(0, keepdims=True)
                lanes = out_w.shape[1]
                out_w[at] += sum(tanh[:, i : i + lanes] for i in range(0, x_row.shape[1], lanes))

    # Eight sublanes of each sum: they are added up once, at the end.
    zeros = (jnp.zeros((8, x_row.shape[1]), jnp.float32),) * (UNITS * kinds)
    _pass_through(x_row, x_column, column, add, write, zeros)


def _pass_through(x_row, x_column, column, add, write, start):
    """For each `UNITS` units: carry = add(unit, rows, columns, strip, *carry), then write."""
    strip = math.gcd(_STRIP, column.shape[0])

    def units(i, _):
        first_unit = i * UNITS
        at = pl.ds(pl.multiple_of(first_unit, UNITS), UNITS)
        rows = x_row[at].astype(jnp.float32)
        column[...] = x_column[at].astype(jnp.float32).T

        def one_strip(j, carry):
            here = pl.ds(pl.multiple_of(j * strip, strip), strip)
            return add(first_unit, rows, column[here], here, *carry)

        write(first_unit, lax.fori_loop(0, column.shape[0] // strip, one_strip, start))

    lax.fori_loop(0, x_row.shape[0] // UNITS, units, None)
