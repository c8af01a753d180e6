"""What the rows so far predict for the cases that are left: memory, and the time until the end."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from attnlab.bench import trends
from attnlab.bench.case import Case, Result
from attnlab.runs import remaining
from attnlab.runs.report import grouped


def line_of(rows: Iterable[Result], case: Case) -> list[Result]:
    """The rows of the same mechanism, implementation, pass and target."""
    same = (case.label, case.passes, case.target)
    return [r for r in rows if (r.case.label, r.case.passes, r.case.target) == same]


def seen_bytes(result: Result) -> float | None:
    """Memory that the process was seen to take for all its devices together, in bytes."""
    seen = result.resident_peak_bytes if result.status == "ok" else None
    return seen and seen * result.case.devices


def seconds_left(
    left: Sequence[Case],
    done: Mapping[Case, Result],
    spent: Mapping[Case, float],
    *,
    repeats: int,
    limit: float,
) -> float | None:
    """How long the cases that are left will take, by the cases that are done.

    Of a mechanism that is known at another length: its calls, by the growth of their time, and all
    the rest of its wall time as it was there: starting a process, compiling, counting memory. Else
    as long as others at that length. None for less than a minute's knowledge of one length.

    Args:
      left: cases that are not measured yet.
      done: rows of the cases that are measured, shorter lengths first.
      spent: wall time of each in seconds.
      repeats: number of timed samples of a case.
      limit: seconds that one case may run.
    """
    sizes = {(case.length, case.num_layers) for case in [*done, *left]}
    seen = {(case.length, case.num_layers) for case in done}
    if len(seen) < min(2, len(sizes)) and sum(spent.values()) < 60:
        return None

    def calls(one: float) -> float:
        # + 2: those of the warm-up. Too slow a case is only compiled.
        return min((repeats + 2) * one, max(limit, one)) if one <= limit else 0.0

    foreseen = dict(spent)
    lines = grouped(list(done), lambda case: dataclasses.replace(case, length=0, num_layers=None))
    for case in left:
        line = lines.get(dataclasses.replace(case, length=0, num_layers=None), [])
        if line and case not in done:
            one = trends.predicted([done[x] for x in line], case.length)
            rest = [max(spent[x] - calls(done[x].median_seconds or 0.0), 0.0) for x in line]
            ran = done[line[-1]].seconds  # else the longer ones are only compiled too
            foreseen[case] = statistics.fmean(rest) + calls(one) if ran else spent[line[-1]]
    return remaining.of_items(
        left, foreseen, lambda case: ((case.target, case.length), case.length)
    )


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
