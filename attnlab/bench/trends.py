"""Trends of rows: growth with the length, who overtakes whom, how long a sequence still fits."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from attnlab.bench.case import Result, axis_of, size_of
from attnlab.runs.intervals import half_width
from attnlab.runs.report import group

Line = dict[int, float]  # length, number of layers or batch -> seconds or bytes
_FEWEST = 4  # lengths of a fit whose error is worth a word
_NO_ANSWER = 0.5
_STEEPEST = 2.0  # nothing here grows faster than n²; a steeper line is noise
_FAR, _FALLS = 3.0, 1.5
_REACH = 16


def seconds(result: Result) -> float | None:
    """The median time of a row that ran."""
    return result.median_seconds if result.status == "ok" else None


def quiet_seconds(result: Result) -> float | None:
    """The median time of a row that ran without other work beside it."""
    return None if result.busy else seconds(result)


def describe_busy(results: Sequence[Result]) -> str:
    """What is said first of times that were measured beside other work; "" = none was."""
    timed = {r.case: r for r in results if r.seconds}  # a case may stand in several panels
    loads = [r.load or 0.0 for r in timed.values() if r.busy]
    words = f"Busy machine: {len(loads)} of {len(timed)} cases, open marks, ran beside other work"
    return f"{words} (load up to {max(loads):.1f})" if loads else ""


def memory(result: Result) -> float | None:
    """The memory of a row that ran."""
    return result.memory_bytes if result.status == "ok" else None


def needs(result: Result) -> float | None:
    """The memory of a row whose program compiled, also where it did not run."""
    return result.memory_bytes


def lines(
    results: Sequence[Result], passes: str, value: Callable[[Result], float | None]
) -> dict[str, Line]:
    """One line a mechanism, in order of first appearance; lengths (layers, …) rise along it."""
    lines: dict[str, Line] = {}
    axis = axis_of(results)
    for result in results:
        if result.case.passes == passes:
            line = lines.setdefault(result.case.label, {})
            number = value(result)
            if number:
                line[size_of(result, axis)] = number
    return {label: dict(sorted(line.items())) for label, line in lines.items()}


def lines_of_memory(results: Sequence[Result], passes: str) -> dict[str, Line]:
    """`lines` of the memory of what ran, and of what was only compiled where that is comparable.

    Where runs of a line took more than their programs say, what the programs say of longer ones,
    which were not run, is too little to continue the line.
    """
    of_pass = [result for result in results if result.case.passes == passes]
    seen = {result.case.label for result in of_pass if result.memory_source == "resident"}

    def comparable(result: Result) -> float | None:
        return memory(result) if result.case.label in seen else needs(result)

    return lines(results, passes, comparable)


class Ratio(NamedTuple):
    """The geometric mean of the turns' ratios and its 95 % interval, from 0 to inf for one turn."""

    mean: float
    low: float
    high: float
    turns: int

    def __str__(self) -> str:
        interval = f"{self.low:.3g} to {self.high:.3g}; " if self.turns > 1 else ""
        return f"{self.mean:.3g} ({interval}n = {self.turns})"


def ratio(result: Result) -> Ratio | None:
    """A row's time over that of its base, or None where it was not timed against one."""
    if not result.ratios:
        return None
    logs = [math.log(x) for x in result.ratios]  # twice as long is as far from 1 as half as long
    mean, half = statistics.fmean(logs), half_width(logs)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def slope(line: Line) -> float:
    """p of value ∝ n^p by least squares in log-log; of two lengths or more."""
    x, y = _logarithms(line)
    return float(x @ y / (x @ x))


@dataclasses.dataclass(frozen=True)
class Growth:
    """value ∝ n^power.

    Attributes:
      power: slope of the least-squares line in log-log.
      error: standard error of `power`, from the distances of the points to the line, or from the
        spread of the repeats if that is larger.
    """

    power: float
    error: float

    def __str__(self) -> str:
        """As `1.97 ± 0.03`: no digit that the error leaves open."""
        digits = 1 if self.error >= 0.095 else 2
        return f"{self.power:.{digits}f} ± {max(self.error, 10**-digits):.{digits}f}"


def growth(line: Line, spreads: Line | None = None) -> Growth | None:
    """How a line grows over the longer half of its lengths, or the four longest if that is more.

    Short lengths are left out because fixed costs flatten them.

    `spreads` has the standard error of the logarithm of each value that was repeated.

    Returns:
      None for fewer than four lengths, or where the error is over ½: that is no answer.

    >>> str(growth({n: 5e-9 * n**2 for n in (256, 512, 1024, 2048)}))
    '2.00 ± 0.01'
    """
    lengths = sorted(line)[-max(_FEWEST, (len(line) + 1) // 2) :]
    if len(lengths) < _FEWEST:
        return None
    x, y = _logarithms({n: line[n] for n in lengths})
    power = float(x @ y / (x @ x))
    residual = float(((y - power * x) ** 2).sum()) / (len(lengths) - 2)
    noise = np.array([(spreads or {}).get(n, 0.0) for n in lengths])
    error = max(math.sqrt(residual / (x @ x)), float(np.linalg.norm(x * noise) / (x @ x)))
    return Growth(power, error) if error <= _NO_ANSWER else None


def spreads(results: Sequence[Result], passes: str) -> dict[str, Line]:
    """The standard error of the logarithm of each median time: the repeats' / √repeats."""
    axis = axis_of(results)
    errors: dict[str, Line] = {}
    for r in results:
        if r.case.passes == passes and r.status == "ok" and len(r.seconds) > 1:
            error = float(np.log(r.seconds).std(ddof=1)) / math.sqrt(len(r.seconds))
            errors.setdefault(r.case.label, {})[size_of(r, axis)] = error
    return errors


def _logarithms(line: Line) -> tuple[np.ndarray, np.ndarray]:
    """log n and log value, less their means."""
    x, y = np.log(np.array(sorted(line.items()), np.float64)).T
    return x - x.mean(), y - y.mean()


def predict(
    line: Iterable[Result], length: int, value: Callable[[Result], float | None] = seconds
) -> float:
    """The value at `length` from the shorter lengths of a line.

    The last two that ran are continued with their own slope, up to n²; with one, linearly; with
    none, 0.
    """
    known = {r.case.length: x for r in line if (x := value(r)) and r.case.length < length}
    points = sorted(known.items())[-2:]
    if not points:
        return 0.0
    n, last = points[-1]
    power = min(slope(dict(points)), _STEEPEST) if len(points) == 2 else 1.0
    return last * (length / n) ** power


def disagreeing(line: Line) -> list[int]:
    """Lengths whose value does not go with their neighbors', as under another load.

    Such a value is more than three times off the straight line in log-log between its neighbors,
    or more than three times above n² from the shorter one, or more than one and a half times that
    of the longer one (then both are meant).

    >>> disagreeing({512: 1.0, 1024: 2.0, 2048: 20.0, 4096: 8.0})
    [2048, 4096]
    >>> disagreeing({512: 1.0, 1024: 4.0, 2048: 16.0})
    []
    """
    lengths = sorted(line)
    lengths_off = set()
    for short, n in itertools.pairwise(lengths):
        if line[short] > _FALLS * line[n]:
            lengths_off |= {short, n}
        if line[n] > _FAR * line[short] * (n / short) ** 2:
            lengths_off.add(n)
    for short, n, long in zip(lengths, lengths[1:], lengths[2:], strict=False):
        between = line[short] * (n / short) ** slope({k: line[k] for k in (short, long)})
        if not 1 / _FAR < line[n] / between < _FAR:
            lengths_off.add(n)
    return sorted(lengths_off)


@dataclasses.dataclass(frozen=True)
class Crossover:
    """`winner` is below `loser` at `length` and every longer one, and was not at `before`."""

    winner: str
    loser: str
    length: int
    before: int
    crossing: float  # where the two lines meet, interpolated in log-log


def crossovers(lines: dict[str, Line], *, margin: float = 1.1) -> list[Crossover]:
    """Every pair of which one is smaller at the longest common length and was not at a shorter one.

    `margin` is the factor by which the winner must be smaller at the longest length; less is a tie.
    """
    crossings = []
    for winner, low in lines.items():
        for loser, high in lines.items():
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
    """How long a sequence of one mechanism fits, how deep a model of it or how large a batch.

    Attributes:
      largest: the longest length (or depth, or batch) that ran.
      too_large: the shortest that did not fit, or None.
      estimate: the length (or depth, or batch) at which the need would reach what was available,
        extrapolated.
      known: the longest whose need is known.
    """

    largest: int | None
    too_large: int | None
    estimate: float | None
    known: int = 0

    @property
    def extrapolated(self) -> str:
        """The estimate with two digits, up to `_REACH` times what is known: `≈ 17,000`, `> 4,100`.

        Of short lengths fixed costs hide how the need grows.
        """
        most = _REACH * self.known
        if self.estimate is None:
            return ""
        sign, number = ("≈", self.estimate) if self.estimate <= most else (">", most)
        return f"{sign} {float(f'{number:.2g}'):,.0f}"


def fits(results: Sequence[Result], passes: str) -> dict[str, Fit]:
    """The largest length (or depth, or batch) that fits, one entry a mechanism."""
    axis = axis_of(results)
    of_pass = [result for result in results if result.case.passes == passes]
    by_label = group(of_pass, lambda result: result.case.label)
    known = lines_of_memory(results, passes)
    return {label: _fit(rows, axis, known.get(label, {})) for label, rows in by_label.items()}


def _fit(rows: Sequence[Result], axis: str, needs: Line) -> Fit:
    ran = [size_of(row, axis) for row in rows if row.status == "ok"]
    too_large = [size_of(row, axis) for row in rows if row.status == "too_large"]
    free = [row.available_bytes for row in rows if row.available_bytes]
    reach = _reach if axis == "length" else _reach_of_parts
    estimate = reach(needs, free[-1]) if needs and free else None
    known = max(needs, default=0)
    return Fit(max(ran, default=None), min(too_large, default=None), estimate, known)


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


def _reach_of_parts(needs: Line, free: float) -> float | None:
    """n examples or layers with a + b n = free, through the two largest.

    The state does not grow with the batch, nor do the embeddings with the number of layers.
    """
    if len(needs) < 2:
        return None
    (n1, m1), (n2, m2) = sorted(needs.items())[-2:]
    return None if m2 <= m1 else n2 + (free - m2) * (n2 - n1) / (m2 - m1)
