"""What the rows so far say of the cases to come: time, memory, and the time that is left."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from attnlab.bench import trends
from attnlab.bench.case import Case, Result


def line_of(rows: Iterable[Result], case: Case) -> list[Result]:
    """The rows of the same mechanism, implementation, pass and target."""
    same = (case.label, case.passes, case.target)
    return [r for r in rows if (r.case.label, r.case.passes, r.case.target) == same]


def seen_bytes(result: Result) -> float | None:
    """What the process was seen to take, over all devices that share the memory."""
    seen = result.resident_peak_bytes if result.status == "ok" else None
    return seen and seen * result.case.devices


def seconds_left(
    left: Sequence[Case], rows: Mapping[Case, Result], *, repeats: int, limit: float
) -> float | None:
    """How long the cases that are left will take, from those that were measured.

    The first row is left out, as it pays for the start; None before two lengths are known.

    Args:
      left: cases to come.
      rows: those done.
      repeats: timed samples of a case.
      limit: seconds of a case.
    """
    compiling = [r.compile_seconds for r in rows.values() if r.compile_seconds][1:]
    if not compiling or len({case.length for case in rows}) < 2:
        return None
    total = statistics.mean(compiling) * len(left)
    for case in left:
        one = trends.predicted(line_of(rows.values(), case), case.length)
        if one <= limit:  # else it is only compiled
            total += min((repeats + 2) * one, max(limit, one))  # with two calls to warm up
    return total


def to_repeat(cases: Sequence[Case], rows: Mapping[Case, Result]) -> list[Case]:
    """Cases that do not go with their neighbors, once each, and what was not run because of them.

    Returns:
      Short lengths first.
    """
    again = set()
    for case in cases:
        line = {r.case.length: r for r in line_of(rows.values(), case)}
        times = {n: s for n, r in line.items() if (s := trends.seconds(r))}
        odd = [n for n in trends.disagreeing(times) if line[n].other_seconds is None]
        again |= {line[n].case for n in odd}
        again |= {r.case for n, r in line.items() if odd and n > odd[0] and r.status == "too_slow"}
    return sorted(again & set(cases), key=lambda case: (case.length, cases.index(case)))
