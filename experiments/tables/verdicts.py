"""What is said of a cell, by rules that were fixed before any was run."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["EXACT", "NOT_REPRODUCED", "RULES", "is_rounded", "of_count", "of_exponents", "rounded"]

TOLERANCE = 0.15  # of an exponent: blocks are whole, and a sequence has ends
RULES = (
    "A number of parameters is *exact* where ours, rounded as the paper rounds, is the paper's;"
    " where the paper has none, ours must equal a closed form to the last parameter. Exponents are"
    f" *exact* where each is within {TOLERANCE:g} of the paper's. Else: *not reproduced*."
)
EXACT, NOT_REPRODUCED = "exact", "not reproduced"


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
    near = all(abs(ours[size] - exponent) <= TOLERANCE for size, exponent in paper.items())
    return EXACT if near else NOT_REPRODUCED


def is_rounded(printed: str) -> bool:
    """Whether it is in millions, and no whole count: no model has so few as 1000 parameters."""
    return float(printed) < 1000
