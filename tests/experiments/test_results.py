"""Every kept result says which command gave it and on which machine, and can be resumed."""

import importlib
import json
import re
from pathlib import Path

import pytest

import experiments

RESULTS = Path(experiments.__file__).parent / "results"
WHERE = re.compile(r"## Where\n\n    launch/local (\w+)[^\n]*\n\n\| +\| +where \|\n", re.MULTILINE)
REPORTS = sorted(RESULTS.rglob("report.md"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda x: str(x.parent.relative_to(RESULTS)))
def test_a_kept_result_says_where_it_is_from(report, monkeypatch):
    (name,) = WHERE.findall(report.read_text())
    settings = importlib.import_module(f"experiments.{name}.settings").Settings
    # Which compilers and files are here is of no interest.
    monkeypatch.setattr(settings, "__post_init__", lambda self: None)
    settings.from_json(json.loads((report.parent / "settings.json").read_text()))
    assert (report.parent / "results.jsonl").stat().st_size > 0


def test_results_are_kept():
    assert len(REPORTS) > 50
