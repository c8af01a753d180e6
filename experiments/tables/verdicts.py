"""The two rules of the verdicts, fixed before any row was run.

**Counts.** A number that needs no training is *exact* where it is the paper's in the digits that
the paper prints, else *not exact*. Of an exponent that a paper writes in O(…), ours is measured,
and equal where it is within `TOLERANCE`; *less* is said where none is above the paper's.

**Gaps.** A score that training decides is judged by its gap from another row's, g with the 95 %
interval g ± h over the seeds (Student's t, for two rows Welch's), beside the paper's gap p. A
*tie* τ is fixed for each table. The paper has a tie where |p| < τ, ours is one where the whole
interval lies within ±τ, so that rows whose seeds are all at 100 % tie; ours has a side where the
interval leaves out 0. Sign and size count:

    reproduced                  on the paper's side with p/2 ≤ g ≤ 2p, or both tie
    same order, other size      on the paper's side, not between half and twice its size
    opposite                    on the other side
    no difference here          a tie here, none in the paper
    a difference here alone     a tie in the paper, a side here
    cannot tell with these seeds    neither a tie nor a side here, or a row has one seed

Where a paper prints no number but a word, the word is its side and no size counts: a row is *less*,
*level* or *more* than another, or a course *falls*, *holds* (τ = `HOLDS`) or *falls less* than
another's. Between tasks that differ in kind no size counts either. Times and memory are ratios to
a row of the table, of one run: sides of 1, a tie within `EVEN`, and the size is our ratio over the
paper's.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from attnlab.runs.intervals import gap_half_width, half_width

__all__ = [
    "COUNTED",
    "EXACT",
    "NOT_EXACT",
    "RULES",
    "Gap",
    "gaps",
    "is_rounded",
    "of_count",
    "of_courses",
    "of_exponents",
    "of_gap",
    "of_gaps",
    "of_ratio",
    "pairs",
    "rounded",
]

TOLERANCE = 0.15  # of an exponent: blocks are whole, and a sequence has ends
HOLDS = 2.0  # BLEU: a course that changes by less holds
EVEN = 1.1  # times: a ratio that is nearer to 1 is a tie
TIMES = 2.0  # a gap within this factor of the paper's has its size
EXACT, NOT_EXACT = "exact", "not exact"
REPRODUCED, OTHER_SIZE, OPPOSITE = "reproduced", "same order, other size", "opposite"
NO_DIFFERENCE, DIFFERENCE = "no difference here", "a difference here alone"
CANNOT_TELL, NOT_COMPARABLE = "cannot tell with these seeds", "not comparable"
NOT_RUN, BASE, NOT_PRINTED = "not run", "(base)", "(the paper has none)"
# The columns of the scoreboard.
COUNTED = (
    EXACT, NOT_EXACT, REPRODUCED, OTHER_SIZE, OPPOSITE, NO_DIFFERENCE, DIFFERENCE, CANNOT_TELL,
    NOT_COMPARABLE, NOT_RUN,
)  # fmt: skip
RULES = {
    "exact": (
        "A count is *exact* where it is the paper's number in the digits that the paper prints, an"
        f" exponent where it is within {TOLERANCE:g} of the paper's (*less*: none is above)."
    ),
    "gap": (
        "A score is judged by its gap from another row's, ± half of its 95 % interval over seeds"
        " (Student's t, for two rows Welch's). *Reproduced*: the interval is on the paper's side of"
        " 0 and our gap between half and twice the paper's, or both tie; *same order, other size*:"
        " on its side alone; *no difference here*: the interval lies within the tie; *cannot tell*:"
        " it has both 0 and more than the tie. Where a paper prints words, their side is judged."
    ),
    "ratio": (
        "Times and memory are ratios to a row of the same table, as machines and models are others:"
        f" *reproduced* on the paper's side of 1 and within a factor of {TIMES:g} of its ratio, or"
        f" where both are within {EVEN - 1:.0%} of 1."
    ),
}
_SIDES = {"less": -1, "level": 0, "more": 1, "falls": -1, "holds": 0, "falls less": 1}


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far a row's score is from another's.

    Attributes:
      row: name of the row.
      against: name of the row that it is compared with.
      paper: gap in the paper, or the paper's word for it.
      ours: gap of our means over the seeds.
      half_width: half of the 95 % interval of our gap.
    """

    row: str
    against: str
    paper: float | str
    ours: float
    half_width: float


def of_gap(
    paper: float | str, ours: float, half_width: float, *, tie: float, sizes: bool = True
) -> str:
    """The verdict on a gap: the second rule.

    Args:
      paper: gap in the paper, or its word.
      ours: our gap.
      half_width: half of the 95 % interval of our gap.
      tie: gap below which two rows count as equal.
      sizes: whether the size counts beside the side.
    """
    theirs = _SIDES[paper] if isinstance(paper, str) else _sign(paper, tie)
    here = _side(ours, half_width, tie)
    if here is None:
        return CANNOT_TELL
    size = None if isinstance(paper, str) or not theirs or not sizes else ours / paper
    return _beside(theirs, here, size)


def of_ratio(paper: float, ours: float) -> str:
    """The verdict on a ratio to another row, in the paper and here."""
    theirs, here = (_sign(math.log(x), math.log(EVEN)) for x in (paper, ours))
    return _beside(theirs, here, ours / paper if theirs else None)


def _beside(theirs: int, here: int, size: float | None) -> str:
    if theirs != here:
        return (OPPOSITE if here else NO_DIFFERENCE) if theirs else DIFFERENCE
    if size is None or 1 / TIMES <= size <= TIMES:
        return REPRODUCED
    return f"{OTHER_SIZE}: {size:.2g} times the paper's"


def rounded(count: int, printed: str) -> str:
    """A count with as many digits as the printed number: in millions where that is rounded.

    >>> rounded(66_324_623, "66.32"), rounded(63_045_632, "65"), rounded(80_401_000, "80401000")
    ('66.32', '63', '80401000')
    """
    if not is_rounded(printed):
        return str(count)
    return f"{count / 1e6:.{len(printed.partition('.')[2])}f}"


def of_count(printed: str, count: int) -> str:
    """The verdict on a number of parameters.

    Args:
      printed: number as the paper prints it, in millions, or a whole count.
      count: our count.
    """
    return EXACT if rounded(count, printed) == printed else NOT_EXACT


def of_exponents(paper: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """The verdict on exponents by size: all of the paper's must be ours."""
    above = [ours[size] - exponent for size, exponent in paper.items()]
    if max(map(abs, above)) <= TOLERANCE:
        return EXACT
    return NOT_EXACT + ": less" * (max(above) <= TOLERANCE)


def is_rounded(printed: str) -> bool:
    """Whether it is in millions, and no whole count: no model has so few as 1000 parameters."""
    return float(printed) < 1000


def of_courses(
    paper: Mapping[str, str], ours: Mapping[str, Sequence[float]], *, less: Mapping[str, str]
) -> dict[str, str]:
    """The verdict on how scores change as sentences grow.

    Args:
      paper: "falls", "holds" or "falls less", by row.
      ours: changes of all seeds by row.
      less: row that another should fall less than, by the name of the other.
    """

    def judged(row: str) -> str:
        if paper[row] != "falls less":
            mean = statistics.fmean(ours[row])
            return of_gap(paper[row], mean, half_width(ours[row]), tie=HOLDS)
        if less[row] not in ours:
            return NOT_RUN
        gap = _gap(row, less[row], paper[row], ours)
        return of_gap(gap.paper, gap.ours, gap.half_width, tie=HOLDS)

    return {row: judged(row) for row in ours}


def of_gaps(
    paper: Mapping[str, float | str],
    ours: Mapping[str, Sequence[float]],
    *,
    against: Mapping[str, str],
    tie: float,
    sizes: bool = True,
) -> dict[str, str]:
    """The verdict on each row of a table of scores.

    Args:
      paper: score by row, or word for its gap; a row that the paper leaves blank is missing.
      ours: scores of all seeds by row.
      against: row that each row is compared with.
      tie: gap below which two rows count as equal.
      sizes: whether the size counts beside the side.
    """
    judged = {gap.row: gap for gap in gaps(paper, ours, against)}

    def verdict(row: str) -> str:
        if row in judged:
            gap = judged[row]
            return of_gap(gap.paper, gap.ours, gap.half_width, tie=tie, sizes=sizes)
        if row not in against:
            return BASE if row in paper or row in against.values() else NOT_PRINTED
        return NOT_PRINTED if row not in paper or against[row] in ours else NOT_RUN

    return {row: verdict(row) for row in ours}


def gaps(
    paper: Mapping[str, float | str],
    ours: Mapping[str, Sequence[float]],
    against: Mapping[str, str],
) -> list[Gap]:
    """The gaps of all rows that have one in the paper and here; arguments of `of_gaps`."""
    found = []
    for row, other in against.items():
        theirs = _printed(paper, row, other)
        if theirs is not None and {row, other} <= ours.keys():
            found.append(_gap(row, other, theirs, ours))
    return found


def pairs(
    paper: Mapping[str, float], ours: Mapping[str, Sequence[float]], tie: float
) -> dict[str, int]:
    """How many pairs of rows that the paper tells apart are in its order here, and how many not."""
    counts = {"in the same order": 0, "in the other order": 0, "tie here": 0, "undecided": 0}
    for one, other in itertools.combinations([row for row in ours if row in paper], 2):
        gap = _gap(one, other, _printed(paper, one, other) or 0.0, ours)
        assert not isinstance(gap.paper, str)
        if theirs := _sign(gap.paper, tie):
            here = _side(gap.ours, gap.half_width, tie)
            order = None if here is None else theirs * here
            counts[list(counts)[{1: 0, -1: 1, 0: 2, None: 3}[order]]] += 1
    return counts


def _printed(paper: Mapping[str, float | str], row: str, against: str) -> float | str | None:
    """The paper's gap, or its word; None where it prints none."""
    theirs, other = paper.get(row), paper.get(against)
    if theirs is None or isinstance(theirs, str):
        return theirs
    if other is None or isinstance(other, str):
        return None
    return round(theirs - other, 9)  # of figures with a few decimals


def _gap(row: str, against: str, paper: float | str, ours: Mapping[str, Sequence[float]]) -> Gap:
    gap = statistics.fmean(ours[row]) - statistics.fmean(ours[against])
    return Gap(row, against, paper, gap, gap_half_width(ours[row], ours[against]))


def _side(gap: float, half_width: float, tie: float) -> int | None:
    """0 for a tie, else the sign of the whole interval; None where that is not known."""
    if abs(gap) + half_width <= tie:
        return 0
    return int(math.copysign(1, gap)) if abs(gap) > half_width else None


def _sign(gap: float, least: float) -> int:
    return 0 if abs(gap) < least or gap == 0 else int(math.copysign(1, gap))
