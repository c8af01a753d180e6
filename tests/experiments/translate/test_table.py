"""The report of translations: its answer, its tables, and what it leaves blank."""

import pytest

from attnlab.runs.report import SoFar
from attnlab.runs.rows import Where
from attnlab.runs.units import PLUS_MINUS
from attnlab.training.bleu import Bleu
from experiments.translate.table import Row, markdown

WHERE = Where({"device": "a processor"})


def bleu(score):
    return Bleu(score, "nrefs:1|tok:13a", 0.9871, (50.0, 30.0, 20.0, 10.0), 98, 99)


def report(rows, **changed):
    told = SoFar(rows, command="launch/local x", wheres=[WHERE])
    return markdown(told, task="A task.", **changed)


def cells(text, first):
    """The cells of the lines of tables that begin with `first`."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {first} ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


ROWS = [
    Row("RNNencdec", 1234567, 5000, 600.0, 2500.4, 9.876, bleu(20.04)),
    Row("RNNsearch", 2345678, 5000, 900.0, 2000.0, 6.5, bleu(31.26), None, 0.25),
    Row("Luong", 7, 5000, 900.0),
]


def test_the_best_is_told_first():
    assert "**RNNsearch reaches 31.3 BLEU, RNNencdec 20.0.**" in report(ROWS)
    by_match = [Row("a", 1, 2, 3.0, exact_match=0.5), Row("b", 1, 2, 3.0, exact_match=0.985)]
    assert "**b reaches 98.5% exact match, a 50.0%.**" in report(by_match)
    assert "**No test score was measured.**" in report(ROWS[2:])


def test_results_are_as_measured_and_the_rest_is_blank():
    text = report(ROWS)
    assert cells(text, "model") == [
        ["model", "parameters", "steps", "minutes", "tokens/s", "validation perplexity", "BLEU"]
        + ["brevity penalty", "AER"]
    ]  # no exact match: nothing measured it
    assert cells(text, "RNNsearch") == [
        ["RNNsearch", "2,345,678", "5,000", "15.0", "2,000", "6.50", "31.3", "0.987", "0.250"]
    ]
    assert cells(text, "Luong") == [["Luong", "7", "5,000", "15.0", "", "", "", "", ""]]
    assert "`nrefs:1|tok:13a`" in text


def test_several_seeds_are_shown_one_by_one_and_as_their_mean():
    rows = [Row("a", 1, 2, 3.0, exact_match=x, seed=i) for i, x in enumerate((0.5, 0.7))]
    rows.append(Row("b", 1, 2, 3.0, exact_match=0.25))
    text = report(rows)
    assert "**a reaches 60.0% ± 127.1% exact match, b 25.0%.**" in text and PLUS_MINUS in text
    assert cells(text, "a") == [
        ["a", "0", "1", "2", "0.1", "50.0%"],
        ["a", "1", "1", "2", "0.1", "70.0%"],
        ["a", "2", "60.0% ± 127.1%"],
    ]
    assert cells(text, "b") == [["b", "0", "1", "2", "0.1", "25.0%"], ["b", "1", "25.0%"]]


def test_where_it_was_measured_and_how_to_do_it_again():
    text = report(ROWS, figures={"length.svg": "BLEU by length"}, notes=["A note."])
    assert "## Where\n\n    launch/local x\n\n" in text
    assert cells(text, "device") == [["device", "a processor"]]
    assert "![BLEU by length](length.svg)" in text and "\n\nA note.\n\n" in text


def test_a_report_of_nothing():
    with pytest.raises(ValueError, match="nothing to report"):
        report([])
