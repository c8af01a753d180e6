"""`device_check` as a user has it: the command, and the loop around a worker that dies."""

import ast
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import experiments.device_check.__main__ as command
from attnlab.bench import oracle, oracle_lsh
from attnlab.bench.case import Case, Result
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from experiments.device_check import cases, jobs, process
from experiments.device_check.cases import Check
from experiments.device_check.jobs import Job
from experiments.device_check.process import Device
from experiments.device_check.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
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
    return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]


@pytest.mark.parametrize(
    "flags",
    [
        ("--lengths=300",),
        ("--parts=speeed",),
        ("--minutes=0",),
        ("--minutes=inf",),
        ("--repeats=9", "--parts=correctness"),
        ("--mechanisms=lsh,dot", "--parts=speed"),
    ],
)
def test_bad_flags_are_one_line(flags, capsys):
    assert command.main(["device_check", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"device_check: {flags[0].partition('=')[0]}")


def test_help(capsys):
    assert command.main(["device_check", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--resume" in out and "--minutes" in out and "experiments/results/DEVICE" in out


@pytest.mark.slow
def test_interrupted_and_resumed_without_what_training_needs(tmp_path):
    """Ctrl-C after the first rows; --resume does the others only, and refuses other flags."""
    process = start(*SMALL, f"--output_dir={tmp_path}")
    deadline = time.monotonic() + 120
    while sum(len(lines(path)) for path in tmp_path.glob("*/results.jsonl")) < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "to complete it: --resume=" in out, out
    (folder,) = tmp_path.iterdir()
    assert " so far" in (folder / "report.md").read_text()
    before = lines(folder / "results.jsonl")

    process = start(f"--resume={folder}", "--allow_cpu")
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0, out
    rows = lines(folder / "results.jsonl")
    assert rows[: len(before)] == before
    done = [json.dumps(row["check"]) for row in rows]
    planned = jobs.plan(Settings(parts=("correctness",), mechanisms=("window",)), "cpu")
    assert len(done) == len(set(done)) == sum(len(job.members) for job in planned)
    assert {row["status"] for row in rows} == {"pass", "refused"}
    report = (folder / "report.md").read_text()
    assert "rows so far" not in report and "| window" in report and "not measured here" in report

    assert command.main(["device_check", f"--resume={folder}", "--tokens=128"]) == 2


@pytest.mark.slow
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
    assert {row["case"]["mechanism"] for row in ran} == {"flash", "exact"}
    (turns,) = {row["turns"] for row in ran if row["case"]["passes"] == "forward_backward"}
    assert (folder / "time.png").exists() and (folder / "memory.svg").exists()
    report = (folder / "report.md").read_text()
    assert "| not measured here |" in report and "NOT met" not in report and turns


WORKER = """
import json, os, sys, time
out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
def send(**message): out.write(json.dumps(message) + "\\n")
send(hello={"platform": "cpu", "device": "cpu", "devices": 1, "cores": 8, "system": "",
            "python": "3", "versions": {}, "revision": ""})
for line in sys.stdin:
    order = json.loads(line)
    spoiled = False
    for i, member in enumerate(order["members"]):
        way, status = member["implementation"], "pass"
        send(member=i, stage="compiling" if order["threads"] > 1 else "running")
        if way == "deadly":
            os.kill(os.getpid(), 9)
        if way == "endless":  # to compile
            time.sleep(60)
        send(member=i, stage="running")
        if way == "hanging":
            time.sleep(60)
        if way == "faulty" or spoiled:  # as after a CUDA error
            spoiled, status = True, "crashed"
        row = {"check": member, "status": status, "message": f"{order['threads']} at once"}
        if way != "late":
            send(member=i, row=row)
    send(done=True)
"""
LIMITS = dict(repeats=1, case_seconds=5.0)


def job(*names: str) -> Job:
    return Job("job", "check", tuple(Check("dot", "full", name, "float32") for name in names))


@pytest.fixture
def worker(tmp_path, monkeypatch) -> str:
    """The module of a worker that does what an implementation is called after."""
    (tmp_path / "acts.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "acts"


def rows_of(job: Job, module: str) -> tuple[dict[str, tuple[str, str]], dict[str, int]]:
    """By implementation what came out, and which process it came from."""
    rows, pids = {}, {}
    with Device(module) as device:
        for row in device.measure(job, deadline=time.monotonic() + 60, **LIMITS):
            rows[row.check.implementation] = row.status, row.message
            pids[row.check.implementation] = device.pid
    return rows, pids


def test_a_death_costs_one_member(worker):
    """It dies while several compile: the rest is done one by one, to see whose fault it is."""
    found, _ = rows_of(job("a", "deadly", "b"), worker)
    assert found["a"] == ("pass", "4 at once")
    assert found["b"] == ("pass", "1 at once")
    assert found["deadly"][0] == "crashed" and "SIGKILL" in found["deadly"][1]


def test_what_fails_on_the_device_takes_its_process_along(worker):
    """After a CUDA error whatever the process does fails as well: the others get a fresh one."""
    found, pids = rows_of(job("a", "faulty", "b", "c"), worker)
    assert {found[name][0] for name in "abc"} == {"pass"} and found["faulty"][0] == "crashed"
    assert pids["a"] == pids["faulty"] != pids["b"] == pids["c"]


@pytest.mark.slow
@pytest.mark.parametrize("fault, limit", [("hanging", "RUN"), ("endless", "COMPILE")])
def test_what_hangs_is_stopped(fault, limit, worker, monkeypatch):
    """Running and compiling have limits of their own, and each costs one process."""
    for name in ("RUN", "COMPILE"):
        monkeypatch.setattr(process, f"{name}_SECONDS", 1.0 if name == limit else 50.0)
    began = time.monotonic()
    found, pids = rows_of(job("a", fault, "b"), worker)
    assert (found["a"][0], found["b"][0]) == ("pass", "pass") and pids["a"] != pids["b"]
    stage = "running" if limit == "RUN" else "compiling"
    assert found[fault] == ("crashed", f"stopped: it took too long while {stage}")
    assert time.monotonic() - began < 30


def test_what_missed_its_deadline_takes_its_process_along(worker):
    """It may still be compiling, beside whatever is timed next."""
    rows = []
    with Device(worker) as device:
        first = device.pid
        for names in (("a", "late"), ("b",)):
            assert device.pid == first
            rows += device.measure(job(*names), deadline=time.monotonic() + 60, **LIMITS)
            first = None
        assert device.pid is not None
    assert [row.check.implementation for row in rows] == ["a", "b"]


def run(planned: list[Job], folder: Path, module: str, monkeypatch, **settings) -> tuple[int, Path]:
    """The status of a run of these jobs, and its folder."""
    monkeypatch.setattr(jobs, "plan", lambda *given: planned)
    chosen = Settings(**{"allow_cpu": True} | settings)
    kept = Folder.fresh("device_check", folder, chosen.as_json())
    return command.run(chosen, kept, module), kept.path


def test_without_an_accelerator_it_says_so(worker, tmp_path, monkeypatch):
    """The worker is on a CPU. What is raised is a line of the command line, with status 2."""
    with pytest.raises(Invalid, match="^no accelerator here, JAX finds only cpu; .*--allow_cpu"):
        run([job("a")], tmp_path / "out", worker, monkeypatch, allow_cpu=False)
    assert not (tmp_path / "out").exists()


def in_dtype(dtype: str, *names: str) -> Job:
    one = job(*names)
    members = tuple(dataclasses.replace(member, dtype=dtype) for member in one.members)
    return dataclasses.replace(one, name=dtype, members=members)


def test_what_cost_two_processes_waits_until_the_end(worker, tmp_path, monkeypatch, capsys):
    names = ("faulty", "a"), ("faulty", "b"), ("faulty", "c"), ("faulty",), ("d",)
    planned = [in_dtype(str(i), *of) for i, of in enumerate(names)]
    status, folder = run(planned, tmp_path / "out", worker, monkeypatch, minutes=1)
    out = capsys.readouterr().out
    assert status == 1 and "1 wait until the end" in out
    assert "[1/2] 2: dot (faulty) again" in out and "to complete it: --resume=" in out
    done = [row["check"]["implementation"] for row in lines(folder / "results.jsonl")]
    assert done == ["faulty", "a", "faulty", "b", "c", "d", "faulty", "faulty"], out


@pytest.mark.slow
def test_a_run_that_is_out_of_time_fails_and_is_resumed(worker, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "REPORT_SECONDS", 0.0)
    planned = [in_dtype("0", "a"), in_dtype("1", "hanging"), in_dtype("2", "b")]
    status, folder = run(planned, tmp_path / "out", worker, monkeypatch, minutes=0.06)
    out = capsys.readouterr().out
    assert status == 1 and "stopped: out of time: 2 jobs are left\n" in out
    assert out.endswith(f"to complete it: --resume={folder}\n")
    assert "1 of 3 rows so far" in (folder / "report.md").read_text()
    last = [in_dtype("0", "a"), in_dtype("1", "b", "hanging")]
    status, folder = run(last, tmp_path / "out", worker, monkeypatch, minutes=0.06)
    out = capsys.readouterr().out
    assert status == 1 and "1 not reached" in out and "out of time: 1 jobs are left" in out


def test_a_run_without_time_for_any_row_fails(worker, tmp_path, monkeypatch, capsys):
    status, folder = run([job("a")], tmp_path / "out", worker, monkeypatch, minutes=0.01)
    out = capsys.readouterr().out
    assert status == 1 and "out of time: 1 jobs are left" in out and "--resume=" in out
    assert [path.name for path in folder.iterdir()] == ["settings.json"]


LOSES_A_ROW = """
from experiments.device_check import worker
from attnlab.ops import blockwise
attend = blockwise.attend
blockwise.attend = lambda *x, **options: attend(*x, **options).at[0, 1, 2, -7].set(0)
worker.main()
"""


@pytest.mark.slow
def test_a_lost_row_fails_the_command(tmp_path, monkeypatch, capsys):
    """One late row of one head, in bfloat16; nothing else is wrong."""
    (tmp_path / "loses_a_row.py").write_text(LOSES_A_ROW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
    checks = [Check("scaled_dot", "everything", way, "bfloat16") for way in ("default", "dense")]
    planned = [Job("check", "check", tuple(checks))]
    status, folder = run(planned, tmp_path / "out", "loses_a_row", monkeypatch, minutes=3)
    assert status == 1
    broken, dense = lines(folder / "results.jsonl")
    assert (broken["status"], dense["status"]) == ("fail", "pass")
    assert broken["message"].startswith("context, worst row: ")
    report = (folder / "report.md").read_text()
    assert "| scaled_dot, default, everything, bfloat16 | fail |" in report
    out = capsys.readouterr().out
    assert "scaled_dot, default, everything, bfloat16: fail: context, worst row: " in out
    assert "--resume" not in out  # nothing is left to do


@pytest.mark.slow
def test_nothing_is_waited_for_after_the_deadline(worker):
    rows = []
    with Device(worker) as device:
        begin = time.monotonic()
        rows += device.measure(job("a", "hanging", "b"), deadline=begin + 1.0, **LIMITS)
        assert time.monotonic() - begin < 3
    assert [row.check.implementation for row in rows] == ["a"]


def test_several_devices_are_checked_together():
    def on_a_mesh(devices):
        planned = jobs.plan(Settings(parts=("correctness",)), "tpu", devices)
        return {m.mechanism for job in planned for m in job.members if m.scenario == "mesh"}

    assert on_a_mesh(4) == on_a_mesh(6) == {*cases.IMPORTANT}
    assert on_a_mesh(1) == on_a_mesh(5) == set()


def test_the_plan_begins_with_what_may_break():
    """Kernels and defaults in bfloat16, then the timing, what the targets rest on first."""
    planned = jobs.plan(Settings(), "gpu")
    kinds = [job.kind for job in planned]
    first, last = kinds.index("time"), len(kinds) - kinds[::-1].index("time")
    assert set(kinds[first:last]) == {"time"}
    risky = {m for job in planned[:first] for m in job.members}
    rest = {m for job in planned[last:] for m in job.members}
    for mechanism in cases.IMPORTANT:
        for scenario in cases.scenarios(mechanism):
            for way in {"default", "cudnn", "pallas"} & set(cases.implementations(mechanism)):
                assert Check(mechanism, scenario.name, way, "bfloat16") in risky
    checked = {m for m in risky if m.scenario == "timed"}
    assert {(m.mechanism, m.length, m.batch) for m in checked} == {
        ("scaled_dot", 2048, 32),
        ("lsh", 2048, 32),
    }
    assert {m.implementation for m in checked} >= {"flash", "default", "sorted", "pallas", "cudnn"}
    assert {m.dtype for m in risky if m.scenario == "buckets"} == {"float32", "bfloat16"}
    assert {m.dtype for m in rest if m.implementation == "default"} == {"float32", "bfloat16"}
    assert {m.mechanism for m in rest} == set(Settings().mechanisms)
    rounds = {s.num_hashes for s in cases.scenarios("lsh")}
    assert rounds == {1, 2, 4, 8} == {4, *jobs.ROUNDS}
    timed = [job for job in planned if job.kind == "time"]
    lengths = [(job.members[0].length, job.members[0].passes) for job in timed[1:4]]
    assert lengths == [(n, "forward_backward") for n in (65536, 8192, 2**20)]
    at_target = {(case.mechanism, case.implementation) for case in timed[2].members}
    assert at_target >= {("lsh-4", None), ("flash", None), ("exact", None), ("additive", None)}
    rounds = {case.num_hashes for job in timed for case in job.members if case.length == 65536}
    assert rounds == {1, 2, 4, 8}
    for job in timed[1:]:
        (batch,) = {case.batch for case in job.members}
        assert batch * job.members[0].length == max(65536, job.members[0].length)
    assert len({m for job in planned for m in job.members}) == sum(
        len(job.members) for job in planned
    )


def test_a_prediction_is_made_a_sequence_at_a_time():
    """At equal tokens flash's time is ∝ n; a sequence 16 times as long costs 256 times as much."""
    rows = [
        Result(Case("flash", n, "forward", batch=2**16 // n), "ok", seconds=(1e-3 * n / 2**13,))
        for n in (2**13, 2**16)
    ]
    long = Case("flash", 2**20, "forward", batch=1)
    assert jobs.expected_seconds(long, rows) == pytest.approx(8e-3 * 256)


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
