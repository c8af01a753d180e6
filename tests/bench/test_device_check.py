"""`device_check` as a user has it: the command, and the loop around a worker that dies."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import experiments.device_check as command
from attnlab.bench import device_jobs, oracle, oracle_lsh
from attnlab.bench.case import Case, Result
from attnlab.bench.device_cases import Check
from attnlab.bench.device_jobs import Job
from attnlab.bench.device_process import started
from attnlab.bench.device_settings import Settings
from attnlab.bench.runner import without_chatter

ROOT = Path(__file__).resolve().parents[2]
# Where the packages of a training machine are missing; None in sys.modules makes an import fail.
ABSENT = (
    "array_record grain optax orbax sacrebleu sentencepiece tensorflow tensorflow_datasets torch"
)
BLOCKED = f"""
import runpy, sys
for name in {ABSENT.split()}:
    sys.modules[name] = None
sys.argv[0] = "device_check"
"""
SMALL = "--allow_cpu --parts=correctness --mechanisms=window --minutes=3".split()


# A third of the time to compile.
ENVIRONMENT = dict(PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu", JAX_DISABLE_MOST_OPTIMIZATIONS="true")


def start(*flags: str) -> subprocess.Popen:
    code = f"{BLOCKED}\nrunpy.run_module('experiments.device_check', run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, *flags],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_without_an_accelerator_it_says_so(tmp_path):
    process = start(f"--output_dir={tmp_path}")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2, out
    assert (
        without_chatter(out).count("\n") == 1
        and "no accelerator here" in out
        and "--allow_cpu" in out
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", [("--lengths=300",), ("--parts=speeed",), ("--minutes=0",)])
def test_bad_flags_are_one_line(flags, capsys):
    assert command.main(["device_check", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"device_check: {flags[0].partition('=')[0]}")


def test_help(capsys):
    assert command.main(["device_check", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--resume" in out and "--minutes" in out and "experiments/results/DEVICE" in out


def test_interrupted_and_resumed_without_what_training_needs(tmp_path):
    """Ctrl-C after the first rows; --resume does the others only, and refuses other flags."""
    process = start(*SMALL, f"--output_dir={tmp_path}")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/correctness.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "to complete it: --resume=" in out, out
    (folder,) = tmp_path.iterdir()
    assert "cut short" in (folder / "report.md").read_text()
    before = lines(folder / "correctness.jsonl")

    process = start(f"--resume={folder}", "--allow_cpu")
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0, out
    rows = lines(folder / "correctness.jsonl")
    assert rows[: len(before)] == before
    done = [json.dumps(row["check"]) for row in rows]
    jobs = device_jobs.plan(Settings(parts=("correctness",), mechanisms=("window",)), "cpu")
    assert len(done) == len(set(done)) == sum(len(job.members) for job in jobs)
    assert {row["status"] for row in rows} == {"pass", "refused"}
    report = (folder / "report.md").read_text()
    assert (
        "rows: cut short" not in report and "| window" in report and "not measured here" in report
    )

    assert command.main(["device_check", f"--resume={folder}", "--tokens=128"]) == 2


def test_a_timed_run_writes_rows_report_and_figures(tmp_path):
    flags = "--parts=speed --mechanisms=scaled_dot --lengths=32 --tokens=64 --repeats=3"
    process = start("--allow_cpu", *flags.split(), f"--output_dir={tmp_path}")
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0, out
    (folder,) = tmp_path.iterdir()
    rows = lines(folder / "results.jsonl")
    bad = [row["message"] for row in rows if row["status"] != "ok"]
    assert all(message.startswith("refused: ") for message in bad), bad
    ran = [row for row in rows if row["status"] == "ok"]
    assert {len(row["seconds"]) for row in ran} == {3}
    assert {row["case"]["mechanism"] for row in ran} == {"flash", "multi_head"}
    (turns,) = {row["flags"]["turns"] for row in ran if row["case"]["passes"] == "forward_backward"}
    assert (folder / "time.png").exists() and (folder / "memory.svg").exists()
    report = (folder / "report.md").read_text()
    assert "| not measured here |" in report and "NOT met" not in report and turns


WORKER = """
import json, os, sys
out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
def send(**message): out.write(json.dumps(message) + "\\n")
send(hello={"platform": "cpu", "cores": 8})
for line in sys.stdin:
    order = json.loads(line)
    for i, member in enumerate(order["members"]):
        send(member=i, stage="compiling" if order["threads"] > 1 else "running")
        if member["implementation"] == "deadly":
            os.kill(os.getpid(), 9)
        row = {"check": member, "status": "pass", "message": f"{order['threads']} at once"}
        send(member=i, row=row)
    send(done=True)
"""


def test_a_death_costs_one_member(tmp_path, monkeypatch):
    """It dies while several compile: the rest is done one by one, to see whose fault it is."""
    (tmp_path / "dies.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    members = tuple(Check("dot", "full", name, "float32") for name in ("a", "deadly", "b"))
    rows = []
    with started("dies") as device:
        limits = dict(deadline=time.monotonic() + 60, repeats=1, case_seconds=5.0)
        device.run(Job("job", "check", members), rows.append, **limits)
    found = {row.check.implementation: (row.status, row.message) for row in rows}
    assert found["a"] == ("pass", "4 at once")
    assert found["b"] == ("pass", "1 at once")
    assert found["deadly"][0] == "crashed" and "SIGKILL" in found["deadly"][1]


def test_nothing_is_waited_for_after_the_deadline(tmp_path, monkeypatch):
    (tmp_path / "sleeps.py").write_text(WORKER.replace("os.kill(os.getpid(), 9)", "input()"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    members = tuple(Check("dot", "full", name, "float32") for name in ("a", "deadly", "b"))
    rows = []
    with started("sleeps") as device:
        begin = time.monotonic()
        limits = dict(deadline=begin + 1.0, repeats=1, case_seconds=60.0)
        device.run(Job("job", "check", members), rows.append, **limits)
        assert time.monotonic() - begin < 3
    assert [row.check.implementation for row in rows] == ["a"]


def test_the_plan_begins_with_what_the_targets_rest_on():
    jobs = device_jobs.plan(Settings(), "gpu")
    assert [job.kind for job in jobs[:6]] == ["check"] * 6
    timed = [job for job in jobs if job.kind == "time"]
    lengths = [(job.members[0].length, job.members[0].passes) for job in timed[1:4]]
    assert lengths == [(n, "forward_backward") for n in (65536, 8192, 2**20)]
    at_target = {(case.mechanism, case.implementation) for case in timed[2].members}
    assert at_target >= {("lsh", None), ("flash", None), ("multi_head", None), ("additive", None)}
    rounds = {case.num_hashes for job in timed for case in job.members if case.length == 65536}
    assert rounds == {1, 2, 4, 8}
    for job in timed[1:]:
        (batch,) = {case.batch for case in job.members}
        assert batch * job.members[0].length == max(65536, job.members[0].length)
    assert len({m for job in jobs for m in job.members}) == sum(len(job.members) for job in jobs)


def test_a_prediction_is_made_a_sequence_at_a_time():
    """At equal tokens flash's time is ∝ n; a sequence 16 times as long costs 256 times as much."""
    rows = [
        Result(Case("flash", n, "forward", batch=2**16 // n), "ok", seconds=(1e-3 * n / 2**13,))
        for n in (2**13, 2**16)
    ]
    long = Case("flash", 2**20, "forward", batch=1)
    assert device_jobs.expected_seconds(long, rows) == pytest.approx(8e-3 * 256)


@pytest.mark.parametrize("module", [oracle, oracle_lsh])
def test_the_oracle_shares_no_code(module):
    tree = ast.parse(Path(module.__file__).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert names <= {"collections.abc", "math", "numpy", "typing"}
