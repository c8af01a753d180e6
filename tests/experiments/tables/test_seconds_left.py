"""Runs that are kept, played again: what they would have said of the time that is left."""

import shutil
from pathlib import Path

import pytest

from attnlab.runs import remaining
from attnlab.runs.folder import Folder
from experiments.tables import __main__ as tables
from experiments.tables.settings import Settings

KEPT = Path(__file__).resolve().parents[3] / "experiments" / "results"


# Of one run each. Not of models that take 8 to 46 minutes each (bahdanau1): of those a quarter to
# a half is said.
@pytest.mark.parametrize("name", ["tables_cpu_measured", "tables_cpu_luong6", "tables_cpu_xu1"])
def test_a_kept_run_would_have_said_the_time_that_was_left(name, tmp_path, monkeypatch):
    jobs = []
    monkeypatch.setattr(tables.loop, "run", lambda *given, where: jobs.append(given) or 0)
    folder = Folder.kept("tables", shutil.copytree(KEPT / name, tmp_path / name))
    assert tables.run(Settings.from_json(folder.settings), folder) == 0
    ((job, _, _, rows),) = jobs
    kept, ratios = dict(rows.kept), []
    spent = remaining.spent(kept)
    cells = list(dict.fromkeys(cell for cell, _ in kept))
    for i in range(1, len(cells)):
        rows.kept = {key: one for key, one in kept.items() if key[0] in cells[:i]}
        done = sum(spent[key] for key in rows.kept)
        true = sum(spent.values()) - done
        if done >= 60 and true >= 60:  # in the last minute it may say two
            ratios.append(job.seconds_left(cells[i:]) / true)
    assert ratios and 0.5 < min(ratios) and max(ratios) < 2


def test_a_run_that_makes_several_cells_is_counted_once(tmp_path, monkeypatch):
    jobs = []
    monkeypatch.setattr(tables.loop, "run", lambda *given, where: jobs.append(given) or 0)
    folder = Folder.kept(
        "tables", shutil.copytree(KEPT / "tables_cpu_reformer", tmp_path / "reformer")
    )
    tables.run(Settings.from_json(folder.settings), folder)
    ((job, cells, _, rows),) = jobs
    assert len(cells) == 20 and job.seconds_left(cells[1:]) is None  # there is but one run
    rows.kept = {}
    assert job.seconds_left(cells) is None  # and nothing is known before it
