"""The frame of a study, end to end, with two models that take a moment."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import math
import re
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from attnlab.mechanisms import own
from attnlab.runs import figure_files, remaining
from attnlab.runs.flags import flag
from attnlab.studies import run as runs
from attnlab.studies.command import main
from attnlab.studies.study import Cell, Evaluation, Row, Study, Training, identity
from attnlab.training.curve import read_metrics
from attnlab.training.flags import TrainFlags
from attnlab.training.loop import Task
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from tests.training import tiny

PACKAGE = types.ModuleType("toy", "A toy.")


@dataclasses.dataclass(frozen=True)
class Flags(TrainFlags):
    input: str = flag("", "Words.", is_path=True)
    widths: tuple[int, ...] = flag((3, 5), "Widths.")
    seeds: tuple[int, ...] = flag((0, 1), "Seeds.")
    steps: int = flag(4, "Steps.")
    batch_size: int = flag(8, "Rows.")
    learning_rate: float = flag(0.01, "Rate.")
    validate_every: int = flag(2, "Steps.")
    log_every: int = flag(2, "Steps.")
    color: str = flag("red", "Of nothing that is trained.")


@dataclasses.dataclass(frozen=True)
class Words:
    name: str
    digest: str


class Toy(Study[Flags, Words]):
    """Each model as it was trained, and with its last layer at zero."""

    flags = Flags
    title = "A toy"
    axes = {"width": "widths"}
    scores = {"accuracy": ".1%"}
    note = "Nothing is learnt."
    free = ("color",)
    kept: dict[Cell, object] = {}

    @staticmethod
    def open(settings):
        text = Path(settings.input).read_bytes()
        return Words("words", hashlib.sha256(text).hexdigest())

    def training(self, cell):
        validation = tiny.validation(self.settings.batch_size)
        task = Task(
            tiny.Tiny(width=cell["width"]),
            TokenCrossEntropy(),
            tiny.batches(self.settings.batch_size, cell.seed),
            lambda: validation,
        )
        # One width learns so fast that it is lost, one in the training before its own.
        loop = self.settings.loop(seed=cell.seed)
        fast = Training(task, OptimizerSettings(learning_rate=1e30), loop)
        optimizer = OptimizerSettings(learning_rate=self.settings.learning_rate)
        before = fast if cell["width"] == 11 else None
        return fast if cell["width"] == 13 else Training(task, optimizer, loop, before)

    def evaluations(self, cell):
        return ["", "nothing"]

    def evaluate(self, cell, training, trained, place):
        self.kept[cell] = trained.params
        yield Evaluation(
            {"accuracy": trained.validation["accuracy"]}, details={"place": place.name}
        )
        yield Evaluation({"accuracy": 0.0}, "nothing")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(Toy, "kept", {})


def run_in(place, *flags):
    """Status, standard output and errors of a run, which has a text and a folder in `place`."""
    begins = () if any(x.startswith("--resume") for x in flags) else (
        f"--input={place / 'words'}", f"--run_dir={place / 'run'}"
    )  # fmt: skip
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_files, "save", lambda figures, folder: None)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command = ["toy", *begins, f"--cache_dir={place}/cache", *flags]
            status = main(command, Toy, PACKAGE)
    return status, out.getvalue(), err.getvalue()


@pytest.fixture
def run(tmp_path):
    (tmp_path / "words").write_text("some words")
    return functools.partial(run_in, tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The place of a run that nothing disturbed, what it said, and its parameters."""
    place = tmp_path_factory.mktemp("whole")
    (place / "words").write_text("some words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "kept", {})
        return place, run_in(place), Toy.kept


def rows_of(folder):
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_each_width_is_trained_with_each_seed(whole):
    place, (status, out, err), _ = whole
    assert (status, err) == (0, ""), err
    rows = rows_of(place / "run")
    trained = [(row["cell"]["axes"]["width"], row["cell"]["seed"]) for row in rows]
    assert trained[::2] == [(3, 0), (5, 0), (3, 1), (5, 1)]  # two seeds cut short are one of all
    assert [row["evaluated"] for row in rows] == ["", "nothing"] * 4
    assert rows[0]["environment"]["input"]["name"] == "words"
    assert (place / "run" / rows[0]["details"]["place"] / "metrics.jsonl").exists()
    assert "0 of 4 trainings to run" in run_in(place, f"--resume={place / 'run'}")[1]


def test_a_killed_run_comes_to_the_same_numbers(whole, run, tmp_path, monkeypatch):
    undisturbed, _, parameters = whole
    validation, calls = tiny.validation, []

    def killed(*given):
        calls.append(given)
        if len(calls) == 3:  # in the third of four trainings, which never validates

            def ends():
                raise KeyboardInterrupt
                yield

            return ends()
        return validation(*given)

    with monkeypatch.context() as patch:
        patch.setattr(tiny, "validation", killed)
        assert run("--checkpoint_every=1")[0] == 130
    assert len(rows_of(tmp_path / "run")) == 4
    status, out, err = run(f"--resume={tmp_path / 'run'}", "--color=blue")
    assert status == 0 and "2 of 4 trainings to run" in out and "going on after step 1" in out
    for name in ("3-seed0", "5-seed0", "3-seed1", "5-seed1"):
        ours, theirs = (
            [(row["step"], row.get("nll")) for row in read_metrics(place / "run" / name)]
            for place in (tmp_path, undisturbed)
        )
        assert ours == theirs
    scores = [[row["scores"] for row in rows_of(x / "run")] for x in (tmp_path, undisturbed)]
    assert scores[0] == scores[1]
    for cell in list(parameters)[2:]:
        jax.tree.map(np.testing.assert_array_equal, parameters[cell], Toy.kept[cell])


@pytest.mark.parametrize(("width", "flags"), [(13, ()), (11, ("--tune=1,3", "--steps=16"))])
def test_a_lost_training_leaves_the_others(run, tmp_path, width, flags):
    status, out, err = run(f"--widths={width},3", "--seeds=0", *flags)
    assert status == 1 and "lost: the " in out and "1 lost, and again in a resumed run" in out
    assert {row["cell"]["axes"]["width"] for row in rows_of(tmp_path / "run")} == {3}
    assert f"Lost: {width}, seed 0 (the " in (tmp_path / "run/report.md").read_text()


def test_a_learning_rate_is_found_once_for_all_seeds(run, tmp_path):
    flags = "--tune=0.25,1,1e32", "--widths=3", "--steps=16", "--log_every=1"
    status, out, err = run(*flags)
    assert (status, err) == (0, ""), err
    assert out.count("trial of learning rate") == 3 + 2
    rows = rows_of(tmp_path / "run")
    trials = rows[0]["trials"]
    assert [(trial["learning_rate"], trial["steps"]) for trial in trials] == [
        (0.0025, 2), (0.01, 2), (1e30, 2), (0.01, 4), (0.0025, 4)
    ]  # fmt: skip
    slow, right, lost, longer, slower = (trial["loss"] for trial in trials)
    assert right < slow and lost is None and longer < slower
    assert all(row["trials"] == trials for row in rows)
    for seed in (0, 1):
        (first, *_) = read_metrics(tmp_path / f"run/3-seed{seed}")
        assert first["learning_rate"] == pytest.approx(0.01)
    report = re.sub(r" *\| *", "|", (tmp_path / "run/report.md").read_text())
    assert f"|3|**0.01**|{right:.4g}|{longer:.4g}|" in report and "|3|1e+30|diverged||" in report
    assert not list((tmp_path / "run").glob("*-rate0.01*/checkpoints"))


def test_a_trial_that_is_done_is_not_made_again(run, tmp_path, monkeypatch):
    """Neither one that diverged nor one that was killed when all it had left was to clear away.

    All of other data are.
    """
    flags = "--tune=1,3,1e32", "--widths=3", "--seeds=0", "--steps=16"
    trained, calls = runs.run_training, []

    def killed(task, **given):
        calls.append(re.sub("(steps.)-.*", r"\1", given["folder"].name))
        if calls[-1] == "3-seed0" and calls.count("3-seed0") == 1:
            raise KeyboardInterrupt
        done = trained(task, **given)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(runs, "run_training", killed)
    assert run(*flags)[0] == 130
    for status in (130, 0):
        assert run(f"--resume={tmp_path / 'run'}")[0] == status
    (tmp_path / "run/results.jsonl").unlink()
    (tmp_path / "words").write_text("other words")
    again = run(f"--resume={tmp_path / 'run'}")[1]
    assert again.count("trial of learning rate") == 3 + 2
    trials = [f"3-seed0-rate{x}" for x in ("0.01-steps2", "0.03-steps2", "1e+30-steps2")]
    trials += [f"3-seed0-rate{x}-steps4" for x in ("0.03", "0.01")]
    assert sorted(calls[:5]) == sorted(trials) and calls[5:7] == ["3-seed0", "3-seed0"]
    assert [x.parent.name for x in (tmp_path / "run").glob("*/checkpoints")] == ["3-seed0"]


def test_a_dry_run_says_how_long_what_is_missing_takes_and_keeps_nothing(run, tmp_path):
    flags = "--steps=4000", "--validate_every=2000"
    status, out, err = run(*flags, "--tune=1,3", "--dry_run")
    assert (status, err) == (0, "") and not (tmp_path / "run").exists()
    for width in (3, 5):  # two seeds, and two trials of a fourth of the steps
        line = re.search(rf"\| {width} +\| +2 × 4,000 \| +2,000 \| +([\d.e+]+) \| +(.+) \|", out)
        seconds = 10_000 / float(line[1])  # of three digits
        assert line[2] in {remaining.round_time(seconds * x) for x in (0.99, 0.995, 1, 1.005, 1.01)}
    status, out, _ = run("--widths=13,3", "--seeds=0", "--dry_run")
    assert status == 0 and re.search(r"\| 13 +\| +1 × 4 \| +0 \| +diverged \| +\|", out)
    assert re.search(r"\| 3 +\| +1 × 4 \| +0 \| +[\d.e+]+ \| +0 s \|", out)
    assert run("--widths=3,5", "--seeds=0", "--steps=2")[0] == 0
    lines = (path := tmp_path / "run/results.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    status, out, _ = run(f"--resume={tmp_path / 'run'}", "--dry_run")
    assert status == 0 and re.findall(r"^\| (\d) +\| +1 × 2 − 2 ", out, re.M) == ["5"]
    assert path.read_text() == "".join(lines[:2])


def test_other_data_and_other_flags_are_refused(run, tmp_path):
    assert run("--widths=3", "--seeds=0")[0] == 0
    again = f"--resume={tmp_path / 'run'}"
    status, _, err = run(again, "--learning_rate=1")
    assert status == 2 and "--learning_rate=1 differs from 0.01" in err
    assert run(again, "--color=blue")[0] == 0
    settings = json.loads((tmp_path / "run/settings.json").read_text())
    (tmp_path / "run/settings.json").write_text(json.dumps(settings | {"learning_rate": 1.0}))
    (tmp_path / "run/results.jsonl").unlink()
    status, out, err = run(again)
    assert status == 1 and "flags.learning_rate is 0.01 there and 1.0 here" in out
    (tmp_path / "run/settings.json").write_text(json.dumps(settings))
    assert run(again)[0] == 0
    (tmp_path / "words").write_text("other words")
    status, _, err = run(again)
    assert status == 2 and "is about other data than words is now" in err


def row(width, seed, accuracy, **axes):
    return Row(Cell({**axes, "width": width}, seed), "", {"accuracy": accuracy}, 9, 1, 60.0)


def test_a_users_attention_is_found_whatever_quotes_its_name_has(monkeypatch):
    name = """mine.py:Near(a='x', b="y")"""
    monkeypatch.setattr(own, "_loaded", {name: types.SimpleNamespace(digest="of the file")})
    toy = Toy(Flags(), Words("", ""))
    assert identity(toy, Cell({"width": name}, 0))["own"] == {name: "of the file"}


def test_the_answer_has_three_numbers_at_most():
    toy = Toy(Flags(), Words("", ""))
    rows = [row(width, 0, width / 10) for width in range(5)]
    assert toy.answer(rows) == "accuracy: 40.0% (4), 30.0% (3), 20.0% (2)"
    unknown = [row(width, 0, math.nan) for width in (7, 8)]  # best where it stands in between
    assert toy.answer([*rows[:2], *unknown, *rows[2:]]) == toy.answer(rows)
    several = [row(width, 0, width / 10, task=task) for task in "ab" for width in (1, 2)]
    toy.axes = {"task": "", "width": "widths"}
    assert toy.answer(several) == "accuracy: 20.0% (a, 2), 20.0% (b, 2)"
