"""The rules of the verdicts on trained tables, on numbers made up for each."""

import pytest

from experiments.tables import verdicts
from experiments.tables.verdicts import NOT_REPRODUCED, SAME_ORDER, WITHIN

PAPER = {"base": 20.0, "better": 22.0, "equal": 20.1, "worse": 18.0, "blank here": 21.0}
AGAINST = {row: "base" for row in ("better", "equal", "worse", "blank here", "new")}


def of(**ours):
    ours = {"base": [30.0, 30.2, 29.8], **ours}
    return verdicts.of_gaps(PAPER, ours, against=AGAINST, tie=0.3)


def around(mean):
    return [mean - 0.2, mean, mean + 0.2]


@pytest.mark.parametrize(
    ("row", "mean", "verdict"),
    [
        ("better", 32.1, WITHIN),
        ("better", 35.0, SAME_ORDER),
        ("better", 30.1, f"{NOT_REPRODUCED}: no gap beyond the spread"),
        ("better", 28.0, f"{NOT_REPRODUCED}: the other order"),
        ("equal", 30.1, WITHIN),
        ("equal", 33.0, f"{NOT_REPRODUCED}: a gap beyond the spread where the paper has none"),
        ("worse", 28.1, WITHIN),
    ],
)
def test_the_verdict_on_a_gap(row, mean, verdict):
    assert of(**{row: around(mean)})[row] == verdict


def test_rows_without_a_gap_say_why():
    assert of()["base"] == "(base)"
    assert of(new=around(31))["new"] == "(the paper has none)"
    assert of(better=[32.0])["better"] == "(one seed has no spread)"
    for base in ([30.0], []):
        ours = {"better": around(32), "base": base} if base else {"better": around(32)}
        judged = verdicts.of_gaps(PAPER, ours, against=AGAINST, tie=0.3)
        assert judged["better"] == "(no spread of the row that it is compared with)"


def test_the_spread_is_of_the_larger_variance():
    """A row whose seeds agree by chance is no surer than the table; one that varies is less."""
    ours = {"base": [30.0] * 3, "better": [31.0, 32.0, 33.0], "new": [29.0, 29.5, 30.0]}
    (gap,) = verdicts.gaps(PAPER, ours, {"better": "base"})
    assert gap.ours == 2.0 and gap.spread == pytest.approx(2 * ((0.25 + 1.0) / 3) ** 0.5)


def test_a_row_that_collapses_leaves_the_verdicts_of_others():
    ours = {"equal": around(30), "better": around(32), "worse": [1.0, 8.0, 19.0]}
    found = of(**ours)
    assert found["better"] == WITHIN and found["equal"] == WITHIN


def test_a_gap_as_large_as_a_tie_is_one_whatever_its_last_bits():
    for one, other in ((25.8, 25.5), (25.4, 25.1)):
        paper = {"one": one, "other": other}
        ours = {"one": around(30), "other": around(20)}
        assert sum(verdicts.pairs(paper, ours, tie=0.3).values()) == 1


def test_pairs_are_counted_by_their_order():
    ours = {"base": around(30), "better": around(33), "worse": around(31), "equal": around(30)}
    assert verdicts.pairs(PAPER, ours, tie=0.3) == {
        "in the same order": 3,  # better than each
        "in the other order": 2,  # worse is not than base and equal
        "within the spread": 0,
    }


def test_words_are_judged_by_the_gap_from_the_row_above():
    rows = ("first", "second", "third", "fourth")
    paper = dict(zip(rows[1:], ("less", "level", "more"), strict=True))
    against = dict(zip(rows[1:], rows, strict=False))

    def judged(*means):
        ours = {row: around(mean) for row, mean in zip(rows, means, strict=False)}
        return list(verdicts.of_words(paper, ours, against=against).values())

    assert judged(3.0, 2.0, 2.1, 3.0) == ["(base)", SAME_ORDER, SAME_ORDER, SAME_ORDER]
    assert judged(2.0, 3.0, 2.0, 2.1)[1:] == [
        f"{NOT_REPRODUCED}: it is {word}" for word in ("more", "less", "level")
    ]
    alone = verdicts.of_words(paper, {"first": [1.0], "second": [2.0]}, against=against)
    assert alone["second"] == verdicts.ONE_SEED
