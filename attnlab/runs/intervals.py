"""How far means of a few seeds may be off, and what that decides: Student's t, Welch's of two."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence

__all__ = ["FEWEST", "describe_undecided", "difference", "half_width", "side"]

FEWEST = 3  # values that decide anything: two may be near each other, or equal, by chance
_MOST = 1000  # seeds that anyone would train


def half_width(*samples: Sequence[float], comparisons: int = 1, count: int | None = None) -> float:
    """Half the 95 % interval of a mean, or of the gap of two; infinite for a single value.

    Args:
      samples: values of the seeds; and those of what it is compared with (Welch 1947).
      comparisons: number of means that are looked at together, which share the 5 % (Bonferroni).
      count: number of seeds, if as many varied as these; None = as many as there are.

    >>> round(half_width([1.0, 2.0, 3.0]), 2), round(half_width([1.0, 2.0, 3.0], comparisons=3), 2)
    (2.48, 4.42)
    >>> round(half_width([1.0, 2.0, 3.0], [5.0, 6.0, 7.0]), 2)  # 4 degrees of freedom
    2.27
    """
    from scipy.special import stdtrit  # a fifth of a second to import

    if min(map(len, samples)) < 2:
        return math.inf
    counts = [count or len(values) for values in samples]
    squares = [statistics.variance(x) / n for x, n in zip(samples, counts, strict=True)]
    if not sum(squares):
        return 0.0
    per = sum(square**2 / (n - 1) for square, n in zip(squares, counts, strict=True))
    quantile = float(stdtrit(sum(squares) ** 2 / per, 1 - 0.025 / comparisons))
    return quantile * math.sqrt(sum(squares))


def difference(*samples: Sequence[float]) -> float:
    """The mean of some values, or the gap of two means."""
    first, *others = map(statistics.fmean, samples)
    return first - sum(others)


def side(tie: float, *samples: Sequence[float], comparisons: int = 1) -> int | None:
    """The sign of a mean, or of the gap of two; 0 = a tie; None = undecided.

    Args:
      tie: bound that the whole interval of a tie is within, on both sides of 0.
      samples: values, as of `half_width`; fewer than `FEWEST` decide nothing.
      comparisons: number, as of `half_width`.

    >>> side(0, [1.0, 1.1, 1.2]), side(2, [1.0, 1.1, 1.2]), side(0, [-1.0, 1.0, 3.0])
    (1, 0, None)
    >>> side(0, [1.0, 1.1, 1.2], [2.0, 2.1, 2.2]), side(0, [9.0, 9.0])
    (-1, None)
    """
    gap, width = difference(*samples), half_width(*samples, comparisons=comparisons)
    if min(map(len, samples)) < FEWEST:
        return None
    if abs(gap) + width <= tie:
        return 0
    return int(math.copysign(1, gap)) if abs(gap) > width else None


def describe_undecided(tie: float, *samples: Sequence[float], comparisons: int = 1) -> str:
    """What is said where there is no side: how many seeds would decide it if they vary as these.

    >>> describe_undecided(0, [-1.0, 1.0, 3.0]), describe_undecided(0, [1.0])
    ('undecided: 18 seeds would decide it', 'undecided: one seed shows no variance')
    >>> describe_undecided(0, [1.0, 2.0, math.inf])
    'undecided: a score is not finite'
    """
    if min(map(len, samples)) < 2:
        return "undecided: one seed shows no variance"
    gap = abs(difference(*samples))
    if not math.isfinite(gap):
        return "undecided: a score is not finite"

    def decide(count: int) -> bool:
        width = half_width(*samples, comparisons=comparisons, count=count)
        return width < max(gap, tie - gap)

    seeds = FEWEST + bisect.bisect_left(range(FEWEST, _MOST), True, key=decide)
    more = " or more" if seeds == _MOST else ""
    return f"undecided: {seeds:,}{more} seeds would decide it"
