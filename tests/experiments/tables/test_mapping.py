"""Tables that are not valid, and those that are compared by side."""

import tomllib

import pytest

from attnlab.runs.errors import Invalid
from experiments.tables import mapping, verdicts
from experiments.tables.mapping import read_tables
from tests.several import run_python

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
        ("score =", "skore =", "no such key, skore; leave it out"),
        ("score =", "collapsed = { F1 = 2 }\nscore =", "no such key, F1; leave it out"),
        ("{ cell.att", "{ cel.att", "no such key, cel; leave it out"),
        ("Reformer =", "Reformers =", "or says published = false; got 'Reformers'; give Transf"),
    ],
)
def test_what_would_count_for_nothing_is_refused(right, wrong, message, tmp_path):
    (path := tmp_path / "lra.toml").write_text(TABLE)
    assert list(read_tables(path, STUDIES)) == ["listops"]
    path.write_text(TABLE.replace(right, wrong, 1))
    with pytest.raises(Invalid, match=f"table listops: .*{message}"):
        read_tables(path, STUDIES)


def test_help_reads_no_table():
    code = "import tomllib; tomllib.loads = None; from experiments.tables import __main__ as tables"
    code += "; tables.main(['tables', '--help'])"
    assert "--only=" in run_python("-c", code)


@pytest.mark.parametrize("name", ["xu1_dates", "lra1"])
def test_tasks_that_differ_in_kind_are_compared_by_side(name):
    table = mapping.all_tables()[name]
    base, other = table.rows[:2]
    paper = {base: "20", other: "21"}
    for gap, verdict in ((9.0, verdicts.REPRODUCED), (-9.0, verdicts.OPPOSITE)):
        scores = {base: (60.0, 60.1, 60.2), other: (60.0 + gap, 60.1 + gap, 60.2 + gap)}
        found = {row: [{table.score: x} for x in some] for row, some in scores.items()}
        assert table.verdicts(paper, found)[other] == verdict
        assert "Only sides are compared" in table.remarks(found)[0]
