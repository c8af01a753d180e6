"""The job `profile_lsh`: small real programs, and the command line as a user has it."""

import datetime
import json
import signal
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from attnlab.bench import inputs, mechanisms
from attnlab.bench.case import PASSES, Case
from attnlab.runs import folders
from attnlab.bench.workers import without_chatter
from experiments.profile_lsh import __main__ as profile_lsh
from experiments.profile_lsh import figure as profile_figure
from experiments.profile_lsh import profile as profile_case
from experiments.profile_lsh import report as profile_report
from experiments.profile_lsh import run as profile_run
from experiments.profile_lsh.profile import Profile
from experiments.profile_lsh.stages import STAGES, instructions
from experiments.profile_lsh.trace import Span
from tests.bench.rows import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[3]
SMALL = "--num_heads=2 --head_dim=8 --num_hashes=2 --chunk_size=4 --repeats=2".split()
FILES = ["report.md", "results.jsonl", "settings.json", "shares.png", "shares.svg"]


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 20, tzinfo=tz)


@pytest.fixture(autouse=True)
def _keep_signal_handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def made_up(length: int, passes: str = "forward", **fields) -> Profile:
    """A row whose stages take 1, 2, … 6 ms."""
    stages = {stage: i * 1e-3 for i, stage in enumerate(STAGES, 1)}
    largest = {"name": "dot.1", "op_name": "jit(f)/lsh_attend/dot", "stage": "attend"}
    known = dict(
        seconds=(0.02, 0.022, 0.03),
        traced_seconds=0.025,
        stages=stages,
        instructions=({**largest, "seconds": 3e-3},),
        environment=ENVIRONMENT,
        time="2026-11-20T10:00:00+00:00",
    )
    return Profile(Case("lsh", length, passes), 64, **(known | fields))


@pytest.mark.parametrize("passes", PASSES)
def test_every_stage_of_a_real_program_has_its_share(passes):
    case = Case("lsh", 250, passes, num_heads=2, head_dim=8, num_hashes=2, chunk_size=16)
    profile = profile_case.profile(case, inputs.read(), num_buckets=None, repeats=2)
    assert profile.status == "ok" and profile.num_buckets == 32 and len(profile.seconds) == 2
    assert sum(profile.shares.values()) == pytest.approx(1)
    assert tuple(profile.shares) == STAGES and min(profile.shares.values()) > 0
    assert 0 < sum(profile.stages.values()) <= profile.traced_seconds
    seconds = [one["seconds"] for one in profile.instructions]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("causal", [True, False])
def test_the_program_is_that_of_the_librarys_route(causal, quick_compile):
    case = Case("lsh", 40, causal=causal, ops_only=True, num_heads=2, head_dim=8, chunk_size=8)
    streams = inputs.streams(inputs.read(), batch=1, length=40, width=16).values()
    qk, _, v = (x.reshape(1, 40, 2, 8) for x in streams)
    way = profile_case.mechanism(case, profile_case.num_buckets_of(case, None))
    compiled = jax.jit(way.apply).lower({}, qk, v).compile()
    theirs = jax.jit(mechanisms.build(case).apply)({}, qk, v)
    assert jnp.allclose(compiled({}, qk, v), theirs, rtol=1e-5, atol=1e-5)
    program = instructions(compiled.as_text()).values()
    assert {one.stage for one in program if "_normal" in one.op_name} == {"hash"}  # rotations


def test_the_stages_are_those_of_the_fastest_call(monkeypatch, quick_compile):
    taken = iter([0.3, 0.1, 0.2])

    def traced(call, program):
        seconds = next(taken)
        return seconds, [Span(next(iter(program)), 0, seconds * 0.9e9)]

    monkeypatch.setattr(profile_case.profile_trace, "traced", traced)
    case = Case("lsh", 64, num_heads=2, head_dim=8, chunk_size=16)
    profile = profile_case.profile(case, inputs.read(), num_buckets=None, repeats=3)
    assert profile.traced_seconds == 0.1
    assert sum(profile.stages.values()) == pytest.approx(0.09)


def test_the_program_has_the_buckets_that_were_asked_for(quick_compile):
    case = Case("lsh", 64, num_heads=2, head_dim=8, chunk_size=16)
    profile = profile_case.profile(case, inputs.read(), num_buckets=6, repeats=1)
    assert profile.num_buckets == 6
    with pytest.raises(ValueError, match="must be even"):
        profile_case.check(case, 7)


def test_what_does_not_fit_is_not_run(monkeypatch, quick_compile):
    monkeypatch.setattr(profile_case.memory, "available", lambda device: 1000)
    case = Case("lsh", 64, num_heads=2, head_dim=8, chunk_size=16)
    profile = profile_case.profile(case, inputs.read(), num_buckets=None, repeats=1)
    assert profile.status == "too_large" and profile.message.startswith("needs ")


def test_a_run_leaves_everything_it_promises(tmp_path, capsys, quick_compile):
    command = ["profile_lsh", "--lengths=64,32", *SMALL, f"--output_dir={tmp_path}"]
    assert profile_lsh.main([*command, "--passes=forward", "--nocausal", "--dtype=bfloat16"]) == 0
    out = capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == FILES
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [row["case"]["length"] for row in rows] == [32, 64]
    for row in rows:
        assert row["case"]["dtype"] == "bfloat16" and not row["case"]["causal"]
        assert row["flags"]["chunk_size"] == 4 and row["flags"]["num_buckets"] is None
        assert row["environment"]["versions"]["jax"] and row["time"]
        assert sum(row["shares"].values()) == pytest.approx(1) and row["shares"]["attend"] > 0
    assert "[2/2] n = 64, forward … " in out and "## Forward\n" in out


def test_a_folder_that_exists_is_never_used(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "datetime", types.SimpleNamespace(datetime=Frozen))
    first, second = (folders.fresh_folder(tmp_path, "profile_lsh") for _ in range(2))
    assert first != second and first.is_dir() and second.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--output_dir=.*; give a folder"):
        folders.fresh_folder(tmp_path / "file", "profile_lsh")


def test_one_failure_is_a_row_and_the_rest_go_on(tmp_path, monkeypatch, capsys):
    def fails_once(case, *_, **__):
        if case.length == 32:
            raise RuntimeError("the device\nfell over")
        return made_up(case.length)

    monkeypatch.setattr(profile_run, "profile", fails_once)
    flags = ["--lengths=32,64", "--passes=forward", *SMALL, f"--output_dir={tmp_path}"]
    assert profile_lsh.main(["profile_lsh", *flags]) == 1
    (folder,) = tmp_path.iterdir()
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["failed", "ok"]
    assert "RuntimeError: the device fell over" in (folder / "report.md").read_text()
    assert "fell over" in (folder / "errors.log").read_text()
    assert "failed: RuntimeError" in capsys.readouterr().out


def test_interrupted_runs_keep_their_rows_and_write_the_report(tmp_path, monkeypatch):
    def stops_at_64(case, *_, **__):
        if case.length == 64:
            raise KeyboardInterrupt
        return made_up(case.length)

    monkeypatch.setattr(profile_run, "profile", stops_at_64)
    flags = ["--lengths=32,64", "--passes=forward", *SMALL, f"--output_dir={tmp_path}"]
    assert profile_lsh.main(["profile_lsh", *flags]) == 130
    (folder,) = tmp_path.iterdir()
    assert "1 of 2 cases: cut short." in (folder / "report.md").read_text()
    assert (folder / "shares.png").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--lengths=1k", "--lengths=1k: give whole numbers"),
        ("--lengths=", "--lengths= is empty"),
        ("--chunk_size=0", "--chunk_size: 0 is not positive"),
        ("--num_buckets=7", "must be even"),
        ("--num_buckets=0", "must be even"),
        ("--passes=backward", "no 'backward'; valid: forward, forward_backward"),
        ("--dtype=float8", "value should be one of <float32|bfloat16|float16>"),
        ("--input=/no/such/file", "--input=/no/such/file: no such file"),
        ("--output_dir=/dev/null/x", "--output_dir=/dev/null/x: Not a directory; give a folder"),
        ("--head=3", "Did you mean: head_dim"),
        ("lsh", "'lsh' is not a flag; write --name=value"),
    ],
)
def test_bad_flags_end_in_one_line(flags, message, capsys):
    small = ["--lengths=32", *SMALL, "--output_dir=/dev/null/x"]
    assert profile_lsh.main(["profile_lsh", *small, *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_help_names_every_flag():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.profile_lsh", "--help"],
        cwd=ROOT, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0 and without_chatter(done.stderr) == ""
    for name in "lengths num_heads head_dim num_hashes chunk_size num_buckets passes dtype".split():
        assert f"--{name}=" in done.stdout, name


def test_table_has_a_line_a_length_and_a_column_a_stage():
    lost = made_up(4096, status="failed", message="gone", seconds=(), stages={})
    rows = [made_up(8192), made_up(2048), lost, made_up(2048, "forward_backward")]
    lines = profile_report.table(rows, "forward").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0] == ["n", "time", "traced", *STAGES]
    assert [line[0] for line in cells[2:]] == ["2048", "4096", "8192"]
    assert cells[2][1:5] == ["22.0 ms", "25.0 ms", "1.00 ms 4.8%", "2.00 ms 9.5%"]
    assert cells[3][1] == "gone"
    text = profile_report.markdown(rows, planned=4)
    assert "Abacus 9000" in text and "## Forward + backward" in text and "lsh_attend/dot" in text
    assert "64 at n = 2048, 64 at n = 4096" in text


def test_figure_has_a_bar_a_length_and_its_shares(tmp_path):
    rows = [made_up(n, p) for n in (2048, 4096) for p in PASSES]
    written = profile_figure.save(rows, tmp_path)
    assert sorted(path.name for path in written) == ["shares.png", "shares.svg"]
    svg = (tmp_path / "shares.svg").read_text()
    assert "forward + backward" in svg and "29%" in svg and "22.0 ms" in svg
    assert all(stage in svg for stage in STAGES)
    lost = made_up(64, status="failed", stages={})
    assert profile_figure.save([lost], tmp_path / "none") == []
