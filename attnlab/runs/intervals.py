"""How far the mean of a few seeds may be off: Student's t, as two standard errors are too few."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["FEWEST", "half_width", "sign"]

FEWEST = 3  # values: two that are near each other by chance would decide anything


def half_width(values: Sequence[float], comparisons: int = 1) -> float:
    """Half the two-sided 95 % interval of the mean; infinite for fewer than `FEWEST` values.

    Args:
      values: values of the seeds.
      comparisons: number of means that are looked at together, which share the 5 % (Bonferroni).

    >>> round(half_width([1.0, 2.0, 3.0]), 2), round(half_width([1.0, 2.0, 3.0], 3), 2)
    (2.48, 4.42)
    """
    count = len(values)
    if count < FEWEST:
        return math.inf
    low, high = 0.0, 1e6  # for two degrees of freedom, the fewest, enough for 1e10 comparisons
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if _inside(middle, count - 1) < 1 - 0.05 / comparisons:
            low = middle
        else:
            high = middle
    return high * statistics.stdev(values) / math.sqrt(count)


def sign(values: Sequence[float], comparisons: int = 1) -> int:
    """1 or −1 where the mean is above or below 0 beyond `half_width`, else 0.

    >>> sign([1.0, 1.1, 1.2]), sign([-1.0, -1.1, -1.2]), sign([-1.0, 1.0, 3.0]), sign([9.0, 9.0])
    (1, -1, 0, 0)
    """
    if len(values) < FEWEST:
        return 0
    mean = statistics.fmean(values)
    return int(math.copysign(1, mean)) if abs(mean) > half_width(values, comparisons) else 0


def _inside(t: float, freedom: int) -> float:
    """P(|T| < t) of Student's distribution (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    total, term = 0.0, math.cos(angle) ** odd
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total
