"""The rules of the verdicts, each verdict once, on numbers made up for it."""

import dataclasses
import math

import pytest

from experiments.tables.mapping import all_tables
from experiments.tables.verdicts import (
    DIFFERENCE,
    NO_DIFFERENCE,
    NOT_COMPARABLE,
    OPPOSITE,
    REPRODUCED,
    UNDECIDED,
    Gap,
    judge_gap,
    judge_ratio,
    kind,
    severity,
)


@pytest.mark.parametrize(
    ("paper", "ours", "half_width", "verdict"),
    [
        (2.0, 1.0, 0.5, REPRODUCED),  # from half of the paper's gap
        (2.0, 4.0, 3.9, REPRODUCED),  # to twice
        (2.0, 0.9, 0.5, "same direction, 0.45 times the size"),
        (-0.5, -45.7, 1.0, "same direction, 91 times the size"),  # BERT's masking
        (2.0, -1.0, 0.5, OPPOSITE),
        (2.0, 0.1, 0.1, NO_DIFFERENCE),
        (0.2, 1.0, 0.5, DIFFERENCE),
        (0.2, 0.1, 0.1, REPRODUCED),
        (0.2, 0.1, 0.4, UNDECIDED),
        (2.0, 2.0, 2.1, UNDECIDED),
        ("less", -9.0, 1.0, REPRODUCED),
        ("less", 9.0, 1.0, OPPOSITE),
        ("more", 0.0, 0.2, NO_DIFFERENCE),
        ("level", 0.0, 0.2, REPRODUCED),
        ("level", -1.0, 0.2, DIFFERENCE),
        ("level", -1.0, 0.8, UNDECIDED),  # not all beyond the tie
        (0.2, 1.0, 0.8, UNDECIDED),
    ],
)
def test_the_verdict_on_a_gap(paper, ours, half_width, verdict):
    values = [ours - half_width / 2.484, ours, ours + half_width / 2.484]  # 4.303 / √3
    judged = judge_gap(Gap("", "", paper, (values,)), tie=0.3)
    assert (kind(judged) if verdict == UNDECIDED else judged) == verdict


TABLE = dataclasses.replace(all_tables()["vaswani3"], base="base")
PAPER = {"base": "20.0", "A1": "22.0", "A2": "18.0", "A3": "21.0"}


def around(mean):
    return [{"BLEU": x} for x in (mean - 0.2, mean, mean + 0.2)]


def test_rows_without_a_gap_say_why():
    found = {"base": around(30), "A4": around(31), "A1": [{"BLEU": 32.0}]}
    assert TABLE.verdicts(PAPER, found) == {
        "base": "(base)",
        "A4": "(the paper has none)",
        "A1": "undecided: one seed shows no variance",
    }
    assert TABLE.verdicts(PAPER, {"A1": around(32)}) == {"A1": "not run"}


def test_what_is_at_the_ceiling_or_does_not_vary_tells_two_rows_not_apart():
    table = all_tables()["reformer2"]
    same, near, varied = [100.0] * 3, [100.0, 100.0, 99.9], [97.5, 98.0, 98.5]
    kinds = {
        kind(table.judge(Gap("", "", -5.2, (same, other)), {}, 0.3)): other
        for other in (near, varied, [99.0] * 3)
    }
    assert kinds == {NOT_COMPARABLE: near, OPPOSITE: varied, UNDECIDED: [99.0] * 3}


@pytest.mark.parametrize("paper", ["less", "level", "more", 0.5, 2.0])
@pytest.mark.parametrize("ours", [math.nan, math.inf, 0.0])
def test_what_is_no_number_is_on_no_side(paper, ours):
    assert kind(judge_ratio(paper, ours)) == UNDECIDED
    values = [math.nan, 0.0, 1.0]
    assert kind(judge_gap(Gap("", "", paper, (values,)), tie=0.3)) == UNDECIDED
    table = dataclasses.replace(TABLE, collapsed={"BLEU": 10})
    assert "A1" in table.reasons({"A1": [{"BLEU": x} for x in values]})


def test_the_worst_of_a_kind_is_the_farthest_from_the_papers_size():
    ordered = [
        OPPOSITE, "undecided: over 20 seeds would decide it, |gap| < 2",
        "undecided: 9 seeds would decide it", "same direction, 13 times the size",
        "same direction, 0.4 times the size", REPRODUCED,
    ]  # fmt: skip
    assert sorted(ordered[::-1], key=severity) == ordered


def test_a_row_that_scatters_leaves_the_verdicts_of_others():
    scattered = [{"BLEU": x} for x in (1.0, 8.0, 19.0)]
    judged = TABLE.verdicts(PAPER, {"base": around(30), "A1": around(32), "A2": scattered})
    assert judged["A1"] == REPRODUCED and kind(judged["A2"]) == UNDECIDED


def test_a_gap_as_large_as_a_tie_is_one_whatever_its_last_bits():
    for one, other in (("25.8", "25.5"), ("25.4", "25.1")):
        found = {"base": around(20), "A1": around(20.3)}
        assert TABLE.verdicts({"base": other, "A1": one}, found)["A1"] != NO_DIFFERENCE
        near = [{"BLEU": 20.0 + x} for x in (-0.01, 0.0, 0.01)]
        same = {"base": near, "A1": near}
        assert TABLE.verdicts({"base": other, "A1": one}, same)["A1"] == NO_DIFFERENCE
