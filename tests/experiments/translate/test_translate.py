"""`translate` from end to end, in this process, with a model that compiles at once."""

import json
import os
import shlex
import signal
import subprocess
import sys

import jax
import pytest

from attnlab.runs import command_line
from attnlab.training.loop import CHECKPOINTS
from attnlab.training.meter import Diverged
from attnlab.training.metrics_file import METRICS, read_metrics
from experiments.translate import __main__ as translate
from experiments.translate import corpus, report
from experiments.translate import run as translation
from experiments.translate.interrupts import until_stopped
from tests.experiments import tiny

FLAGS = ["--models=rnn_search", "--steps=6", "--validate_every=3", "--log_every=2", "--devices=1"]
FLAGS += ["--max_length=16"]  # so that all batches have one shape


@pytest.fixture(scope="module", autouse=True)
def small():
    """Small models, few dates to test, quick compilation."""
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(translation, "build", tiny.build)
        dates = corpus.dates.Dates

        def fewer(split="train", *, size=None, **given):
            return dates(split, size=48, **given) if size else dates(split, **given)

        patched.setattr(corpus.dates, "Dates", fewer)
        patched.setattr(corpus, "DRAWN", 1)
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that SIGTERM stopped, and what it printed."""
    parent = tmp_path_factory.mktemp("results")
    say = command_line.say

    def stop_at_step_4(line):
        say(line)
        if line.startswith("step 4/6"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command_line, "say", stop_at_step_4)
        status, out, err = tiny.run(translate, *FLAGS, f"--output_dir={parent}")
    assert (status, err) == (0, "")
    (folder,) = parent.iterdir()
    assert {path.name for path in folder.iterdir()} == {"settings.json", "rnn_search"}
    return folder, out


@pytest.fixture(scope="module")
def finished(stopped):
    """The same folder after it was gone on with, and what that printed."""
    folder, _ = stopped
    status, out, err = tiny.run(translate, f"--resume={folder}")
    assert (status, err) == (0, "")
    return folder, out


def test_sigterm_saves_and_says_how_to_go_on(stopped):
    folder, out = stopped
    assert f"results: {folder}" in out and "step 6/6" not in out
    assert out.endswith(
        f"SIGTERM: what is done is saved; to go on:\n    launch/local translate --resume={folder}\n"
    )


def test_a_stopped_run_goes_on_to_the_end(finished):
    folder, out = finished
    assert "going on after step 5" in out and f"report: {folder / 'report.md'}" in out
    rows = [(row["kind"], row["step"]) for row in read_metrics(folder / "rnn_search")]
    assert rows == [
        ("training", 2), ("validation", 3), ("training", 4), ("training", 6), ("validation", 6),
    ]  # fmt: skip


def test_the_folder_has_what_the_documentation_says(finished):
    folder, _ = finished
    figures = [f"{name}.{kind}" for name in ("alignment_rnn_search", "by_length", "curve")
               for kind in ("png", "svg")]  # fmt: skip
    names = {path.name for path in folder.iterdir()}
    assert names == {*figures, "report.md", "settings.json", "rnn_search"}
    names = {path.name for path in (folder / "rnn_search").iterdir()}
    assert names == {CHECKPOINTS, METRICS, "translations.txt", "result.json"}
    result = json.loads((folder / "rnn_search" / "result.json").read_text())
    assert (result["model"], result["steps"], result["bleu"]) == ("RNNsearch", 6, None)
    assert 0 <= result["exact_match"] <= 1 and 0 <= result["alignment_error_rate"] <= 1
    written = (folder / "report.md").read_text()
    for text in ("RNNsearch reaches", " AER |", "(curve.svg)", "48 pairs of the test split"):
        assert text in written


def test_the_report_says_how_to_make_it_again(finished):
    folder, _ = finished
    (line,) = [
        line.strip()
        for line in (folder / "report.md").read_text().splitlines()
        if line.startswith("    launch/local")
    ]
    assert set(shlex.split(line)) == {"launch/local", "translate", *FLAGS}


def test_a_finished_run_is_not_run_again_but_reported_again(finished, monkeypatch):
    folder, _ = finished
    report_before = (folder / "report.md").read_text()
    kept = [folder / "rnn_search" / METRICS, folder / "rnn_search" / "translations.txt"]
    before = [path.read_bytes() for path in kept]
    (folder / "report.md").unlink()
    monkeypatch.setattr(report.figure_files, "save", tiny.save_nothing)
    status, out, _ = tiny.run(translate, f"--resume={folder}")
    assert status == 0 and "step 6/6" not in out and "going on after step 6" in out
    assert [path.read_bytes() for path in kept] == before
    assert (folder / "report.md").read_text() == report_before


def test_a_run_goes_on_with_other_devices(finished, monkeypatch):
    folder, _ = finished
    monkeypatch.setattr(report.figure_files, "save", tiny.save_nothing)
    flags = f"--resume={folder}", "--devices=1", "--parallel=pmap"
    status, out, err = tiny.run(translate, *flags)
    assert (status, err) == (0, "") and "going on after step 6" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps=7"], "was made with other settings: steps is 6 there and 7 here; leave these"),
        (["--models=luong"], 'models is ["rnn_search"] there and ["luong"] here'),
    ],
)
def test_a_run_does_not_go_on_with_other_settings(finished, flags, message):
    folder, _ = finished
    before = (folder / "rnn_search" / METRICS).read_bytes()
    status, _, err = tiny.run(translate, f"--resume={folder}", *flags)
    assert status == 2 and message in err and err.count("\n") == 1
    assert (folder / "rnn_search" / METRICS).read_bytes() == before


@pytest.mark.parametrize("content", [None, "", "[1]", "{}}", '{"no_such": 1}', '{"steps": "7"}'])
def test_only_a_folder_of_this_job_is_gone_on_with(tmp_path, content):
    if content is not None:
        (tmp_path / "settings.json").write_text(content)
    status, _, err = tiny.run(translate, f"--resume={tmp_path}")
    assert status == 2 and err.count("\n") == 1
    assert f"--resume={tmp_path}: no settings.json of this job there" in err


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_between_trainings_ends_the_run_at_once(number, expected):
    said = []
    before = signal.getsignal(signal.SIGTERM)
    status = until_stopped(lambda: os.kill(os.getpid(), number), go_on="again", say=said.append)
    assert status == expected and signal.getsignal(signal.SIGTERM) == before
    assert said == [f"{number.name}: what is done is saved; to go on:\n    again"]


def test_ctrl_c_while_the_data_is_read_makes_nothing(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(translation, "open_corpus", interrupt)
    parent = tmp_path / "results"
    status, _, err = tiny.run(translate, *FLAGS, f"--output_dir={parent}")
    assert (status, err) == (130, "translate: interrupted before anything was made\n")
    assert not parent.exists()


def test_a_loss_that_is_not_finite_is_one_line_and_status_1(tmp_path, monkeypatch):
    def diverge(*_, **__):
        raise Diverged("the loss is nan at step 5")

    monkeypatch.setattr(translation, "train", diverge)
    status, _, err = tiny.run(translate, *FLAGS, f"--output_dir={tmp_path}")
    assert status == 1 and err.count("\n") == 1
    assert err.startswith(
        "translate: the loss is nan at step 5; the checkpoints before it are kept"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--no_such=1"], "Unknown command line flag 'no_such'"),
        (["more"], "'more' is not a flag; write --name=value"),
        (["--steps=few"], "--steps=few"),
        (["--models=gpt"], "--models=gpt: not known"),
        (["--devices=9"], "--devices=9: there are 2"),
        (["--batch_size=63"], "--batch_size=63: give a multiple of devices × accumulate = 2 × 1"),
        (["--accumulate=5"], "--batch_size=64: give a multiple of devices × accumulate = 2 × 5"),
        (["--max_length=4"], "--max_length=4: the first 2000 pairs all have more tokens"),
    ],
)
def test_a_bad_flag_is_one_line_and_status_2_and_makes_nothing(tmp_path, flags, message):
    parent = tmp_path / "results"
    status, _, err = tiny.run(translate, *flags, f"--output_dir={parent}")
    assert status == 2 and message in err and err.count("\n") == 1
    assert err.startswith("translate: ") and not parent.exists()


def test_tensorboard_is_missed_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    monkeypatch.setattr(translation, "open_corpus", None)  # nor is the data read
    status, _, err = tiny.run(translate, "--tensorboard", f"--output_dir={tmp_path / 'results'}")
    assert status == 2 and err.count("\n") == 1
    assert "`launch/local --extra=tensorboard translate --tensorboard …`" in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_cpu_is_as_many_devices_as_asked_for(tmp_path, resumed):
    given = {"devices": 3, "parallel": "pmap", "batch_size": 64}
    flags = [f"--{name}={value}" for name, value in given.items()]
    if resumed:
        (tmp_path / "settings.json").write_text(json.dumps(given))
        flags = [f"--resume={tmp_path}"]
    else:
        flags.append(f"--output_dir={tmp_path}")
    one = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    command = [sys.executable, "-m", "experiments.translate", *flags]
    done = subprocess.run(
        command, env=one | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "give a multiple of devices × accumulate = 3 × 1" in done.stderr  # 3 there are


def test_an_output_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("kept")
    for parent in (tmp_path / "file", tmp_path / "file" / "below"):
        status, _, err = tiny.run(translate, f"--output_dir={parent}")
        assert status == 2 and err.startswith(f"translate: --output_dir={parent}")
        assert err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "kept"


def test_help_has_every_flag():
    status, out, _ = tiny.run(translate, "--help")
    assert status == 0 and all(f"--{name}" in out.replace("[no]", "") for name in translate._HELP)
