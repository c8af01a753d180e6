"""What the rows so far predict for the cases that are left: memory, and the time until the end."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from attnlab.bench import trends
from attnlab.bench.case import Case, Result


def line_of(rows: Iterable[Result], case: Case) -> list[Result]:
    """The rows of the same mechanism, implementation, pass and target."""
    same = (case.label, case.passes, case.target)
    return [r for r in rows if (r.case.label, r.case.passes, r.case.target) == same]


def seen_bytes(result: Result) -> float | None:
    """Memory that the process was seen to take for all its devices together, in bytes."""
    seen = result.resident_peak_bytes if result.status == "ok" else None
    return seen and seen * result.case.devices


def seconds_left(
    left: Sequence[Case], rows: Mapping[Case, Result], *, repeats: int, limit: float
) -> float | None:
    """How long the cases that are left will take, by the cases that were measured.

    The compile time of the first row is left out, because it contains the start of the process.
    None before rows of two lengths are known.

    Args:
      left: cases that are not measured yet.
      rows: rows of the cases that are measured.
      repeats: number of timed samples of a case.
      limit: seconds that one case may run.
    """
    compiling = [r.compile_seconds for r in rows.values() if r.compile_seconds][1:]
    if not compiling or len({case.length for case in rows}) < 2:
        return None
    total = statistics.mean(compiling) * len(left)
    for case in left:
        one = trends.predicted(line_of(rows.values(), case), case.length)
        if one <= limit:  # else the case is only compiled
            total += min((repeats + 2) * one, max(limit, one))  # + 2: the calls of the warm-up
    return total


def to_repeat(cases: Sequence[Case], rows: Mapping[Case, Result]) -> list[Case]:
    """Cases whose times disagree with those of neighboring lengths.

    Cases that were not run because of such a time are among them. A case that was measured twice
    already is not.

    Returns:
      The cases, short lengths first.
    """
    again = set()
    for case in cases:
        line = {r.case.length: r for r in line_of(rows.values(), case)}
        times = {n: s for n, r in line.items() if (s := trends.seconds(r))}
        odd = [n for n in trends.disagreeing(times) if line[n].other_seconds is None]
        again |= {line[n].case for n in odd}
        again |= {r.case for n, r in line.items() if odd and n > odd[0] and r.status == "too_slow"}
    return sorted(again & set(cases), key=lambda case: (case.length, cases.index(case)))
