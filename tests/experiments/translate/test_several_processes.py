"""`translate` in one and in several processes: stopped, killed, and resumed to the same numbers."""

import itertools
import random
import shutil
import signal
import time

import pytest

from tests import several
from tests.experiments.tiny import rows_of
from tests.several import Together
from tests.training.tiny import curve_of

PROGRAM = "tests.experiments.tiny_translate"
FLAGS = (
    "--models=transformer", "--steps=60", "--validate_every=30", "--checkpoint_every=10",
    "--log_every=5", "--batch_size=8",
)  # fmt: skip


def left(folder):
    """The curve and the translations, and the row's numbers that no clock has a part in."""
    (where,) = folder.glob("transformer*")
    rows = rows_of(folder)
    assert len(rows) == 2
    scores = [
        (row["scores"], row["validation"], row["step"], row["details"].get("buckets"))
        for row in rows
    ] + [rows[1]["details"]["alignments"]]
    return curve_of(where), (where / "translations.txt").read_text(), scores


def finished(folder, count, devices):
    found = several.run(count, PROGRAM, f"--run_dir={folder}", *FLAGS, devices=devices, quick=True)
    assert [one.status for one in found] == [0] * count, found[-1].err
    assert all(one.out.count("\n") <= 1 for one in found[1:])  # Gloo's own line
    return found[0].out


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What one process with two devices leaves."""
    folder = tmp_path_factory.mktemp("whole")
    finished(folder, 1, devices=2)
    return left(folder)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder that two processes left when one of them got SIGTERM."""
    folder = tmp_path_factory.mktemp("stopped")
    with Together(2, PROGRAM, f"--run_dir={folder}", *FLAGS, quick=True) as together:
        together.send(1, signal.SIGTERM, after="step 15/")
        first, other = together.ended(within=120)
    assert (first.status, other.status) == (143, 143), first.err
    assert "SIGTERM: what is done is kept" in first.out + first.err
    return folder


@pytest.mark.slow  # tests/training/test_processes.py trains in two, every day
def test_two_processes_go_on_after_a_signal_to_one_bit_for_bit(whole, stopped, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "copy")
    assert "going on after step " in finished(folder, 2, devices=1)
    assert left(folder) == whole


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_after_kill_9_of_one_the_other_ends_and_one_process_goes_on(whole, victim, tmp_path):
    """With as many devices, it goes on bit for bit: nothing is lost."""
    folder = tmp_path / "run"
    with Together(2, PROGRAM, f"--run_dir={folder}", *FLAGS, quick=True) as together:
        together.send(victim, signal.SIGKILL, after="step 20/")
        found = together.ended(within=75)
    assert found[victim].status == -signal.SIGKILL and found[1 - victim].status != 0
    finished(folder, 1, devices=2)
    assert left(folder) == whole


@pytest.mark.slow
def test_two_processes_find_one_learning_rate(tmp_path):
    flags = "--models=transformer", "--steps=16", "--batch_size=8", "--tune=1e32,1,0.01"
    found = several.run(2, PROGRAM, f"--run_dir={tmp_path}", *flags, quick=True)
    assert [one.status for one in found] == [0, 0], found[-1].err
    for row in rows_of(tmp_path):
        lost, *others = row["trials"]
        assert lost["loss"] is None and len(others) == 4 and all(one["loss"] for one in others)
    assert [x.parent.name.count("-rate") for x in tmp_path.glob("*/checkpoints")] == [0]


@pytest.mark.slow
def test_nothing_differs_after_kills_at_random_moments(tmp_path):
    """Kill −9 of one process, also while it starts, restores or compiles."""
    words = PROGRAM, *FLAGS, "--steps=500", "--validate_every=90"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    (done,) = several.run(1, *words, f"--run_dir={whole}", quick=True, slurm=True)
    assert done.status == 0, done.err
    draw = random.Random(5)
    for kill in range(5):
        with Together(1, *words, f"--run_dir={killed}", quick=True, slurm=True) as together:
            (process,) = together.processes
            if draw.random() < 0.25:
                time.sleep(draw.uniform(1, 6))
            else:
                lines = (line for line in process.stdout if line.startswith("step "))
                assert list(itertools.islice(lines, draw.randint(1, 12))), process.stderr.read()
                time.sleep(draw.uniform(0, 0.3))
            assert process.poll() is None, f"it ended before kill {kill}: {process.stderr.read()}"
            process.kill()
    (again,) = several.run(1, *words, f"--run_dir={killed}", quick=True, slurm=True)
    assert again.status == 0 and "going on after step " in again.out
    assert left(killed) == left(whole)
