"""Trained tables: what is judged and drawn, and runs of other experiments from end to end."""

import csv
import json
import os
import re
import subprocess
import sys
import time
import warnings

import pytest

from attnlab.runs.errors import Invalid
from experiments.tables import __main__ as experiment
from experiments.tables import mapping, report, runs, verdicts
from experiments.tables.runs import Command
from experiments.tables.trained import ScoreTable, TrainedTable, Training
from experiments.translate import __main__ as training
from experiments.translate import __main__ as translate
from tests.experiments import tiny
from tests.experiments.tables.made import keep_run, make_line

TRAINED = {name: one for name, one in mapping.all_tables().items() if isinstance(one, TrainedTable)}
TABLES = {name: one for name, one in TRAINED.items() if isinstance(one, ScoreTable)}


def test_a_training_that_fails_leaves_its_other_seeds_and_rows(no_figures, monkeypatch, tmp_path):
    """A row with a seed that diverges keeps the others; the run goes on, and ends with status 1."""
    monkeypatch.setitem(mapping.all_tables(), "luong6", SMALL)

    def run(words):
        fails = "--models=luong" in words
        seeds = (0,) if fails else (0, 1)
        scores = [{"exact match": 0.5, "AER": 0.2 + seed / 10} for seed in seeds]
        keep_run(words, [make_line(seed, scores[seed]) for seed in seeds])
        return "diverged" if fails else ""

    monkeypatch.setattr(runs, "run", run)
    flags = ["--only=luong6", "--scale=cpu", "--seeds=0,1"]
    status, out, err = tiny.run(experiment, *flags, f"--output_dir={tmp_path}")
    assert status == 1 and "seed 1 of global (location): diverged" in out
    (folder,) = tmp_path.glob("tables-*")
    first, second = csv.DictReader((folder / "results.csv").read_text().splitlines())
    assert (first["ours"], first["seeds"]) == ("0.200", "0")
    assert (second["ours"], second["seeds"]) == ("0.250 ± 0.635", "0,1")
    assert second["verdict"] == "undecided: one seed shows no variance"


def test_a_tuning_begins_with_the_run_that_pretrains_its_models(no_figures, monkeypatch, tmp_path):
    """One of each for all rows; what fails before it is the reason that its rows are missing."""
    (text := tmp_path / "text.txt").touch()
    made, failing = [], ["pretrain"]

    def run(words):
        made.append(words)
        name = words[0].removeprefix("experiments.")
        lines = [
            make_line(seed, {"accuracy": share + seed / 10}, start="tuned", pretraining=before)
            for before, share in (("mlm_nsp, 80/10/10", 0.7), ("mlm, 80/10/10", 0.5))
            for seed in (0, 1)
        ]
        if words[-1].startswith("--output_dir="):
            keep_run(words, lines if name == "finetune" else [])
        return f"{name} failed" if name in failing else ""

    monkeypatch.setattr(runs, "run", run)
    flags = ["--only=bert5", "--scale=cpu", "--seeds=0,1", f"--text={text}"]
    status, out, _ = tiny.run(experiment, *flags, f"--output_dir={tmp_path / 'out'}")
    assert status == 1 and [words[0] for words in made] == ["experiments.pretrain"]
    assert "seed 0, 1 of No NSP: pretrain failed" in out
    (folder,) = (tmp_path / "out").glob("tables-*")
    made.clear(), failing.clear()
    tiny.finish(experiment, f"--resume={folder}")
    before, tuning = made
    assert before[0] == "experiments.pretrain" and f"--input={text}" in before
    (pretrained,) = folder.glob("runs/*/pretrain-1")
    assert before[-1] == f"--resume={pretrained}"
    assert tuning[-2] == f"--init_from={pretrained}" and "," not in str(pretrained)
    assert tuning[-1].startswith(f"--output_dir={pretrained.parent}/finetune_")
    base, other = csv.DictReader((folder / "results.csv").read_text().splitlines())
    assert (base["ours"], other["ours"]) == ("75.0 ± 63.5", "55.0 ± 63.5")
    first, _, second = base["command"].partition(" && ")
    run = re.search(r" --run_dir=(pretrain_run_\w{8})$", first)[1]
    assert second.endswith(f" --init_from={run}")
    assert "&& \\\n" in (folder / "report.md").read_text()


def test_a_row_that_collapsed_is_not_judged_nor_what_is_compared_with_it():
    table = TABLES["luong6"]
    base, _, other = table.rows
    paper = {base: "0.3", other: "0.2"}
    seeds = [{"AER": x, "exact match": 40.0} for x in (0.5, 0.51, 0.52)]
    low = [seeds[0] | {"exact match": 0.9}, *seeds[1:]]
    why = "1 of 3 seeds collapsed, exact match 0.9"
    reasons = {why: {base: seeds, other: low}, f"{base}: {why}": {base: low, other: seeds}}
    for why, found in reasons.items():
        assert table.verdicts(paper, found)[other] == f"not comparable: {why}"
    both = {base: seeds, other: [x | {"exact match": 1.0} for x in seeds]}
    assert not table.verdicts(paper, both)[other].startswith("not comparable")


def test_a_row_that_was_to_come_to_its_plateau_and_did_not_is_not_judged():
    table = TABLES["vaswani2"]
    base, big, _ = table.rows
    line = {"scores": {"BLEU": 20.0}, "flags": {"plateau": 0.01}, "plateau": 700}
    ended, cut = (table.values(line | {"plateau": step}) for step in (700, None))
    assert table.values(line | {"flags": {}, "plateau": None}) == {"BLEU": 20.0}
    paper = {base: "27.3", big: "28.4"}
    found = {base: [ended] * 3, big: [ended, cut, ended]}
    assert table.verdicts(paper, found)[big] == "not comparable: still learning after all steps"
    level = [ended, ended | {"BLEU": 20.01}, ended]
    assert table.verdicts(paper, found | {big: level})[big] == "no difference here"


PAPERS = {
    name: TABLES[name].paper(published)
    for name, published in report.read_published(list(TABLES)).items()
}
DRAWN = [name for name, paper in PAPERS.items() if not verdicts.SIDES.keys() & paper.values()]


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_has_room_for_the_names_of_its_rows(name, tmp_path):
    table, paper = TABLES[name], PAPERS[name]
    found = {row: [{table.score: score} for score in (61.0, 62.0)] for row in table.rows}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that does not fit is a warning
        table.figure(paper, found).savefig(tmp_path / "figure.svg")


FLAGS = ("--steps=2", "--validate_every=2", "--log_every=2", "--devices=1")
SMALL = ScoreTable(
    "Small",
    "luong2015_table6.csv",
    "AER",
    trainings={
        row: Training(
            {"cpu": Command("translate", ("--preset=dates", f"--models={model}", *FLAGS))}, {}
        )
        for row, model in (("global (location)", "luong"), ("local-m (general)", "rnn_search"))
    },
    measures=TABLES["luong6"].measures,
    score="AER",
    base="global (location)",
    tie=0.01,
)


@pytest.mark.slow
def test_a_table_is_trained_found_again_and_of_one_revision(no_figures, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "build", tiny.build)
    monkeypatch.setitem(mapping.all_tables(), "luong6", SMALL)
    ran = []

    def run(words):
        ran.append(words)
        return tiny.run(translate, *words[1:])[2]

    monkeypatch.setattr(runs, "run", run)
    flags = ["--only=luong6", "--scale=cpu", "--seeds=0,1"]
    assert "2 of 2 cells" in tiny.finish(experiment, *flags, f"--output_dir={tmp_path}")
    (folder,) = tmp_path.glob("tables-*")
    report = (folder / "report.md").read_text()
    assert "| global (location) |  0.39 | 0." in report and "(base)" in report
    assert "![Small: gaps, the paper's and ours](luong6.svg)" in report
    assert "entropy" in report and "--preset=dates --models=rnn_search" in report
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [(row["row"], row["seed"]) for row in rows] == [
        (name, seed) for name in SMALL.rows for seed in (0, 1)
    ]
    # Without its rows the same trainings are found, and nothing is trained again.
    (folder / "results.jsonl").unlink()
    ran.clear()
    status, out, err = tiny.run(experiment, f"--resume={folder}")
    assert status == 0 and len(ran) == 2 and all("--resume=" in words[-1] for words in ran)
    assert len(list((folder / "runs").glob("*/*"))) == 2
    again = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    assert [row["values"] for row in again] == [row["values"] for row in rows]
    # Seeds of several revisions are not mixed, and the other rows do not suffer from it.
    (kept,) = (folder / "runs").glob("*luong*/*/results.jsonl")
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    for line in lines:
        if line["cell"]["seed"] == 1:
            line["environment"]["revision"] = "0123abcd"
    kept.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "results.jsonl").unlink()
    status, out, err = tiny.run(experiment, f"--resume={folder}")
    assert status == 1 and "has seeds of revision 0123abcd, " in out
    assert len((folder / "results.jsonl").read_text().splitlines()) == 2
    assert " not run |" in (folder / "report.md").read_text()


@pytest.mark.slow
def test_a_training_ends_with_tables_however_that_ends(tmp_path):
    """After kill −9 nobody could stop it, and a resumed run would find its folder taken."""
    (tmp_path / "waits.py").write_text(
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    pathlib.Path(sys.argv[1], 'ended').touch()\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path(sys.argv[1], 'began').touch()\n"
        "time.sleep(100)\n"
    )
    code = "import sys; from experiments.tables import runs; runs.run(sys.argv[1:])"
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    words = [sys.executable, "-c", code, "waits", str(tmp_path)]
    with subprocess.Popen(words, env=dict(os.environ, PYTHONPATH=paths)) as parent:
        _wait_for(tmp_path / "began")
        parent.kill()
    _wait_for(tmp_path / "ended")


def _wait_for(path):
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"no {path.name} after a minute")


def test_a_run_that_fails_says_why_and_one_that_is_interrupted_ends_ours(monkeypatch, tmp_path):
    assert runs.run(["timeit", "-n", "1", "pass"]) == ""
    (bad := tmp_path / "bad.json").write_text("?")
    failed = runs.run(["json.tool", str(bad)])
    assert failed == f"python -m json.tool {bad}: its process ended with status 1"
    with pytest.raises(Invalid, match="python -m json.tool --no: not accepted"):
        runs.run(["json.tool", "--no"])
    wait, waited = subprocess.Popen.wait, []

    def interrupted(process):
        waited.append(process)
        if len(waited) == 1:
            raise KeyboardInterrupt
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs.run(["timeit", "-n", "1", "import time; time.sleep(60)"])
    assert len(waited) == 2 and waited[0].returncode != 0, "it was not asked to end"
