"""Kept reports: today's rules and rows say of the kept numbers what the reports say."""

import csv
import json
from pathlib import Path

import pytest

from attnlab.runs.folder import Folder
from attnlab.runs.rows import Rows
from experiments.tables import report
from experiments.tables.beside import Context, Found
from experiments.tables.settings import Cell, Settings

KEPT = Path(__file__).resolve().parents[3] / "experiments" / "results"
DATA = {"multi30k": [], "text": [], "wmt14": []}


@pytest.mark.parametrize("folder", sorted(KEPT.glob("tables*")), ids=lambda path: path.name)
def test_a_kept_report_has_the_verdicts_of_its_rows(folder):
    settings = Settings.from_json(json.loads((folder / "settings.json").read_text()))
    rows = Rows(
        Folder.kept("tables", folder), lambda row: (Cell(row.table, row.row), row.seed), [Found]
    )
    context = Context(settings.scale, folder, settings.seeds, DATA)
    sections = report.sections(report.published(settings.tables()), rows.kept, context)
    again = {(x.table, x.row): (x.paper, x.ours, x.verdict) for one in sections for x in one.lines}
    lines = csv.DictReader((folder / "results.csv").read_text().splitlines())
    said = {(x["table"], x["row"]): (x["paper"], x["ours"], x["verdict"]) for x in lines}
    assert again == said and said
