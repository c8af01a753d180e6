"""The command line as a user has it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.compare_lengths import __main__ as compare_lengths
from experiments.compare_lengths.settings import Settings
from tests.several import ROOT

SMALL = (
    "--mechanisms=dot,window-128 --lengths=16,32 --passes=forward --num_heads=2 --head_dim=8 "
    "--ops_only --repeats=2"
)

ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "0",  # a good run's errors.log is not of chatter
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",  # half of the time to compile
}


def start(*flags: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "experiments.compare_lengths", *flags]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(*flags: str) -> tuple[int, str]:
    process = start(*flags)
    out, _ = process.communicate(timeout=300)
    return process.returncode, out


def rows_of(folder: Path) -> list[dict]:
    """Every line of a case; a short one that ran among other work may have two."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [row for line in lines if line if "case" in (row := json.loads(line))]


def peaks_of(folder: Path) -> list[str]:
    lines = filter(None, (folder / "results.jsonl").read_text().splitlines())
    rows = map(json.loads, lines)
    return [row["unit"]["name"] for row in rows if "unit" in row and row["rate"] > 0]


def cases_of(rows: list[dict]) -> set[str]:
    return {json.dumps(row["case"]) for row in rows}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    parent = tmp_path_factory.mktemp("results")
    status, out = run(*SMALL.split(), f"--output_dir={parent}")
    assert status == 0, out
    assert re.search(r"\[4/8\] window-128, n = 32, forward, about \d+ s left", out), out
    assert (
        "compiling … " in out
        and re.search(r"compiled in [\d.]+ s, running … ", out)
        and "8 of 8 cases and peaks measured" in out
    )
    (folder,) = parent.iterdir()
    return folder


@pytest.mark.slow
def test_a_run_leaves_everything_it_promises(finished):
    names = "memory.svg report.md results.csv results.jsonl settings.json time.svg"
    assert sorted(path.name for path in finished.iterdir()) == names.split()
    rows = rows_of(finished)
    assert len(cases_of(rows)) == 4 and {row["status"] for row in rows} == {"ok"}
    for row in rows:
        assert len(row["seconds"]) == 2 and row["compile_seconds"] > 0
        assert row["environment"]["device"] and row["environment"]["versions"]["jax"]
        assert row["flags"]["num_heads"] == 2 and row["case"]["ops_only"]
        assert row["operations"]["products"] >= 16 * 16 * 8 * 2 * 2 * 2
    assert peaks_of(finished) == ["products", "exp", "tanh", "div"]
    assert "## Share of the machine's peak" in (finished / "report.md").read_text()


@pytest.mark.slow
def test_resume_does_only_what_is_missing(finished, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "settings.json").write_text((finished / "settings.json").read_text())
    kept = (finished / "results.jsonl").read_text().splitlines(keepends=True)
    failed = json.loads(kept[1]) | {"status": "killed"}
    (folder / "results.jsonl").write_text(kept[0] + "\n" + json.dumps(failed) + "\n")
    status, out = run(f"--resume={folder}")
    assert status == 0 and "7 of 8 cases and peaks to run" in out, out
    rows = rows_of(folder)
    assert rows[:2] == [json.loads(kept[0]), failed] and len(cases_of(rows)) == 4
    assert len(peaks_of(folder)) == 4
    assert len(rows) >= 2 + 3 and {row["status"] for row in rows[2:]} == {"ok"}
    assert "| killed |" not in (folder / "report.md").read_text()


@pytest.mark.slow
def test_interrupted_runs_keep_their_rows_and_write_the_report(tmp_path):
    long = "--mechanisms=additive --lengths=64,131072 --ops_only --case_seconds=600".split()
    process = start(*long, f"--output_dir={tmp_path}")
    assert process.stdout is not None
    seen = ""
    while "n = 131072" not in seen:
        seen += process.stdout.read(1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume=" in out, out
    (folder,) = tmp_path.iterdir()
    assert len(rows_of(folder)) == 2
    assert "2 of 4 cases so far." in (folder / "report.md").read_text()
    assert (folder / "time.svg").exists()


def test_lengths_may_be_thousands_of_1024(monkeypatch):
    seen = []
    monkeypatch.setattr(compare_lengths, "compare", lambda s, _: seen.append(s) or 0)
    for flags in ("--lengths=512,1k,2K,1m", "--implementation=dense"):
        compare_lengths.main(["compare_lengths", *flags.split()])
    assert seen[0].lengths == (512, 1024, 2048, 2**20)
    assert seen[1].mechanisms == ("exact", "additive", "window-128", "lsh-4")  # each as it says


def test_torchs_attention_stands_beside_several_devices():
    settings = Settings(
        mechanisms=("lsh-4", "torch_sdpa"),
        against="lsh-4",
        devices=(2,),
        shard="heads",
        ops_only=True,
        lengths=(128,),
        passes=("forward",),
    )
    ours, theirs = settings.cases(2)
    assert (ours.devices, theirs.devices, theirs.against) == (2, 2, "lsh-4")
