"""`translate` from end to end, in this process, with a model that compiles at once."""

import json
import os
import signal
import subprocess
import sys

import pytest

from attnlab.runs import command_line
from attnlab.training import run as training_run
from attnlab.training.curve import METRICS, read_metrics
from attnlab.training.loop import CHECKPOINTS
from experiments.translate import __main__ as translate
from experiments.translate import corpus
from experiments.translate.settings import Settings
from tests.experiments import tiny
from tests.several import ROOT

FLAGS = ["--models=rnn_search", "--steps=6", "--validate_every=3", "--log_every=2", "--devices=1"]
FLAGS += ["--max_length=16"]  # so that all batches have one shape


@pytest.fixture(scope="module", autouse=True)
def small():
    """Small models, few dates to test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(translate, "build", tiny.build)
        patched.setattr(corpus.dates, "Dates", tiny.few_dates)
        patched.setattr(corpus, "DRAWN", 1)
        yield


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that SIGTERM stopped, and what it printed."""
    parent = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training_run, "say", signals("step 4/6", signal.SIGTERM))
        status, out, err = tiny.run(translate, *FLAGS, f"--output_dir={parent}")
    assert (status, err) == (128 + signal.SIGTERM, "")
    (folder,) = parent.iterdir()
    assert {path.name for path in folder.iterdir()} == {"settings.json", "rnn_search-seed0"}
    return folder, out


def signals(line, number):
    """A `say` that sends a signal at a line that begins so."""

    def say(text=""):
        command_line.say(text)
        if text.startswith(line):
            os.kill(os.getpid(), number)

    return say


@pytest.fixture(scope="module")
def finished(stopped):
    """The same folder after it was gone on with, and what that printed."""
    folder, _ = stopped
    return folder, tiny.finish(translate, f"--resume={folder}")


def test_sigterm_saves_and_says_how_to_go_on(stopped):
    folder, out = stopped
    assert f"results: {folder}" in out and "step 6/6" not in out
    assert "train without end, validation " in out and "the first step, which compiles" in out
    assert out.endswith(f"SIGTERM: what is done is kept\nto complete it: --resume={folder}\n")


def test_a_stopped_run_goes_on_to_the_end(finished):
    folder, out = finished
    assert "going on after step 5" in out and f"report: {folder / 'report.md'}" in out
    rows = [(row["kind"], row["step"]) for row in read_metrics(folder / "rnn_search-seed0")]
    assert rows == [
        ("training", 2), ("validation", 3), ("training", 4), ("training", 6), ("validation", 6),
    ]  # fmt: skip


def test_the_folder_has_what_the_documentation_says(finished):
    folder, _ = finished
    figures = ("alignment_rnn_search.svg", "by_length.svg", "curve.svg")
    names = {path.name for path in folder.iterdir()}
    assert names == {*figures, "report.md", "results.jsonl", "settings.json", "rnn_search-seed0"}
    names = {path.name for path in (folder / "rnn_search-seed0").iterdir()}
    assert names == {CHECKPOINTS, METRICS, "translations.txt"}
    result, drawn = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    assert result["cell"] == {"axes": {"model": "rnn_search", "changed": ""}, "seed": 0}
    assert 0 <= result["scores"]["exact match"] <= 1 and 0 <= result["scores"]["AER"] <= 1
    assert len(drawn["details"]["alignments"]) == 1 and drawn["scores"] == {}
    assert result["flags"]["log_every"] == 2 and "sacrebleu" in result["environment"]["versions"]


def test_a_finished_run_is_not_run_again_but_reported_again(finished):
    folder, _ = finished
    names = ("report.md", "alignment_rnn_search.svg", "by_length.svg", "curve.svg")
    kept = [
        folder / "rnn_search-seed0" / METRICS,
        folder / "results.jsonl",
        *map(folder.joinpath, names),
    ]
    before = [path.read_bytes() for path in kept]
    for name in names:
        (folder / name).unlink()
    status, out, _ = tiny.run(translate, f"--resume={folder}")
    assert status == 0 and "0 of 1 trainings to run" in out
    assert [path.read_bytes() for path in kept] == before


def test_other_pairs_are_drawn_without_training_again(finished, no_figures, monkeypatch):
    folder, _ = finished
    monkeypatch.setattr(corpus, "DRAWN", 2)  # dates have no --draw_file
    before = (folder / "rnn_search-seed0" / METRICS).read_bytes()
    status, out, _ = tiny.run(translate, f"--resume={folder}")
    assert status == 0 and "going on after step 6" in out and "step 6/6" not in out
    last = json.loads((folder / "results.jsonl").read_text().splitlines()[-1])
    assert len(last["details"]["alignments"]) == 2
    assert (folder / "rnn_search-seed0" / METRICS).read_bytes() == before
    assert "1 of 1" not in tiny.run(translate, f"--resume={folder}")[1]


def test_what_a_plateau_ends_has_the_steps_and_the_speed_that_it_had(no_figures, tmp_path):
    """Also where it ends before the first row of the curve is due."""
    flags = ["--steps=40", "--validate_every=1", "--plateau=0.99", "--log_every=40"]
    others = [x for x in FLAGS if x.partition("=")[0] not in [y.partition("=")[0] for y in flags]]
    assert tiny.run(translate, *others, *flags, f"--run_dir={tmp_path}")[0] == 0
    row, _ = tiny.rows_of(tmp_path)
    assert row["plateau"] == row["details"]["steps"] == 6
    assert row["details"]["tokens_per_second"] > 0


def test_tensorboard_is_missed_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    monkeypatch.setattr(translate, "open_corpus", None)  # nor is the data read
    status, _, err = tiny.run(translate, "--tensorboard", f"--output_dir={tmp_path / 'results'}")
    assert status == 2 and err.count("\n") == 1
    assert "`launch/local --extra=tensorboard NAME --tensorboard …`" in err
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_a_cpu_is_as_many_devices_as_asked_for(tmp_path):
    """Of a run that goes on, and of a new one: each is refused for the 3 that there are then."""
    given = {"devices": 3, "parallel": "pmap", "batch_size": 64}
    (tmp_path / "settings.json").write_text(json.dumps(Settings(**given).as_json()))
    flags = " ".join(f"--{name}={value}" for name, value in given.items())
    flags += f" --output_dir={tmp_path / 'new'}"
    code = (
        "import sys; from experiments.translate.__main__ import main\n"
        "sys.exit([main(['translate', *flags.split()]) for flags in sys.argv[1:]] != [2, 2])"
    )
    command = [sys.executable, "-c", code, f"--resume={tmp_path}", flags]
    one = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    one |= {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=one, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("give a multiple of devices × accumulate = 3 × 1") == 2
