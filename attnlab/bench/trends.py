"""What the rows say: growth with the length, who overtakes whom, how long a sequence still fits."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from attnlab.bench.case import Result

Line = dict[int, float]  # length -> seconds or bytes


def seconds(result: Result) -> float | None:
    """The median time of a row that ran."""
    return result.median_seconds if result.status == "ok" else None


def memory(result: Result) -> float | None:
    """The memory of a row that ran."""
    return result.memory_bytes if result.status == "ok" else None


def lines(
    results: Iterable[Result], passes: str, value: Callable[[Result], float | None]
) -> dict[str, Line]:
    """One line a mechanism, in order of first appearance; lengths rise along it."""
    found: dict[str, Line] = {}
    for result in results:
        if result.case.passes == passes:
            line = found.setdefault(result.case.label, {})
            number = value(result)
            if number:
                line[result.case.length] = number
    return {label: dict(sorted(line.items())) for label, line in found.items()}


def exponent(line: Line) -> float | None:
    """The slope p of value ∝ n^p: least squares in log-log over the longer half of the lengths.

    Short lengths are left out because fixed costs flatten them. At least three lengths are used
    where there are three.

    >>> round(exponent({n: 5e-9 * n**2 for n in (256, 512, 1024, 2048)}), 3)
    2.0
    """
    points = [(math.log(n), math.log(value)) for n, value in sorted(line.items())]
    points = points[-max(3, (len(points) + 1) // 2) :]
    if len(points) < 2:
        return None
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread


@dataclasses.dataclass(frozen=True)
class Crossover:
    """`winner` is below `loser` at `length` and every longer one, and was not at `before`."""

    winner: str
    loser: str
    length: int
    before: int
    crossing: float  # where the two lines meet, interpolated in log-log


def crossovers(found: dict[str, Line], *, margin: float = 1.1) -> list[Crossover]:
    """Every pair whose order at the longest common length is not its order at the shortest.

    Args:
      found: from `lines`.
      margin: how many times smaller the winner must end up; less is a tie.
    """
    crossings = []
    for winner, low in found.items():
        for loser, high in found.items():
            common = sorted(low.keys() & high.keys())
            if len(common) < 2 or low[common[-1]] * margin > high[common[-1]]:
                continue
            behind = [n for n in common if low[n] >= high[n]]
            if not behind:
                continue
            before = behind[-1]
            after = common[common.index(before) + 1]
            crossing = _meeting(low, high, before, after)
            crossings.append(Crossover(winner, loser, after, before, crossing))
    return crossings


def _meeting(low: Line, high: Line, before: int, after: int) -> float:
    lead = math.log(low[before] / high[before])
    lag = math.log(high[after] / low[after])
    share = lead / (lead + lag) if lead + lag else 1.0
    return math.exp((1 - share) * math.log(before) + share * math.log(after))


@dataclasses.dataclass(frozen=True)
class Fit:
    """How long a sequence of one mechanism fits.

    Attributes:
      largest: the longest length that ran.
      too_large: the shortest that did not fit, or None.
      estimate: the length at which the need would reach what was available, extrapolated.
    """

    largest: int | None
    too_large: int | None
    estimate: float | None


def fits(results: Iterable[Result], passes: str) -> dict[str, Fit]:
    """The largest length that fits, one entry a mechanism."""
    by_label: dict[str, list[Result]] = {}
    for result in results:
        if result.case.passes == passes:
            by_label.setdefault(result.case.label, []).append(result)
    return {
        label: _fit(sorted(rows, key=lambda r: r.case.length)) for label, rows in by_label.items()
    }


def _fit(rows: Sequence[Result]) -> Fit:
    ran = [row.case.length for row in rows if row.status == "ok"]
    too_large = [row.case.length for row in rows if row.status == "too_large"]
    needs = {row.case.length: float(row.memory_bytes) for row in rows if row.memory_bytes}
    free = [row.available_bytes for row in rows if row.available_bytes]
    estimate = _reach(needs, free[-1]) if needs and free else None
    return Fit(max(ran, default=None), min(too_large, default=None), estimate)


def _reach(needs: Line, free: float) -> float | None:
    """n with b n + c n² = free, where b, c >= 0 go through the two longest lengths."""
    if len(needs) < 2:
        return None
    (n1, m1), (n2, m2) = sorted(needs.items())[-2:]
    c = (m2 / n2 - m1 / n1) / (n2 - n1)
    b = m1 / n1 - c * n1
    if c <= 0:
        return free / (m2 / n2)
    if b < 0:
        return math.sqrt(free / m2) * n2
    return (math.sqrt(b * b + 4 * c * free) - b) / (2 * c)
