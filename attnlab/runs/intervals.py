"""How far means of a few seeds may be off, and what that decides: Student's t, Welch's of two."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence

FEWEST = 3  # values that decide anything: two may be near each other, or equal, by chance
_MOST = 20  # seeds that anyone would train


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
    error, freedom = _standard_error(samples, count)
    return float(stdtrit(freedom, 1 - 0.025 / comparisons)) * error if error else 0.0


def p_value(tie: float, *samples: Sequence[float], beyond: float = 0) -> float:
    """The probability of such values if what `side` says of them were not so; 1 where it is None.

    Of a side: of a mean, or a gap of two, at least as far from ±`beyond`, on both sides, if it were
    there. Of a tie: of one as far from the nearer of its bounds ±tie, if it were there (two
    one-sided tests, Schuirmann 1987).

    >>> round(p_value(0, [1.0, 2.0, 3.0]), 3), round(p_value(9, [-1.0, 0.0, 1.0]), 3)
    (1.0, 0.002)
    """
    from scipy.special import stdtr

    decided = side(tie, *samples, beyond=beyond)
    if decided is None:
        return 1.0
    error, freedom = _standard_error(samples)
    gap = abs(difference(*samples))
    distance = gap - beyond if decided else tie - gap
    one_sided = float(stdtr(freedom, -distance / error))
    return 2 * one_sided if decided else one_sided


def reject_by_holm(p_values: Sequence[float], level: float = 0.05) -> list[bool]:
    """Which of several hypotheses are rejected, one of them wrongly with probability `level`.

    The smallest p-value is held against level / m, the next against level / (m − 1), and so on up
    to the first that fails (Holm 1979).

    >>> reject_by_holm([0.03, 0.01, 0.04, 0.001])
    [False, True, False, True]
    """
    rejected = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for place, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - place):
            break
        rejected[index] = True
    return rejected


def _standard_error(
    samples: Sequence[Sequence[float]], count: int | None = None
) -> tuple[float, float]:
    """The standard error of a mean, or of the gap of two, and its degrees of freedom (Welch)."""
    counts = [count or len(values) for values in samples]
    squares = [statistics.variance(x) / n for x, n in zip(samples, counts, strict=True)]
    if not sum(squares):
        return 0.0, math.inf
    per = sum(square**2 / (n - 1) for square, n in zip(squares, counts, strict=True))
    return math.sqrt(sum(squares)), sum(squares) ** 2 / per


def difference(*samples: Sequence[float]) -> float:
    """The mean of some values, or the gap of two means."""
    first, *others = map(statistics.fmean, samples)
    return first - sum(others)


def side(
    tie: float, *samples: Sequence[float], comparisons: int = 1, beyond: float = 0
) -> int | None:
    """The sign of a mean, or of the gap of two; 0 = a tie; None = undecided.

    Args:
      tie: bound that the whole interval of a tie is within, on both sides of 0.
      samples: values, as of `half_width`; fewer than `FEWEST`, or equal ones, decide nothing.
      comparisons: number, as of `half_width`.
      beyond: bound that the whole interval of a side is beyond, as that of a tie is to be refuted.

    >>> side(0, [1.0, 1.1, 1.2]), side(2, [1.0, 1.1, 1.2]), side(0, [-1.0, 1.0, 3.0])
    (1, 0, None)
    >>> side(1, [1.0, 1.1, 1.2]), side(1, [1.0, 1.1, 1.2], beyond=1)
    (1, None)
    >>> side(0, [1.0, 1.1, 1.2], [2.0, 2.1, 2.2]), side(0, [9.0, 9.0])
    (-1, None)
    """
    gap, width = difference(*samples), half_width(*samples, comparisons=comparisons)
    if min(map(len, samples)) < FEWEST or width == 0:
        return None
    if abs(gap) + width <= tie:
        return 0
    return int(math.copysign(1, gap)) if abs(gap) - width > beyond else None


def describe_undecided(
    tie: float, *samples: Sequence[float], comparisons: int = 1, beyond: float = 0
) -> str:
    """What is said where there is no side: how many seeds would decide it if they vary as these.

    Where those are more than anyone would train, the far end of the interval bounds the effect.

    >>> describe_undecided(0, [-1.0, 1.0, 3.0]), describe_undecided(0, [1.0])
    ('undecided: 18 seeds would decide it', 'undecided: one seed shows no variance')
    >>> describe_undecided(0, [-1.0, 0.1, 1.0]), describe_undecided(0, [1.0, 2.0, math.inf])
    ('undecided: over 20 seeds would decide it, |gap| < 2.52', 'undecided: a score is not finite')
    >>> describe_undecided(0, [0.0, 0.0])
    'undecided: equal seeds show no variance'
    """
    if min(map(len, samples)) < 2:
        return "undecided: one seed shows no variance"
    gap = abs(difference(*samples))
    if not math.isfinite(gap):
        return "undecided: a score is not finite"
    if half_width(*samples) == 0:  # by chance, of so few
        return "undecided: equal seeds show no variance"

    def decide(count: int) -> bool:
        width = half_width(*samples, comparisons=comparisons, count=count)
        return width < max(gap - beyond, tie - gap)

    seeds = FEWEST + bisect.bisect_left(range(FEWEST, _MOST + 1), True, key=decide)
    if seeds > _MOST:
        most = gap + half_width(*samples, comparisons=comparisons)
        return f"undecided: over {_MOST} seeds would decide it, |gap| < {most:.3g}"
    return f"undecided: {seeds} seeds would decide it"
