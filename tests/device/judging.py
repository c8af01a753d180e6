"""How the numbers of a device are judged, against their truth in float64.

The inputs are numbers that bfloat16 can hold, so that one truth serves every dtype. float32
programs run at precision HIGHEST and are judged by it: the rounding of matrix products that is some
devices' default (TF32, bfloat16) is not allowed for.

An output passes if its error is small in the mean and in its worst row, a row being the numbers of
one query or key in one head:

* rms error ≤ 2 × that of the plain version, + ε × rms of the truth. The plain version computes the
  same function densely in the same dtype on the same device.
* in every row r, e_r ≤ 4·m·s_r + ε·t_r. e_r and t_r are the rms of the row's error and truth. s_r
  is the size of the terms that the row sums up, from the oracle: the rms that the row would have if
  every weight, and every logit's gradient at the size of its terms, had a random sign. m is the
  largest e_r / s_r of the plain version: its rounding relative to the terms. So a row of many
  small terms, or of terms that cancel, has a budget of its own, and a row that is lost is found:
  its e_r is s_r or more, while m is about ε. The factor is 4 because the largest of thousands of
  rows varies more than their mean; on a CPU the default's errors were 0.3 to 0.9 of 2·m·s_r.

A parameter's gradient is a few numbers, which sum up all terms. Whether two such sums err alike is
chance, so its budget in the mean has 2·ε × the size of its terms besides.

The plain version itself is held to eight times the error of exact arithmetic on inputs that are
rounded as the device's matrix products round them, in the worst row to sixteen times.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests import oracle

Arrays = dict[str, Any]
ROW = ", worst row"  # after the name of an output
PARAMETER = "d_parameter"  # begins the names of their gradients


class Truth(NamedTuple):
    """An oracle's answer.

    Attributes:
      values: "context" and the gradients "d_NAME", in float64.
      sizes: () -> s_r of every row, by name, in the shape of the values without the last axis; of
        outputs that have none, only the mean is judged.
    """

    values: Arrays
    sizes: Callable[[], Arrays] = dict


def row_sizes(noises: Sequence[Arrays]) -> Arrays:
    """s_r of every row, by name, from samples of the oracle with random signs."""
    return {
        name: np.sqrt(np.mean([oracle.row_rms(noise[name]) ** 2 for noise in noises], axis=0))
        for name in noises[0]
    }


def representable(x: Any) -> np.ndarray:
    """The nearest numbers that bfloat16 can hold, in float64; integers as they are."""
    x = np.asarray(x)
    return x if x.dtype.kind != "f" else x.astype(jnp.bfloat16).astype(np.float64)


def moved(arrays: Arrays, by: float) -> Arrays:
    """The arrays, with every number moved up or down by the fraction `by` of itself."""
    signs = np.random.default_rng(2)
    return {
        name: x * (1 + by * signs.choice([-1, 1], x.shape)) if x.dtype.kind == "f" else x
        for name, x in arrays.items()
    }


def rounding(dtype: str) -> float:
    """The largest relative error with which a matrix product may round an operand."""
    return float(jnp.finfo(dtype).eps) / 2


def judge(got: Arrays, plain: Arrays, true: Truth, dtype: str) -> dict[str, float]:
    """Error over budget of every output, in the mean and in the worst row; at most 1 passes."""
    return _judge(got, plain, true, dtype, times=2)


def judge_plain(plain: Arrays, off: Arrays, true: Truth, dtype: str) -> dict[str, float]:
    """Error over budget of the plain version; `off`: values of the truth for `moved` inputs."""
    return _judge(plain, off, true, dtype, times=8)


def _judge(
    got: Arrays, other: Arrays, true: Truth, dtype: str, *, times: float
) -> dict[str, float]:
    """Errors of `got` over a budget: `times` the errors of `other`, + rounding."""
    eps = float(jnp.finfo(dtype).eps)
    ratios, sizes = {}, true.sizes()
    for name, x in true.values.items():
        errors, allowed = (oracle.errors(y[name], x) for y in (got, other))
        budget = times * oracle.rms(allowed) + eps * oracle.rms(x)
        if name.startswith(PARAMETER) and name in sizes:
            budget += times * eps * oracle.rms(sizes[name])
        ratios[name] = over(oracle.rms(errors), budget)
        if x.ndim < 2 or name not in sizes:  # which have no rows
            continue
        errors, allowed, whole = (oracle.row_rms(y) for y in (errors, allowed, x))
        filled = sizes[name] > 0
        most = (allowed[filled] / sizes[name][filled]).max(initial=0.0)
        budgets = 2 * times * most * sizes[name] + eps * whole
        ratios[name + ROW] = over(errors, budgets)
    return ratios


def elsewhere(got: Arrays, plain: Arrays, part: Callable[[Any], Any], true: Truth) -> float:
    """The largest distance of a row from the plain version's, over what is allowed.

    It judges the rows whose truth is not known. Allowed is 4 × the error of the plain version's
    worst row among those that are known, because two such errors may add up and other rows may be
    larger (16 × for gradients, whose rows differ more), + two roundings of the row.
    """

    def row_rms(x: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.mean(jnp.square(x), -1))

    @jax.jit
    def distances(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, y = (z.astype(jnp.float32) for z in (x, y))
        return row_rms(x - y), row_rms(y)

    worst = 0.0
    for name, x in true.values.items():
        known = oracle.row_rms(oracle.errors(part(np.asarray(plain[name])), x)).max()
        times, eps = 4 if name == "context" else 16, float(jnp.finfo(plain[name].dtype).eps)
        apart, whole = (np.asarray(y, np.float64) for y in distances(got[name], plain[name]))
        worst = max(worst, over(apart, times * known + 2 * eps * whole))
    return worst


def past_moved(before: Any, after: Any, cut: int, dtype: str) -> float:
    """How far another future moved the past, over eight roundings of its largest number."""
    before, after = (np.asarray(np.asarray(x)[:, :cut], np.float64) for x in (before, after))
    return over(oracle.error(after, before), 8 * rounding(dtype) * np.abs(before).max())


def over(errors: Any, budgets: Any) -> float:
    """The largest error / budget; 0 without an error, and always finite, for JSON."""
    errors = np.asarray(errors, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(errors == 0, 0.0, errors / budgets)
    return float(np.minimum(np.nan_to_num(ratios, nan=np.inf), 1e30).max(initial=0.0))
