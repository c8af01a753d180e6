"""The rules of the verdicts.

The rule of gaps is older than all rows of Luong's Table 1, Britz's Tables 2 to 4, Vaswani's Table
2, Kitaev's Figure 4 and Amos's; of other tables rows had been seen, most of which were trained
anew. Later than the rows are: what is collapsed, at the ceiling, of equal seeds or another
function; the ties and words of claims; which verdict of one kind is shown; that a tie is refuted
beyond ±τ alone; and that Luong's Table 6 and BERT's compare sides alone.

**Counts.** A number that needs no training is *exact* where it is the paper's in the digits that
the paper prints, else *not exact*. Of an exponent that a paper writes in O(…), ours is measured,
and equal where it is within `TOLERANCE`; *less* is said where none is above the paper's. The tests
in `tests/papers` judge so.

**Gaps.** A score that training decides is judged by its gap from another row's, g with the 95 %
interval g ± h over the seeds (Student's t, for two rows Welch's), beside the paper's gap p. A
*tie* τ is fixed for each table. The paper has a tie where |p| < τ, ours is one where the whole
interval lies within ±τ; otherwise ours has a side where the interval leaves out 0, and beside a tie
of the paper where it leaves out all of ±τ. Sign and size count:

    reproduced                  on the paper's side with p/2 ≤ g ≤ 2p, or both tie
    same direction, N times the size    on the paper's side, not between half and twice its size
    opposite                    on the other side
    no difference here          a tie here, none in the paper
    a difference here alone     a tie in the paper, a side here
    undecided: N seeds          neither a tie nor a side here, fewer than three seeds, or equal
                                ones; N would decide it if they vary as these; where N is above 20,
                                the far end of the interval bounds the effect
    not comparable: why         the row, or the other, has a seed that did not learn the task
                                (*collapsed*: a score below what its table says, at a rate that was
                                not searched), was to come to its plateau and did not, or is another
                                function or task; or all seeds of both rows are within τ of 100 %:
                                the task is too easy to tell them apart

Where a paper prints no number but a word, the word is its side and no size counts: a row is *less*,
*level* or *more* than another, or a course *falls*, *holds* (τ = `HOLDS`) or *falls less* than
another's. Between tasks that differ in kind no size counts either. Times and memory are ratios to a
row of the table, of one run: sides of 1, a tie within `EVEN`, and the size is our ratio over the
paper's. Of several gaps the worst decides, in the order of `WORST`; of one kind that whose size is
the farthest from the paper's, then that which is the farthest from the paper's number or word.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from attnlab.runs import intervals
from attnlab.runs.intervals import describe_undecided, difference, half_width, side

TOLERANCE = 0.15  # of an exponent: blocks are whole, and a sequence has ends
HOLDS = 2.0  # BLEU: a course that changes by less holds
EVEN = 1.1  # times: a ratio that is nearer to 1 is a tie
TIMES = 2.0  # a gap within this factor of the paper's has its size
EXACT, NOT_EXACT = "exact", "not exact"
REPRODUCED, OTHER_SIZE, OPPOSITE = "reproduced", "same direction", "opposite"
NO_DIFFERENCE, DIFFERENCE = "no difference here", "a difference here alone"
UNDECIDED, NOT_COMPARABLE = "undecided", "not comparable"
NOT_RUN, BASE, NOT_PRINTED = "not run", "(base)", "(the paper has none)"
WORST = (
    OPPOSITE, NO_DIFFERENCE, DIFFERENCE, NOT_EXACT, UNDECIDED, NOT_COMPARABLE, NOT_RUN, OTHER_SIZE,
    REPRODUCED, EXACT,
)  # fmt: skip
RULES = {
    "exact": (
        "A count is *exact* where it is the paper's number in the digits that the paper prints, an"
        f" exponent where it is within {TOLERANCE:g} of the paper's (*less*: none is above)."
    ),
    "gap": (
        "A score is judged by its gap from another row's, ± half of its 95 % interval over seeds"
        " (Student's t, for two rows Welch's). *Reproduced*: the interval is on the paper's side of"
        " 0 and our gap between half and twice the paper's, or both tie; *same direction*: on its"
        " side alone; *no difference here*: the interval lies within the tie, whatever side it is"
        " on; *a difference here alone*: the paper has a tie, and the interval is beyond it;"
        " *undecided*: it has both 0, or the end of the paper's tie, and more than the tie, or"
        " there are fewer than three seeds; *N seeds would decide it* if they vary as these;"
        " *not comparable*: a seed collapsed, a row was still learning or is another function, or"
        " all seeds of both rows have the highest score, or nearly. Where a paper prints words,"
        " their side is judged."
    ),
    "ratio": (
        "Times and memory are ratios to a row of the same table, as machines and models are others:"
        f" *reproduced* on the paper's side of 1 and within a factor of {TIMES:g} of its ratio, or"
        f" where both are within a factor of {EVEN:g} of 1."
    ),
}
OUTCOMES = {  # which verdicts are counted and drawn together
    "holds": (EXACT, REPRODUCED),
    "direction alone": (OTHER_SIZE,),
    "does not hold": (OPPOSITE, NO_DIFFERENCE, DIFFERENCE, NOT_EXACT),
    "not comparable": (NOT_COMPARABLE,),
    "undecided": (UNDECIDED,),
    "not run": (NOT_RUN,),
}
SIDES = {"less": -1, "level": 0, "more": 1, "falls": -1, "holds": 0, "falls less": 1}


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far a row's score is from another's.

    Attributes:
      row: name of the row.
      against: name of the row that it is compared with; "" = one without a name, or none.
      paper: gap in the paper, or the paper's word for it.
      samples: our scores of all seeds, and those of the other row; of a course, which is judged
        by its distance from 0, its own alone.
    """

    row: str
    against: str
    paper: float | str
    samples: tuple[Sequence[float], ...]

    @property
    def ours(self) -> float:
        """The gap of our means over the seeds."""
        return difference(*self.samples)

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of our gap."""
        return half_width(*self.samples)


def kind(verdict: str) -> str:
    """A verdict without its size and its reason.

    >>> kind("same direction, 3 times the size"), kind("undecided: 9 seeds would decide it")
    ('same direction', 'undecided')
    """
    return re.split("[:,]", verdict)[0]


def outcome(verdict: str) -> str:
    """The name in `OUTCOMES` under which a verdict is counted and drawn."""
    return next(name for name, kinds in OUTCOMES.items() if kind(verdict) in kinds)


def is_agreement(verdict: str) -> bool:
    """Whether a row is on the paper's side, or its count the paper's."""
    return kind(verdict) in (OTHER_SIZE, REPRODUCED, EXACT)


def severity(verdict: str) -> tuple[int, float]:
    """The key of `min` for the worst: by `WORST`, of one kind the farthest from the paper's size.

    Of undecided ones that which lacks the most seeds.

    >>> min("same direction, 0.1 times the size", "same direction, 4 times the size", key=severity)
    'same direction, 0.1 times the size'
    """
    sized = re.search(r"([\d.]+) (times the size|seeds would)", verdict)
    far = abs(math.log(float(sized[1]))) if sized else 0.0
    return WORST.index(kind(verdict)), -far


def judge_gap(gap: Gap, *, tie: float, sizes: bool = True) -> str:
    """The verdict on a gap.

    Args:
      gap: the paper's and ours.
      tie: gap below which two rows count as equal.
      sizes: whether the size counts beside the side.
    """
    paper = gap.paper
    theirs = printed_side(gap, tie)
    beyond = 0.0 if theirs else tie
    here = side(tie, *gap.samples, beyond=beyond)
    if here is None:
        return describe_undecided(tie, *gap.samples, beyond=beyond)
    size = None if isinstance(paper, str) or not (theirs and sizes) else gap.ours / paper
    return _compare_sides(theirs, here, size)


def p_value(gap: Gap, tie: float) -> float:
    """The probability of such scores if the side or the tie that `judge_gap` finds were not so."""
    beyond = 0.0 if printed_side(gap, tie) else tie
    return intervals.p_value(tie, *gap.samples, beyond=beyond)


def printed_side(gap: Gap, tie: float) -> int:
    """The side of the paper's number or word; 0 = a tie."""
    return SIDES[gap.paper] if isinstance(gap.paper, str) else _sign(gap.paper, tie)


def distance(gap: Gap, tie: float) -> float:
    """How far ours is from the paper's number, or on the other side of its word."""
    if not isinstance(gap.paper, str):
        return abs(gap.ours - gap.paper)
    theirs = printed_side(gap, tie)
    return -theirs * gap.ours if theirs else abs(gap.ours)


def judge_ratio(paper: float | str, ours: float) -> str:
    """The verdict on a ratio to another row: the paper's, or its word for it, beside ours."""
    if not 0 < ours < math.inf:
        return f"{UNDECIDED}: the ratio is {ours}"
    here = _sign(math.log(ours), math.log(EVEN))
    if isinstance(paper, str):
        return _compare_sides(SIDES[paper], here, None)
    theirs = _sign(math.log(paper), math.log(EVEN))
    return _compare_sides(theirs, here, ours / paper if theirs else None)


def _compare_sides(theirs: int, here: int, size: float | None) -> str:
    if theirs == 0 and here != 0:
        return DIFFERENCE
    if theirs != here:
        return OPPOSITE if here else NO_DIFFERENCE
    if size is None or 1 / TIMES <= size <= TIMES:
        return REPRODUCED
    times = f"{size:.0f}" if size >= 10 else f"{size:.2g}"
    return f"{OTHER_SIZE}, {times} times the size"


def gaps(
    paper: Mapping[str, float | str],
    ours: Mapping[str, Sequence[float]],
    against: Mapping[str, str],
) -> list[Gap]:
    """The gaps of all rows that have one in the paper and here.

    Args:
      paper: score by row, or word for its gap; a row that the paper leaves blank is missing.
      ours: scores of all seeds by row.
      against: row that each row is compared with.
    """
    printed = {row: printed_gap(paper, row, other) for row, other in against.items()}
    return [
        Gap(row, against[row], theirs, (ours[row], ours[against[row]]))
        for row, theirs in printed.items()
        if theirs is not None and {row, against[row]} <= ours.keys()
    ]


def printed_gap(paper: Mapping[str, float | str], row: str, against: str) -> float | str | None:
    """The paper's gap, or its word; None where it prints none."""
    theirs, other = paper.get(row), paper.get(against)
    if theirs is None or isinstance(theirs, str):
        return theirs
    if other is None or isinstance(other, str):
        return None
    return round(theirs - other, 9)  # of figures with a few decimals


def _sign(gap: float, least: float) -> int:
    return 0 if abs(gap) < least or gap == 0 else int(math.copysign(1, gap))
