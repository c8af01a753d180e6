"""Tables that are not valid: the line of the file, the rule, what was got, the remedy."""

import subprocess
import sys
import tomllib

import pytest

from attnlab.runs.errors import Invalid
from experiments.tables import __main__ as experiment
from experiments.tables import mapping, verdicts
from experiments.tables.mapping import read_tables
from tests.experiments import tiny

STUDIES = tomllib.loads((mapping.FOLDER / "studies.toml").read_text())
TABLE = """\
[listops]
title = "ListOps"
file = "lra2020_table1.csv"
column = "ListOps"
study = "long_range"
score = "accuracy"
flags = { tasks = "listops" }

[listops.rows]
Transformer = { cell.attention = "exact" }
Reformer = { cell.attention = "lsh-2" }
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('"long_range"', '"long"', "5: a study must be known; got 'long'; give compare_lengths, "),
        ("tasks =", "task =", "7: a flag of `long_range`, here of 'Transformer', must be known; "),
        ('"accuracy"', '"F1"', "6: a score of the study must be known; got 'F1'; give accuracy"),
        (
            'title = "ListOps"',
            "",
            "1: a table has a title, a file, a column and rows; got no title",
        ),
        ("title =", "titel =", "2: a key of a table must be known; got 'titel'; give base, "),
        ("{ cell.att", "{ cel.att", "10: a key of the row 'Transformer' must be known; got 'cel'"),
        (
            "Reformer =",
            "Reformers =",
            "11: a row is one of lra2020_table1.csv, or says published = false; got 'Reformers'; "
            "give Transformer; Local Attention; ",
        ),
    ],
)
def test_what_is_not_valid_is_one_line(right, wrong, message, tmp_path):
    (path := tmp_path / "lra.toml").write_text(TABLE)
    assert list(read_tables(path, STUDIES)) == ["listops"]
    path.write_text(TABLE.replace(right, wrong, 1))
    with pytest.raises(Invalid) as refused:
        read_tables(path, STUDIES)
    said = str(refused.value)
    assert said.startswith(f"lra.toml:{message}") and "\n" not in said


def test_a_file_that_is_not_toml_ends_the_program_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(mapping, "FOLDER", tmp_path)
    mapping.all_tables.cache_clear()
    (tmp_path / "studies.toml").write_text("")
    (tmp_path / "lra.toml").write_text(TABLE + "Local Attention = {}\n")
    status, _, err = tiny.run(experiment, "--scale=cpu", f"--output_dir={tmp_path / 'out'}")
    assert status == 2 and err.startswith("tables: lra.toml: ") and "at line 12, column 7" in err
    assert err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_help_reads_no_table():
    code = "import tomllib; tomllib.loads = None; from experiments.tables import __main__ as tables"
    code += "; tables.main(['tables', '--help'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0 and "--only=" in run.stdout, run.stderr


@pytest.mark.parametrize("name", ["xu1_dates", "lra1"])
def test_tasks_that_differ_in_kind_are_compared_by_side(name):
    table = mapping.all_tables()[name]
    base, other = table.rows[:2]
    paper = {base: "20", other: "21"}
    for gap, verdict in ((50.0, verdicts.REPRODUCED), (-50.0, verdicts.OPPOSITE)):
        scores = {base: (10.0, 10.1, 10.2), other: (10.0 + gap, 10.1 + gap, 10.2 + gap)}
        found = {row: [{table.score: x} for x in some] for row, some in scores.items()}
        assert table.verdicts(paper, found)[other] == verdict
        assert "Only sides are compared" in table.remarks(found)[0]
