"""The page of the counted numbers: the papers' numbers, the kept rows, and the rules."""

import math
from collections import Counter

import pytest

from experiments.tables import verdicts
from tests.papers.counted import (
    COLUMNS,
    KEPT,
    PAGE_HEAD,
    SECTIONS,
    judge_count,
    judge_exponents,
    read_published,
    rows_of,
)


def cells_of(text):
    """The cells of a table in Markdown, without its two first lines."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("table", COLUMNS)
def test_the_page_and_the_kept_rows_have_the_papers_numbers(table):
    published, column = read_published(table), COLUMNS[table][1]
    printed = {row: cells[column] for row, cells in published.printed.items() if column in cells}
    kept = [KEPT[key] for key in rows_of(table)]
    for row in kept:
        assert row["paper"] == printed[row["row"]]
    if column == "params_millions":
        assert {row["row"] for row in kept} == set(printed), "a printed number is not counted"
    shown = [[row["row"], row["paper"], row["ours"], row["verdict"]] for row in kept]
    if kept[0]["vocabularies"]:
        shown = [[*cells, row["vocabularies"]] for cells, row in zip(shown, kept, strict=True)]
    assert cells_of(SECTIONS[table]) == shown
    assert f"\nPaper: {published.source}; column `{column}`.\n" in SECTIONS[table]


def test_the_page_begins_with_the_numbers_of_verdicts_and_their_rule():
    assert verdicts.RULES["exact"] in PAGE_HEAD
    for table, (link, beside, counts) in zip(COLUMNS, cells_of(PAGE_HEAD), strict=True):
        assert link.startswith(f"[{table}](#")
        kinds = Counter(verdicts.kind(KEPT[key]["verdict"]) for key in rows_of(table))
        assert counts == ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds))
        is_ours = COLUMNS[table][1].startswith("exact_")
        assert beside == ("a closed form of ours" if is_ours else "the paper")


def test_the_verdict_on_a_count():
    assert judge_count("66.32", 66_324_623) == verdicts.EXACT
    assert judge_count("66.33", 66_324_623) == verdicts.NOT_EXACT
    assert judge_count("80401000", 80_401_001) == verdicts.NOT_EXACT


def test_the_verdict_on_exponents():
    assert judge_exponents({"n": 2, "R": 1}, {"n": 2.1, "R": 0.9}) == verdicts.EXACT
    assert judge_exponents({"n": 2, "R": 1}, {"n": 1, "R": 1}) == "not exact: less"
    assert judge_exponents({"n": 2, "R": 1}, {"n": 1, "R": 1.3}) == "not exact"
    assert judge_exponents({"n": 1, "d": 2}, {"n": 1, "d": math.nan}) == "not exact"
