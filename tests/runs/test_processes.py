"""Several processes of one run: the first writes, and they come down together."""

import signal

import pytest

from attnlab.runs.folder import Folder
from tests import several
from tests.daily import daily
from tests.runs import spelling
from tests.several import Together

SPELL = spelling.__name__


def only(tmp_path):
    (folder,) = tmp_path.iterdir()
    return folder


@pytest.mark.parametrize("slurm", daily([False, True], True))
def test_the_first_process_prints_and_writes_for_all(tmp_path, slurm):
    first, *others = several.run(3, SPELL, f"--output_dir={tmp_path}", slurm=slurm)
    assert [one.status for one in (first, *others)] == [0, 0, 0]
    assert [one.out for one in others] == ["", ""]
    folder = only(tmp_path)
    assert first.out.startswith(f"3 of 3 letters to run on paper\nresults: {folder}\n")
    assert (folder / "report.md").read_text() == "a0+a1+a2 b0+b1+b2 c0+c1+c2"
    assert len((folder / "results.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("last", "status", "words"),
    [
        ("breaks", 1, "stopped: process 1 of 2 has ended: RuntimeError: the pen broke"),
        pytest.param(
            "stops", 1, "stopped: process 1 of 2 has ended: stopped: no ink", marks=pytest.mark.slow
        ),
        pytest.param(
            "SIGTERM",
            143,
            "stopped: process 1 of 2 has ended: SIGTERM: what is done is kept",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_ends_a_process_ends_the_others_and_is_said_once(last, status, words, tmp_path):
    with Together(2, SPELL, f"--last={last}", f"--output_dir={tmp_path}") as together:
        first, other = together.ended(within=60)
    assert (first.status, other.status, other.out) == (status, status, "")
    folder = only(tmp_path)
    assert first.out.endswith(f"\n{words}\nto complete it: --resume={folder}\n")
    assert (folder / "report.md").read_text() == "a0+a1"
    assert ("Traceback" in other.err) == (last == "breaks") and first.err == ""
    if last == "breaks":
        again = several.run(2, SPELL, f"--resume={folder}")  # the flags are kept, and so is the end
        assert [one.status for one in again] == [status] * 2


@pytest.mark.slow  # until the heartbeat is missed
def test_a_process_that_waits_is_ended_within_a_minute_of_anothers_death(tmp_path):
    with Together(2, SPELL, "--last=waits", f"--output_dir={tmp_path}") as together:
        together.send(1, signal.SIGKILL, after="[1/3]")
        first, other = together.ended(within=75)
    assert other.status == -signal.SIGKILL and first.status not in (0, None)
    assert "1" in first.err and "heartbeat" in first.err


def test_processes_that_are_told_different_things_are_refused(tmp_path):
    parent = tmp_path / "results"
    found = several.run(2, SPELL, f"--output_dir={parent}", own=["--letters=ab"])
    assert {one.status for one in found} == {2} and not parent.exists()
    line = "process 1 was started with other flags than process 0, or does not see its folder"
    # Process 0 sees it by itself or, where the other was quicker, by what that one ended with.
    assert line in found[0].err and [one.err.count("\n") for one in found] == [1, 0]


@pytest.mark.slow
def test_a_bad_value_is_said_by_the_first_process_of_a_cluster_alone(tmp_path):
    found = several.run(2, SPELL, "--letters=", f"--run_dir={tmp_path / 'run'}", slurm=True)
    assert {one.status for one in found} == {2} and not list(tmp_path.iterdir())
    assert [one.err for one in found] == [
        "spelling: --letters= is empty; give a value, or leave it out\n",
        "",
    ]


@pytest.mark.slow
def test_a_folder_that_another_run_holds_is_one_line(tmp_path):
    folder = Folder.fresh("spelling", tmp_path, spelling.Settings().as_json()).begin()
    found = several.run(2, SPELL, f"--run_dir={folder}")
    assert [one.status for one in found] == [2, 2] and [one.out for one in found] == ["", ""]
    line = f"spelling: --run_dir={folder}: a run writes to this folder now; wait for its end\n"
    assert [one.err for one in found] == [line, ""]


def test_on_every_host_an_experiment_is_alone_and_the_worst_verdict_counts(tmp_path):
    folder = tmp_path / "run"
    flags = (SPELL, "--each", f"--run_dir={folder}", "--letters=ac", "--last=fails")
    first, other = several.run(2, *flags)
    assert (first.status, other.status, other.out) == (1, 1, "")
    reports = [(folder / f"process_{i}" / "report.md").read_text() for i in range(2)]
    assert reports == ["c0", "a0 c0"]
    verdicts = (folder / "report.md").read_text()
    assert "2 processes: something is missing or failed." in verdicts
    assert verdicts.count("as it should be") == 1
