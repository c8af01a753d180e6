"""What tells two trainings apart, and killing a process again and again until it is done."""

import json
import os
import random
import shutil
import signal

import jax.numpy as jnp
import pytest

from attnlab.runs.errors import Stopped
from attnlab.training.checkpoint import Checkpoints
from attnlab.training.curve import METRICS
from attnlab.training.loop import CHECKPOINTS
from experiments.survive_kills import __main__ as survive_kills
from experiments.survive_kills import kills
from experiments.survive_kills.kills import (
    EARLY,
    difference_of_runs,
    kill_until_done,
    run_to_the_end,
)
from tests.experiments import tiny

ROWS = [
    {"kind": "training", "step": 2, "loss": 0.5, "seconds": 1.5, "tokens_per_second": 9.0},
    {"kind": "validation", "step": 2, "nll": 0.25},
]
STATE = {"params": {"kernel": jnp.arange(6.0)}, "step": jnp.int32(2)}

# Counts to 20 and remembers each number: a training that can be killed.
COUNTING = """
import pathlib, sys, time
kept, starts = (pathlib.Path(sys.argv[1]) / name for name in ("kept", "starts"))
with starts.open("a") as file:
    file.write("x")
for step in range(int(kept.read_text()) + 1 if kept.exists() else 1, 21):
    time.sleep(0.05)
    fresh = kept.with_name("fresh")
    fresh.write_text(str(step))
    fresh.replace(kept)
    print(f"step {step}/20", flush=True)
"""


def write(folder, rows=ROWS, state=STATE):
    folder.mkdir()
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Checkpoints(folder / CHECKPOINTS, {}) as checkpoints:
        checkpoints.save(2, state, data={}, meter={}, wait=True)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write(tmp_path_factory.mktemp("runs") / "whole")


def test_runs_that_differ_in_times_alone_are_the_same(whole, tmp_path):
    slower = [ROWS[0] | {"seconds": 7.5, "tokens_per_second": 2.0}, ROWS[1]]
    assert difference_of_runs(whole, write(tmp_path / "slower", slower)) is None


def test_a_row_that_differs_is_found(whole, tmp_path):
    other = shutil.copytree(whole, tmp_path / "other")
    (other / METRICS).write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[1] | {"nll": 0.5}))
    assert difference_of_runs(whole, other) == "the curves have 2 and 1 rows"  # it was cut off
    with (other / METRICS).open("a") as file:
        file.write("\n")
    assert difference_of_runs(whole, other) == (
        'rows of the curves: {"kind": "validation", "step": 2, "nll": 0.25} and '
        '{"kind": "validation", "step": 2, "nll": 0.5}'
    )


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (
            STATE | {"params": {"kernel": jnp.array([0, 1, 2, 3, 4, 5.0000005])}},
            "kernel",
        ),
        (STATE | {"params": {"kernel": STATE["params"]["kernel"][:5]}}, "kernel"),
        (STATE | {"step": jnp.int32(3)}, "step"),
        (STATE | {"key": jnp.arange(2)}, "key"),
    ],
)
def test_a_number_that_differs_is_found(whole, tmp_path, state, name):
    other = write(tmp_path / "other", state=state)
    for pair in ((whole, other), (other, whole)):
        found = difference_of_runs(*pair)
        assert found is not None and name in found and found.endswith("in the last checkpoints")


@pytest.fixture
def counting(tmp_path):
    script = tmp_path / "counting.py"
    script.write_text(COUNTING)
    return [str(script), str(tmp_path)]


def after_the_first_step(kills):
    """A seed with which no kill comes while the process starts."""

    def early(seed):
        draw = random.Random(seed)
        return any((draw.random() < EARLY, draw.random())[0] for _ in range(kills))

    return next(seed for seed in range(1000) if not early(seed))


def test_what_is_killed_is_started_again_until_it_is_done(counting, tmp_path):
    said = []
    kills = kill_until_done(
        ["no such script"],
        lambda: counting,
        kills=3,
        longest=0.1,
        seed=after_the_first_step(3),
        say=said.append,
    )
    assert kills == 3 and (tmp_path / "kept").read_text() == "20"
    assert (tmp_path / "starts").read_text() == "xxxx"
    assert len(said) == 3 and all("step" in line for line in said)
    assert said[0].startswith("kill 1/3 after")


def test_an_end_before_the_last_kill_is_said(counting, tmp_path):
    (tmp_path / "kept").write_text("20")
    said = []
    kills = kill_until_done(
        counting, lambda: None, kills=3, longest=9.0, seed=after_the_first_step(3), say=said.append
    )
    assert kills == 0 and said == ["the training ended before kill 1"]


def test_a_training_that_fails_shows_its_last_lines(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("print('so far')\nraise SystemExit('no more')")
    with pytest.raises(
        Stopped, match="status 1: no more; what it wrote is in errors.log"
    ) as failed:
        run_to_the_end([str(script)])
    assert failed.value.output == f"{script}\nso far\nno more"


def test_a_process_that_outlives_another_one_is_found(tmp_path, monkeypatch):
    script = tmp_path / "alone.py"
    script.write_text("import time\nprint('step 1', flush=True)\ntime.sleep(600)")
    monkeypatch.setattr(kills, "PATIENCE", 1.0)
    with pytest.raises(Stopped, match=r"process (\d) still runs 1 s after SIGTERM to process \d"):
        kill_until_done(
            [str(script)],
            lambda: None,
            kills=1,
            longest=0.1,
            seed=after_the_first_step(1),
            say=print,
            processes=2,
        )


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--processes=0", "is too small; give at least 1"),
        ("--model=gpt", "no 'gpt'; valid: rnn_search, rnn_encdec,"),
        ("--longest=-1", "is too small; give at least 0"),
        ("--longest=inf", "give a finite number"),
        ("--resume=x", "Unknown command line flag 'resume'"),
    ],
)
def test_a_bad_flag_is_one_line_and_status_2_and_makes_nothing(tmp_path, flag, message):
    parent = tmp_path / "results"
    status, _, err = tiny.run(survive_kills, flag, f"--output_dir={parent}")
    assert status == 2 and message in err and err.count("\n") == 1 and not parent.exists()


def test_what_a_training_that_fails_wrote_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(survive_kills, "EXPERIMENT", ["-c", "raise SystemExit('no more')"])
    status, _, err = tiny.run(survive_kills, f"--output_dir={tmp_path}")
    assert status == 1 and err.startswith("survive_kills: a training ended with status 1: no more;")
    (folder,) = tmp_path.iterdir()
    assert (folder / "errors.log").read_text().endswith("\nno more\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_its_status(tmp_path, monkeypatch, number):
    monkeypatch.setattr(survive_kills, "run_to_the_end", lambda *_: os.kill(os.getpid(), number))
    status, out, err = tiny.run(survive_kills, f"--output_dir={tmp_path}")
    assert (status, err) == (128 + number, "") and f"{number.name}: nothing was compared" in out
