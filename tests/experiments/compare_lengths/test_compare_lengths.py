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

from attnlab.bench import topology
from experiments.compare_lengths import __main__ as compare_lengths

ROOT = Path(__file__).resolve().parents[3]
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
        and "4 of 4 cases measured" in out
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--mechanisms=dot,foo", "no attention 'foo'; valid: exact, dot, general, cosine"),
        ("--lengths=0", "--lengths=0: 0 is too small; give at least 1"),
        ("--lengths=1g", "--lengths=1g: give whole numbers, such as 3000, or 4k for 4096"),
        ("--lengths=k", "--lengths=k: give whole numbers"),
        ("--target=", "--target= is empty; give a value, or leave it out"),
        ("--output_dir=", "--output_dir= is empty; give a folder"),
        ("--resume=", "--resume= is empty; give a folder"),
        ("--input=", "--input= is empty; give a value, or leave it out"),
        ("--case_seconds=inf", "--case_seconds=inf: give a finite number"),
        ("--case_seconds=nan", "--case_seconds=nan: give a finite number"),
        ("--case_gib=0", "--case_gib=0 is too small; give more than 0"),
        ("--lengths=", "--lengths= is empty"),
        ("--batch=3 --devices=2", "--batch=3 does not divide over 2 devices; give a multiple"),
        ("--input=/no/such/file", "--input=/no/such/file: there is no such file"),
        ("--parallel=shard", "--parallel=shard: no 'shard'; valid: jit, pmap"),
        ("--dtype=float8", "no 'float8'; valid: float32, bfloat16, float16"),
        ("--passes=backward", "no 'backward'; valid: forward, forward_backward"),
        ("--implementation=fast", "no 'fast'; valid: auto, dense, blockwise, cudnn"),
        ("--case_seconds=0", "--case_seconds=0 is too small; give more than 0"),
        ("--mechanism=dot", "Did you mean: mechanisms"),
        ("--target=v5e --repeats=9", "--repeats would count for nothing: with --target nothing"),
        ("--target=v5e --case_gib=64", "--case_gib would count for nothing"),
        ("--target=v5e --program=bert --nocausal", "--program=bert settles that; leave it out"),
        ("--vocab_size=7", "--vocab_size would count for nothing: only the model"),
        ("--mechanisms=dot --chunk_size=8", "lsh is not among --mechanisms"),
        ("--mechanisms=lsh-4 --implementation=dense", "none of --mechanisms is computed by dense"),
        ("--mechanisms=dot:dense --implementation=auto", "is computed by auto; leave it out"),
        ("--mechanisms=dot --against=exact", "--against=exact: not among --mechanisms; give dot"),
        ("--mechanisms=flax,exact --noops_only", "--noops_only: flax have no projections"),
        ("--mechanisms=flax --target=v5e", "--mechanisms=flax: on one device that is here"),
        ("--passes=accuracy", "--passes=accuracy: of bare functions on this machine; give"),
        ("--mechanisms=exact+exact", "'exact+exact' names 2 layers, a model has 1 there"),
        ("dot", "'dot' is not a flag"),
        ("--resume=/no/such/folder", "--resume=/no/such/folder: no settings.json there"),
    ],
)
def test_bad_flags_end_in_one_line(flags, message, monkeypatch, capsys):
    monkeypatch.setattr(topology, "require_compiler", lambda target: None)
    assert compare_lengths.main(["compare_lengths", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_lengths_may_be_thousands_of_1024(monkeypatch):
    seen = []
    monkeypatch.setattr(compare_lengths, "run", lambda s, _: seen.append(s) or 0)
    for flags in ("--lengths=512,1k,2K,1m", "--implementation=dense"):
        compare_lengths.main(["compare_lengths", *flags.split()])
    assert seen[0].lengths == (512, 1024, 2048, 2**20)
    assert seen[1].mechanisms == ("exact", "additive", "window-128", "lsh-4")  # each as it says


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        (
            "results.jsonl",
            "{]",
            "results.jsonl, line 2: not a row of compare_lengths; delete that line",
        ),
        ("results.jsonl", '{"case": 5}', "line 2: not a row of compare_lengths"),
        ("settings.json", "{}", "settings of another version, without against, batch"),
        ("settings.json", "[]", "settings.json cannot be read"),
    ],
)
def test_a_damaged_folder_ends_in_one_line(finished, tmp_path, name, line, message, capsys):
    for file in ("settings.json", "results.jsonl"):
        (tmp_path / file).write_text((finished / file).read_text())
    first = (finished / name).read_text().splitlines()[0] + "\n"
    (tmp_path / name).write_text((first if name == "results.jsonl" else "") + line + "\n")
    assert compare_lengths.main(["compare_lengths", f"--resume={tmp_path}"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--repeats=9", "--repeats=9 differs from 2 in"),
        ("--lengths=16", "--lengths=16 differs from 16,32 in"),
        ("--output_dir=x", "--output_dir and --resume exclude each other"),
    ],
)
def test_resume_refuses_other_flags(finished, flag, message, capsys):
    assert compare_lengths.main(["compare_lengths", f"--resume={finished}", flag]) == 2
    assert message in capsys.readouterr().err


def test_help_names_every_flag(capsys):
    assert compare_lengths.main(["compare_lengths", "--help"]) == 0
    out = capsys.readouterr().out
    flags = (
        "mechanisms lengths batch num_heads head_dim dtype causal passes implementation parallel"
    )
    for name in f"{flags} devices repeats input output_dir resume ops_only".split():
        assert re.search(rf"^  --(\[no\])?{name}\b", out, re.M), name
