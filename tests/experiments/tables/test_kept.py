"""Kept reports: today's rules and rows say of the kept numbers what the reports say."""

import csv
import io
import re
from pathlib import Path

import pytest

from experiments.tables import claims, report, scoreboard, verdicts

KEPT = Path(__file__).resolve().parents[3] / "experiments" / "results"


@pytest.mark.parametrize("folder", sorted(KEPT.glob("tables*")), ids=lambda path: path.name)
def test_a_kept_report_has_the_verdicts_and_the_numbers_of_its_rows(folder):
    again = csv.DictReader(io.StringIO(report.csv_text(report.of_kept(folder))))
    kept = csv.DictReader(io.StringIO((folder / "results.csv").read_text()))
    said = {(x["table"], x["row"]): _in_any_folder(x) for x in kept}
    assert said and {(x["table"], x["row"]): _in_any_folder(x) for x in again} == said


def _in_any_folder(line):
    """A line whose command may name any folder."""
    return line | {"command": re.sub(r"--(init_from|run_dir)=\S+", "", line["command"])}


def test_the_kept_scoreboard_has_the_verdicts_of_the_kept_rows():
    found = list(claims.judged(list(claims.all_claims().values())))
    assert len(found) >= 40
    assert (KEPT / "claims" / "scoreboard.md").read_text() == scoreboard.markdown(found)
    kinds = [verdicts.kind(one.line.verdict) for one in found]
    unknown = kinds.count(verdicts.UNDECIDED) + kinds.count(verdicts.NOT_RUN)
    assert 3 * unknown < len(found)
