"""Positions: pure functions that tell attention where a token stands.

Letters: *B batch axes, T length, D model width, N heads, H head width (even for rotary).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from attnlab.core.axes import widen
from attnlab.core.checks import as_array, require
from attnlab.core.shapes import fit

__all__ = ["axial", "learned", "require_pairs", "rotary", "sinusoid_init", "sinusoids"]


def sinusoids(positions: ArrayLike, width: int, *, max_wavelength: float = 10_000.0) -> jax.Array:
    """Sine and cosine of each position at `width`/2 wavelengths from 2π to 2π·max_wavelength.

    PE[p, 2i] = sin(p / m^{2i/width}), PE[p, 2i + 1] = cos(p / m^{2i/width}), m = max_wavelength.

    Args:
      positions: numbers [*B, T] (or any shape).
      width: number of features, even.
      max_wavelength: the longest wavelength, in units of 2π positions.

    Returns:
      [*B, T, width] float32. Source: Vaswani et al. 2017, §3.5 (sines and cosines interleaved).

    Raises:
      ValueError: if width is odd.

    Example:
      >>> import numpy as np
      >>> np.asarray(sinusoids(jnp.arange(2), 4), np.float64).round(2)
      array([[0.  , 1.  , 0.  , 1.  ],
             [0.84, 0.54, 0.01, 1.  ]])
    """
    angles = _angles(positions, width, max_wavelength)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*angles.shape[:-1], width)


def rotary(x: jax.Array, positions: ArrayLike, *, max_wavelength: float = 10_000.0) -> jax.Array:
    """Turns each pair (x[i], x[i + H/2]) by the angle p / m^{2i/H}: q·k then sees p_q − p_k only.

    Args:
      x: queries or keys [*B, T, N, H], H even; turned in at least float32.
      positions: positions of the tokens, numbers [T] or [*B, T].
      max_wavelength: constant m of the formula.

    Returns:
      x turned, same shape and dtype; lengths of vectors are kept.

    Raises:
      ValueError: if H is odd, or for positions of another length or batch.

    Source: Su et al. 2021, §3.4.2, with pairs (i, i + H/2) as in GPT-NeoX instead of neighbors.
    """
    x = jnp.asarray(x)
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    angles = _angles(positions, x.shape[-1], max_wavelength, dtype)
    angles = angles[..., None, :]  # heads turn alike
    fit("x: *B T N H", x, "positions: *B|1 T", positions)
    angles = angles.reshape((1,) * (x.ndim - angles.ndim) + angles.shape)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(angles.dtype), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def learned(table: jax.Array, positions: ArrayLike) -> jax.Array:
    """Rows of a learned table.

    Args:
      table: table of vectors, [max_length, width].
      positions: positions of the tokens, integers [*B, T]. Those that are known while tracing are
        checked; of others, what is outside of the table is NaN.

    Returns:
      [*B, T, width]. Source: Gehring et al. 2017, §3.1; Vaswani et al. 2017, Table 3 (E).

    Raises:
      ValueError: if a known position is outside the table.
    """
    at = _require_within(positions, table.shape[0])
    return jnp.take(widen(table), at, axis=0, mode="fill").astype(table.dtype)


def axial(tables: Sequence[jax.Array], positions: ArrayLike) -> jax.Array:
    """Concatenated rows of several small tables: position p is a cell of a grid of n_1 × n_2 × ….

    E[p] = [table_1[i_1], table_2[i_2], …] with p = i_1·n_2·n_3… + i_2·n_3… + …, the last digit
    running fastest: Σ n_k·d_k numbers instead of Π n_k · Σ d_k.

    Args:
      tables: tables of vectors, [n_k, d_k] each.
      positions: positions of the tokens, integers [*B, T]. Those that are known while tracing are
        checked; of others, what is outside of the grid is NaN.

    Returns:
      [*B, T, Σ d_k]. Source: Kitaev et al. 2020, released code; Ho et al. 2019.

    Raises:
      ValueError: if a known position is outside the grid.

    Example:
      >>> tables = jnp.array([[0.0], [1.0]]), jnp.array([[10.0], [20.0], [30.0]])
      >>> axial(tables, jnp.arange(6)).tolist()[-2:]
      [[1.0, 20.0], [1.0, 30.0]]
    """
    sizes = [table.shape[0] for table in tables]
    count = math.prod(sizes)
    at = _require_within(positions, count)
    outside = at == count
    parts = []
    for table, size in zip(reversed(tables), reversed(sizes), strict=True):
        digit = jnp.where(outside, size, at % size)
        parts.append(jnp.take(widen(table), digit, axis=0, mode="fill").astype(table.dtype))
        at = at // size
    return jnp.concatenate(parts[::-1], axis=-1)


def _require_within(positions: ArrayLike, count: int) -> jax.Array:
    """The positions; those that are known must be in [0, count), others outside become `count`."""
    positions = as_array("positions", positions)
    require(
        jnp.issubdtype(positions.dtype, jnp.integer),
        f"positions must be integers; got {positions.dtype} (cast them)",
    )
    if not isinstance(positions, jax.core.Tracer) and positions.size:
        known = np.asarray(positions)  # jnp's operations would be traced under jit
        first, last = int(known.min()), int(known.max())
        require(
            first >= 0 and last < count,
            f"positions must be in [0, {count}), the learned ones; got {first} to {last}"
            " (make the table longer)",
        )
    positions = positions.astype(int)  # a smaller type may not hold count
    return jnp.where((positions >= 0) & (positions < count), positions, count)


def sinusoid_init(key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> jax.Array:
    """An initializer of a learned table: row p is `sinusoids` of p, and nothing is drawn.

    What depends on a distance is then there before the first step of training, for every position
    at once. Positions of the released Reformer (Kitaev et al. 2020) begin so.

    Args:
      key: PRNG key, as every initializer takes it; not used.
      shape: shape of the table, (max_length, width).
      dtype: dtype of the table.
    """
    del key
    length, width = shape
    return sinusoids(jnp.arange(length), width).astype(dtype)


def require_pairs(width: int) -> None:
    """Refuses a width whose features are not pairs, a sine and a cosine each.

    Args:
      width: number of features.

    Raises:
      ValueError: it is odd.
    """
    require(width % 2 == 0, f"positions are coded in pairs, so the width must be even; got {width}")


def _angles(
    positions: ArrayLike, width: int, max_wavelength: float, dtype: Any = jnp.float32
) -> jax.Array:
    """positions / max_wavelength^{2i/width}, [..., width / 2], in float32 less whole turns.

    As 2⁻³² of a turn is the unit and 32 bits overflow, whole turns drop out of an integer's product
    exactly; what a frequency has beyond 32 bits is added. So it is as near at 10⁹ as at 1.
    """
    require_pairs(width)
    require(max_wavelength > 0, f"max_wavelength must be more than 0; got {max_wavelength}")
    positions = as_array("positions", positions)
    require(positions.dtype != bool, "positions must be numbers; got booleans (cast them)")
    positions = positions[..., None]
    # [..., width / 2], in float64
    frequencies = float(max_wavelength) ** -(np.arange(0, width, 2) / width)
    frequencies = frequencies.reshape((1,) * (positions.ndim - 1) + frequencies.shape)
    if dtype == jnp.float64:
        return positions * jnp.asarray(frequencies, dtype)
    steps = frequencies * (2**32 / math.tau)  # units a position
    whole_steps = np.round(steps)
    rest = positions % 1  # of integers 0
    integers = (positions - rest).astype(jnp.int32)
    phase = integers.astype(jnp.uint32) * (whole_steps % 2**32).astype(np.uint32)
    phase = jax.lax.bitcast_convert_type(phase, jnp.int32).astype(dtype)
    phase += integers.astype(dtype) * (steps - whole_steps).astype(np.float32)
    return phase * np.float32(math.tau / 2**32) + rest.astype(dtype) * frequencies.astype(
        np.float32
    )
