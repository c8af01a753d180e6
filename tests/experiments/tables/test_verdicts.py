"""The two rules of the verdicts, each verdict once, on numbers made up for it."""

import pytest

from attnlab.runs.intervals import gap_half_width
from experiments.tables import verdicts
from experiments.tables.verdicts import (
    CANNOT_TELL,
    DIFFERENCE,
    NO_DIFFERENCE,
    OPPOSITE,
    OTHER_SIZE,
    REPRODUCED,
    of_gap,
)


@pytest.mark.parametrize(
    ("paper", "ours", "half_width", "verdict"),
    [
        (2.0, 1.0, 0.5, REPRODUCED),  # from half of the paper's gap
        (2.0, 4.0, 3.9, REPRODUCED),  # to twice
        (2.0, 0.9, 0.5, f"{OTHER_SIZE}: 0.45 times the paper's"),
        (-0.5, -45.7, 1.0, f"{OTHER_SIZE}: 91 times the paper's"),  # BERT's masking
        (2.0, -1.0, 0.5, OPPOSITE),
        (2.0, 0.1, 0.1, NO_DIFFERENCE),
        (-5.2, 0.0, 0.0, NO_DIFFERENCE),  # all seeds at 100 %
        (0.2, 1.0, 0.5, DIFFERENCE),
        (0.2, 0.1, 0.1, REPRODUCED),
        (0.2, 0.1, 0.4, CANNOT_TELL),
        (2.0, 2.0, 2.1, CANNOT_TELL),
        (2.0, 2.0, float("inf"), CANNOT_TELL),  # one seed
        ("less", -9.0, 1.0, REPRODUCED),
        ("less", 9.0, 1.0, OPPOSITE),
        ("more", 0.0, 0.2, NO_DIFFERENCE),
        ("level", 0.0, 0.2, REPRODUCED),
        ("level", -1.0, 0.2, DIFFERENCE),
    ],
)
def test_the_verdict_on_a_gap(paper, ours, half_width, verdict):
    assert of_gap(paper, ours, half_width, tie=0.3) == verdict


PAPER = {"base": 20.0, "better": 22.0, "worse": 18.0, "blank here": 21.0}
AGAINST = {row: "base" for row in ("better", "worse", "blank here", "new")}


def around(mean):
    return [mean - 0.2, mean, mean + 0.2]


def of(**ours):
    return verdicts.of_gaps(PAPER, {"base": around(30), **ours}, against=AGAINST, tie=0.3)


def test_rows_without_a_gap_say_why():
    assert of()["base"] == "(base)"
    assert of(new=around(31))["new"] == "(the paper has none)"
    assert of(better=[32.0])["better"] == CANNOT_TELL
    alone = {"better": around(32)}
    assert verdicts.of_gaps(PAPER, alone, against=AGAINST, tie=0.3) == {"better": "not run"}


def test_the_interval_of_a_gap_is_welchs():
    """Rows that vary alike have 4 degrees of freedom; beside one that does not, 2 are left."""
    (gap,) = verdicts.gaps(PAPER, {"base": around(30), "better": around(32)}, {"better": "base"})
    assert (gap.paper, gap.ours) == (2.0, pytest.approx(2.0))
    error = (2 * 0.2**2 / 3) ** 0.5
    assert gap.half_width == pytest.approx(2.776 * error, rel=1e-3)
    assert gap_half_width(around(1), [5.0] * 3) == pytest.approx(4.303 * error / 2**0.5, rel=1e-3)


def test_a_row_that_scatters_leaves_the_verdicts_of_others():
    judged = of(better=around(32), worse=[1.0, 8.0, 19.0])
    assert judged["better"] == REPRODUCED and judged["worse"] == CANNOT_TELL


def test_a_gap_as_large_as_a_tie_is_one_whatever_its_last_bits():
    for one, other in ((25.8, 25.5), (25.4, 25.1)):
        ours = {"one": around(30), "other": around(20)}
        assert sum(verdicts.pairs({"one": one, "other": other}, ours, tie=0.3).values()) == 1


def test_pairs_are_counted_by_their_order():
    ours = {"base": [30.0] * 3, "better": around(33), "worse": around(31), "blank here": [30.0] * 3}
    assert verdicts.pairs(PAPER, ours, tie=0.3) == {
        "in the same order": 3,  # better than each
        "in the other order": 2,  # worse is above base and the blank row
        "tie here": 1,
        "undecided": 0,
    }
