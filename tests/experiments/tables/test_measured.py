"""Tables of times and memory: their commands, and a run of `compare_lengths` that stands in."""

import csv
import itertools

import pytest

from attnlab.runs import command_line
from experiments.compare_lengths.settings import Settings as CompareSettings
from experiments.tables import __main__ as experiment
from experiments.tables import mapping, report, runs, verdicts
from experiments.tables.measured import RatioTable
from experiments.tables.runs import Context
from tests.experiments import tiny
from tests.experiments.tables.made import keep_run

TABLES = {name: one for name, one in mapping.all_tables().items() if isinstance(one, RatioTable)}


@pytest.mark.parametrize("name", TABLES)
def test_its_command_measures_every_number_of_the_table(name, tmp_path):
    table, found = TABLES[name], []
    (words,) = table.commands("", Context("cpu", tmp_path, (), {}))
    assert command_line.run(words, CompareSettings, lambda s, _: found.append(s) or 0, doc="") == 0
    cases = {(case.label, case.length, case.passes) for case in found[0].cases(1)}
    for line in (*table.lines.values(), table.base[1]):
        assert all((line, n, table.quantity.passes) in cases for n in table.lengths.values())


def test_ratios_are_those_of_the_papers_numbers():
    """Table 2 of Long Range Arena: 8.4 / 4.9 steps at 2K; of FlashAttention: 5.01 / 0.18 ms."""
    papers = report.read_published(["lra2_speed", "flash18_forward"])
    lra = TABLES["lra2_speed"].paper(papers["lra2_speed"])
    flash = TABLES["flash18_forward"].paper(papers["flash18_forward"])
    assert lra["Local Attention, 2K"] == "1.71×" and flash["Reformer, 512"] == "27.8×"
    assert set(lra) == set(TABLES["lra2_speed"].rows)


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        (2.0, 3.9, verdicts.REPRODUCED),
        (2.0, 4.1, "same direction, 2 times the size"),
        (0.5, 0.3, verdicts.REPRODUCED),
        (1.05, 0.95, verdicts.REPRODUCED),
        (2.0, 0.5, verdicts.OPPOSITE),
        (2.0, 1.05, verdicts.NO_DIFFERENCE),
        (1.0, 1.2, verdicts.DIFFERENCE),
        ("less", 0.4, verdicts.REPRODUCED),
        ("less", 1.05, verdicts.NO_DIFFERENCE),
    ],
)
def test_the_verdict_on_a_ratio(paper, ours, verdict):
    assert verdicts.judge_ratio(paper, ours) == verdict


def test_one_run_serves_all_rows_and_a_case_that_is_missing_leaves_the_others(
    no_figures, monkeypatch, tmp_path
):
    made = []

    def run(words):
        made.append(words)
        lines = [{"unit": {"name": "exp", "dtype": "float32"}, "rate": 1.0}]
        seconds = {"exact": 8.0, "window-128": 2.0, "lsh-4": 4.0}
        for (name, one), n in itertools.product(seconds.items(), (1024, 2048, 3072, 4096)):
            case = {"mechanism": name, "length": n, "passes": "forward_backward"}
            case["implementation"] = "dense" if name == "exact" else None
            lost = name == "window-128" and n == 3072
            row = {"case": case, "status": "too_slow" if lost else "ok", "memory_bytes": 1000 * one}
            row |= {"median_seconds": one, "environment": {"revision": "abc"}}
            row["busy"] = name == "window-128" and n == 4096
            lines += [row | {"case": case | {"passes": "forward"}, "median_seconds": 1.0}, row]
        keep_run(words, lines)
        return ""

    monkeypatch.setattr(runs, "run", run)
    flags = ["--only=lra2_speed,lra2_memory", "--scale=cpu", f"--output_dir={tmp_path}"]
    status, out, err = tiny.run(experiment, *flags)
    assert (status, err, len(made)) == (1, "", 1)
    assert "lra2_speed, Local Attention, 3K: no row of it" in out
    (folder,) = tmp_path.glob("tables-*")
    lines = csv.DictReader((folder / "results.csv").read_text().splitlines())
    by = {(line["table"], line["row"]): line for line in lines}
    local = by["lra2_speed", "Local Attention, 2K"]
    assert (local["paper"], local["ours"], local["revision"]) == ("1.71×", "4.00×", "abc")
    assert local["verdict"] == "same direction, 2.3 times the size"
    assert by["lra2_speed", "Local Attention, 3K"]["verdict"] == "not run"
    assert by["lra2_speed", "Local Attention, 4K"]["verdict"] == "not run"  # a busy machine
    assert by["lra2_memory", "Local Attention, 4K"]["ours"] == "0.250×"
    assert by["lra2_speed", "Reformer, 1K"]["verdict"].startswith("not comparable: LRA's code")
    text = (folder / "report.md").read_text()
    assert "Ratios to *Transformer*, ours to `exact:dense`. Above 1 is faster" in text
    assert verdicts.RULES["ratio"] in text and "Multi30k" not in text
