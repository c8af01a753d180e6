"""What the rows so far predict for the cases that are left: memory, and the time until the end."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from attnlab.bench import trends
from attnlab.bench.case import Case, Result
from attnlab.runs import remaining
from attnlab.runs.rows import Kept


def line_of(rows: Iterable[Result], case: Case) -> list[Result]:
    """The rows of the same mechanism, implementation, pass and target."""
    fields = "label passes target num_heads head_dim dtype causal ops_only program".split()
    same = [getattr(case, name) for name in fields]
    return [r for r in rows if [getattr(r.case, name) for name in fields] == same]


def seen_bytes(result: Result) -> float | None:
    """Memory that the process was seen to take for all its devices together, in bytes."""
    seen = result.resident_peak_bytes if result.status == "ok" else None
    return seen and seen * result.case.devices


def seconds_left(
    left: Sequence[Case], kept: Mapping[Case, Kept[Result]], *, repeats: int, limit: float
) -> float | None:
    """Wall time of the cases that are left, by those that are done.

    A mechanism that was at another length takes the time of its calls, by their growth, and for the
    rest (starting a process, compiling, counting memory) what it took there; another one takes as
    long as those at its length. None where only one of several lengths is known, and that for less
    than a minute.

    Args:
      left: cases that are not measured yet, or again.
      kept: rows of the cases that are measured, shorter lengths first.
      repeats: number of timed samples of a case.
      limit: seconds that one case may run.
    """
    spent = remaining.spent(kept)
    planned, seen = ({(x.length, x.num_layers) for x in some} for some in ([*kept, *left], kept))
    if len(seen) < min(2, len(planned)) and sum(spent.values()) < 60:
        return None

    def calls(one: float) -> float:
        # + 2: those of the warm-up. Too slow a case is only compiled.
        return min((repeats + 2) * one, max(limit, one)) if one <= limit else 0.0

    foreseen = dict(spent)
    for case in left:
        rows = [x.row for x in kept.values() if _line(x.row.case) == _line(case)]
        if rows and case not in kept:
            rest = [max(spent[r.case] - calls(r.median_seconds or 0.0), 0.0) for r in rows]
            foreseen[case] = statistics.fmean(rest) + calls(trends.predicted(rows, case.length))
            if not rows[-1].seconds:  # the longer ones are only compiled too
                foreseen[case] = spent[rows[-1].case]
    return remaining.of_items(left, foreseen, lambda x: ((x.target, x.length), x.length))


def _line(case: Case) -> Case:
    return dataclasses.replace(case, length=0, num_layers=None)


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
