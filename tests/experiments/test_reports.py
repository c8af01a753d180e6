"""Each kept run is reported again from its rows, and says to the letter what its report says.

Beside the results that are kept, `reports/` has small runs of what seldom happens, with what their
figures show: a reader of a change sees there what it does to whole reports. Where a change is
meant, `python -m tests.experiments.reporting FOLDER…` writes them again.
"""

import re
from pathlib import Path

import pytest

import experiments
from attnlab.runs.folder import REPORT
from tests.experiments.reporting import experiment_of, report_again, texts_of

RESULTS = Path(experiments.__file__).parent / "results"
ODD = Path(__file__).parent / "reports"
COUNTED = RESULTS / "tables"  # the page of tests/papers, of no run
PLACES = sorted(path.parent for place in (RESULTS, ODD) for path in place.rglob(REPORT))
FOLDERS = [folder for folder in PLACES if folder != COUNTED]
FIGURE = re.compile(r"^!\[.*\]\((.*)\.svg\)$", re.MULTILINE)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda x: "/".join(x.parts[-2:]))
def test_a_kept_report_is_that_of_its_rows(folder):
    again = report_again(experiment_of(folder), folder)
    for name, text in texts_of(again, folder).items():
        assert text == (folder / name).read_bytes().decode(), f"{folder / name}"
    linked = set(FIGURE.findall(again.markdown))
    drawn = {name for name, figure in again.figures.items() if figure is not None}
    there = {path.stem for path in folder.glob("*.svg")}
    assert drawn <= linked <= drawn | there


def test_results_are_kept():
    assert len(FOLDERS) > 80


def test_what_is_kept_names_no_folder_of_a_machine():
    absolute = re.compile(r'(^|[" =,])/\w+/\w')
    kept = [path for path in RESULTS.rglob("*.*") if path.suffix in (".jsonl", ".json", ".md")]
    assert [path for path in kept if absolute.search(path.read_text())] == []
