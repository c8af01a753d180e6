"""The judge: is an output as near to its truth as its dtype allows, in the mean and in each row?

A row is what one query or key has in one head: the last axis of an output. With the relative error
u of the dtype's rounding (2⁻⁸ in bfloat16, 2⁻²⁴ in float32), the truth y, and truths y' of inputs
that are off by ±u, each number, the unit of row r, over S keys, is

    unit_r = (1 + √S · 2⁻²⁴/u) · (rms(y'_r − y_r) + c_r) + u · rms(y_r).

So inputs may be rounded, S terms summed up in float32, and the output be rounded. c_r is for terms
that cancel: the gradient of a query that sees one key only is 0, but the difference of two terms as
large as those of other rows. So c_r is u · max_r rms(y_r), in gradients of what the weights depend
on; it is 0 in the context and in the gradient of the values, where nothing cancels.

An output passes if the root mean square of its errors is at most that of its units, and if no row's
error is more than four of its units. A lost row is as far off as it is large, so a thousand right
ones do not hide it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROW = ", worst row"  # after the name of an output
_LINEAR = ("context", "d_v")  # names of outputs in which nothing cancels
_FLOAT32 = 2.0**-24  # with which products of any dtype are summed


def rounding(dtype: Any) -> float:
    """The largest relative error u with which the dtype rounds a number."""
    return float(jnp.finfo(dtype).eps) / 2


def move(arrays: Mapping[str, Any], share: float, seed: int) -> dict[str, Any]:
    """The arrays, with every number moved up or down by this share of itself; integers as they are.

    Args:
      arrays: arrays by name, or pytrees of them.
      share: share of each number, u.
      seed: seed of the signs.
    """
    rng = np.random.default_rng(seed)

    def move(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "f":
            return x
        return x * (1 + share * rng.choice([-1, 1], x.shape)).astype(x.dtype)

    return jax.tree.map(move, dict(arrays))


def judge(
    got: Mapping[str, Any],
    true: Mapping[str, Any],
    nearby: Sequence[Mapping[str, Any]],
    *,
    dtype: Any,
    length: int,
) -> dict[str, float]:
    """Error over what is allowed, of each output in the mean and in its worst row; 1 passes.

    Args:
      got: outputs to be judged, by name.
      true: outputs of more precision, "context" and "d_NAME" of each gradient.
      nearby: outputs like the true ones, of inputs that are moved (`move`) by `rounding(dtype)`.
      dtype: dtype that `got` was computed in.
      length: number of keys, S.
    """
    ratios = {}
    for name, whole in true.items():
        units = make_units(name, whole, [near[name] for near in nearby], dtype, length)
        errors = measure_rows(got[name], whole)
        ratios[name] = ratio(_rms(errors.ravel()), _rms(units.ravel()))
        ratios[name + ROW] = ratio(errors, 4 * units)
    return ratios


def make_units(name: str, true: Any, nearby: Sequence[Any], dtype: Any, length: int) -> np.ndarray:
    """unit_r of each row of an output, in its shape without the last axis."""
    u = rounding(dtype)
    sizes = measure_rows(true, 0.0)
    apart = np.sqrt(np.mean([measure_rows(near, true) ** 2 for near in nearby], axis=0))
    canceled = 0.0 if name in _LINEAR else u * sizes.max(initial=0.0)
    return (1 + np.sqrt(length) * _FLOAT32 / u) * (apart + canceled) + u * sizes


def measure_rows(x: Any, y: Any) -> np.ndarray:
    """rms(x_r − y_r) of each row, infinite where x is not a number; one axis is one row."""
    with np.errstate(invalid="ignore"):  # inf - inf
        difference = np.asarray(x, np.float64) - np.asarray(y, np.float64)
    return _rms(np.where(np.isnan(difference), np.inf, difference))


def ratio(errors: Any, allowed: Any) -> float:
    """The largest error over what is allowed; 0 without an error, and always finite, for JSON."""
    errors = np.asarray(errors, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(errors == 0, 0.0, errors / allowed)
    return float(np.minimum(np.nan_to_num(ratios, nan=np.inf), 1e30).max(initial=0.0))


def _rms(x: np.ndarray) -> np.ndarray:
    """Root mean square along the last axis."""
    return np.sqrt(np.mean(np.atleast_1d(x * x), -1))
