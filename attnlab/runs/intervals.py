"""How far the mean of a few seeds may be off: Student's t, as two standard errors are too few."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["FEWEST", "half_width", "sign"]

FEWEST = 3  # values that decide anything: two may be near each other, or equal, by chance


def half_width(values: Sequence[float], comparisons: int = 1) -> float:
    """Half the two-sided 95 % interval of the mean; infinite for a single value.

    Args:
      values: values of the seeds.
      comparisons: number of means that are looked at together, which share the 5 % (Bonferroni).

    >>> round(half_width([1.0, 2.0, 3.0]), 2), round(half_width([1.0, 2.0, 3.0], 3), 2)
    (2.48, 4.42)
    """
    from scipy.special import stdtrit  # a fifth of a second to import

    count = len(values)
    if count < 2:
        return math.inf
    quantile = float(stdtrit(count - 1, 1 - 0.025 / comparisons))
    return quantile * statistics.stdev(values) / math.sqrt(count)


def sign(values: Sequence[float], comparisons: int = 1) -> int:
    """1 or −1 where the mean is above or below 0 beyond `half_width`, else 0.

    >>> sign([1.0, 1.1, 1.2]), sign([-1.0, -1.1, -1.2]), sign([-1.0, 1.0, 3.0]), sign([9.0, 9.0])
    (1, -1, 0, 0)
    """
    if len(values) < FEWEST:
        return 0
    mean = statistics.fmean(values)
    return int(math.copysign(1, mean)) if abs(mean) > half_width(values, comparisons) else 0
