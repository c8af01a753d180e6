"""What is said of a row, by rules that were fixed before any was run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

__all__ = [
    "EXACT",
    "NOT_REPRODUCED",
    "RATIO",
    "RULES",
    "Gap",
    "gaps",
    "is_rounded",
    "of_courses",
    "of_count",
    "of_exponents",
    "of_gaps",
    "of_ratio",
    "of_words",
    "pairs",
    "rounded",
    "spreads",
]

TOLERANCE = 0.15  # of an exponent: blocks are whole, and a sequence has ends
EXACT, NOT_REPRODUCED = "exact", "not reproduced"
SAME_COURSE = "same course"
HOLDS = 2.0  # BLEU: a fall of less is none
SAME_ORDER, WITHIN = "same order", "same order and gap within spread"
BASE, NOT_PRINTED = "(base)", "(the paper has none)"
ONE_SEED, NO_BASE = "(one seed has no spread)", "(no spread of the row that it is compared with)"
EVEN, NEAR = 1.1, 1.5  # of ratios: no difference, and none worth a word
RATIO = f"same order and ratio within a factor of {NEAR:g}"
RULES = {
    "exact": (
        "A number of parameters is *exact* where ours, rounded as the paper rounds, is the paper's;"
        " where the paper has none, ours must equal a closed form to the last parameter. Exponents"
        f" are *exact* where each is within {TOLERANCE:g} of the paper's. Else: *not reproduced*,"
        " *less* where none is above the paper's."
    ),
    "trained": (
        "Of a score that training decides, the gap between two rows is judged, the paper's and that"
        " of our means over the seeds. The *spread* of our gap is twice its standard error; for"
        " the variance of a row counts its own or the median of the table's rows, whichever is"
        " larger. A gap of the paper is none if it is smaller than a tie, ours if it is smaller"
        " than its spread. Where both have the same sign, or none, it is the *same order*, *and gap"
        " within spread* if the two gaps differ by no more than it. Else: *not reproduced*."
    ),
    "course": (
        "Our change *falls* where its mean over the seeds is below 0 by more than its spread, two"
        f" standard errors; it *holds* where a fall of {HOLDS:g} BLEU lies beyond the spread as"
        " well; else it is *not decided*. It *falls less* than another's where it is above that"
        " one by more than the spread of their gap. Where that is what the paper says of its"
        " figure, it is the *same course*. The spread is that of the seeds, which translate the"
        " same sentences."
    ),
    "words": (
        "Of a figure without numbers, our score is *less* than in the row above where the gap of"
        " the means over the seeds is below 0 by more than its spread, *more* where it is above,"
        " else *level*. The spread is that of a score that training decides: twice the gap's"
        " standard error. Where that is what the paper says of its figure, it is the *same order*."
        " Else: *not reproduced*."
    ),
    "measured": (
        "Of times and memory, ratios to a row of the same table are compared, as the machines and"
        f" the models are others. A ratio within {EVEN - 1:.0%} of 1 is even. Where the paper's and"
        " ours are on the same side of 1, or even, it is the *same order*, *and ratio within a"
        f" factor of {NEAR:g}* if they are no further apart. Else: *not reproduced*."
    ),
}


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far a row's score is from another's.

    Attributes:
      row: name of the row.
      against: name of the row that it is compared with.
      paper: gap in the paper.
      ours: gap of our means over the seeds.
      spread: two standard errors of our gap.
    """

    row: str
    against: str
    paper: float
    ours: float
    spread: float

    def verdict(self, tie: float) -> str:
        """The verdict, where gaps of the paper below `tie` count as none."""
        theirs, ours = _sign(self.paper, tie), _sign(self.ours, self.spread)
        if theirs != ours:
            why = "the other order" if ours else "no gap beyond the spread"
            why = why if theirs else "a gap beyond the spread where the paper has none"
            return f"{NOT_REPRODUCED}: {why}"
        return WITHIN if abs(self.ours - self.paper) <= self.spread else SAME_ORDER


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
    return EXACT if rounded(count, printed) == printed else NOT_REPRODUCED


def of_exponents(paper: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """The verdict on exponents by size: all of the paper's must be ours."""
    above = [ours[size] - exponent for size, exponent in paper.items()]
    if max(map(abs, above)) <= TOLERANCE:
        return EXACT
    return NOT_REPRODUCED + ": less" * (max(above) <= TOLERANCE)


def of_ratio(paper: float, ours: float) -> str:
    """The verdict on a ratio to another row, in the paper and here."""
    theirs, here = (_sign(math.log(x), math.log(EVEN)) for x in (paper, ours))
    if theirs != here:
        return f"{NOT_REPRODUCED}: the other order" if theirs * here else NOT_REPRODUCED
    return RATIO if abs(math.log(ours / paper)) <= math.log(NEAR) else SAME_ORDER


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
    spread = spreads(ours)
    several = _several(ours)

    def judged(row: str) -> str:
        if row not in spread:
            return ONE_SEED
        if paper[row] != "falls less":
            mean = statistics.fmean(ours[row])
            if -spread[row] <= mean < spread[row] - HOLDS:
                return f"not decided: a fall of {HOLDS:g} BLEU is within the spread"
            course = "falls" if mean < -spread[row] else "holds"
            return SAME_COURSE if course == paper[row] else f"{NOT_REPRODUCED}: it {course}"
        if less[row] not in spread:
            return NO_BASE
        gap = _gap(row, less[row], dict.fromkeys(several, 0.0), several)
        if gap.ours > gap.spread:
            return SAME_COURSE
        return f"{NOT_REPRODUCED}: it does not fall less than {less[row]} beyond the spread"

    return {row: judged(row) for row in ours}


def of_words(
    paper: Mapping[str, str], ours: Mapping[str, Sequence[float]], *, against: Mapping[str, str]
) -> dict[str, str]:
    """The verdict on which of two scores is less.

    Args:
      paper: "less", "level" or "more" than the row that it is compared with, by row.
      ours: scores of all seeds by row.
      against: row that each row is compared with.
    """
    found = {gap.row: gap for gap in gaps(dict.fromkeys(ours, 0.0), ours, against)}

    def judged(row: str) -> str:
        if row not in against:
            return BASE
        if row not in found:
            return NO_BASE if len(ours[row]) > 1 else ONE_SEED
        word = ("level", "more", "less")[_sign(found[row].ours, found[row].spread)]
        return SAME_ORDER if word == paper[row] else f"{NOT_REPRODUCED}: it is {word}"

    return {row: judged(row) for row in ours}


def spreads(ours: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Two standard errors of the mean of each row with several seeds."""
    several = _several(ours)
    return {row: 2 * _error(several, row) for row in several}


def of_gaps(
    paper: Mapping[str, float],
    ours: Mapping[str, Sequence[float]],
    *,
    against: Mapping[str, str],
    tie: float,
) -> dict[str, str]:
    """The verdict on each row of a table of scores.

    Args:
      paper: score by row; a row that the paper leaves blank is missing.
      ours: scores of all seeds by row.
      against: row that each row is compared with.
      tie: gap of the paper below which two rows count as equal.
    """
    found = {gap.row: gap.verdict(tie) for gap in gaps(paper, ours, against)}

    def other(row: str) -> str:
        if row not in paper or against.get(row, row) not in paper:
            return NOT_PRINTED
        if row not in against:
            return BASE
        return NO_BASE if len(ours[row]) > 1 else ONE_SEED

    return {row: found.get(row) or other(row) for row in ours}


def gaps(
    paper: Mapping[str, float],
    ours: Mapping[str, Sequence[float]],
    against: Mapping[str, str],
) -> list[Gap]:
    """The gaps of all rows that have one in the paper and a spread here; arguments of `of_gaps`."""
    several = _several(ours)
    return [
        _gap(row, other, paper, several)
        for row, other in against.items()
        if {row, other} <= several.keys() & paper.keys()
    ]


def pairs(
    paper: Mapping[str, float], ours: Mapping[str, Sequence[float]], tie: float
) -> dict[str, int]:
    """How many pairs of rows that the paper tells apart are in its order here, and how many not."""
    counts = {"in the same order": 0, "in the other order": 0, "within the spread": 0}
    several = _several(ours)
    for one, other in itertools.combinations([row for row in several if row in paper], 2):
        gap = _gap(one, other, paper, several)
        if theirs := _sign(gap.paper, tie):
            order = theirs * _sign(gap.ours, gap.spread)
            counts[list(counts)[{1: 0, -1: 1, 0: 2}[order]]] += 1
    return counts


def _several(ours: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    return {row: scores for row, scores in ours.items() if len(scores) > 1}


def _gap(
    row: str, against: str, paper: Mapping[str, float], ours: Mapping[str, Sequence[float]]
) -> Gap:
    theirs = round(paper[row] - paper[against], 9)  # of figures with a few decimals
    gap = statistics.fmean(ours[row]) - statistics.fmean(ours[against])
    return Gap(row, against, theirs, gap, 2 * _error(ours, row, against))


def _error(ours: Mapping[str, Sequence[float]], *rows: str) -> float:
    """The standard error of a row's mean, or of the gap of two rows' means."""
    usual = statistics.median(statistics.variance(scores) for scores in ours.values())
    found = (ours[row] for row in rows)
    return math.sqrt(sum(max(statistics.variance(x), usual) / len(x) for x in found))


def _sign(gap: float, least: float) -> int:
    return 0 if abs(gap) < least or gap == 0 else int(math.copysign(1, gap))
