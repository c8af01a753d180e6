"""A kernel that kills or spoils its process takes no other down; where `tests/device` can run."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.device.isolation import Device
from tests.device.scenarios import Check
from tests.several import ROOT

ACTS = """
import os, sys, time
from attnlab.bench import workers

def answer(order, send):
    ways = [check["implementation"] for check in order["checks"]]
    send(stage="compiling")
    if "deadly to compile" in ways:
        os.kill(os.getpid(), 9)
    send(stage="running")
    if ways[0] == "deadly":
        print("an illegal instruction", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 11)
    if ways[0] == "hanging":
        time.sleep(60)
    status = "crashed" if ways[0] == "faulty" else "pass"
    send(row={"status": status, "message": str(os.getpid()), "ratios": {}})

workers.serve(lambda: {}, answer)
"""


def test_a_kernel_that_kills_or_spoils_its_process_takes_no_other_down(tmp_path, monkeypatch):
    """After a CUDA error whatever the process does fails as well: the others get a fresh one."""
    (tmp_path / "acts.py").write_text(ACTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = ["a", "faulty", "b", "deadly", "c", "deadly to compile", "d", "hanging", "e"]
    made = [Check("dot", "full", name, "float32") for name in names]
    began = time.monotonic()
    with Device("acts", run_seconds=1.0) as device:
        rows = {x.implementation: device.check(x, made[i:]) for i, x in enumerate(made, 1)}
    assert {name: row.status for name, row in rows.items()} == {
        **dict.fromkeys("abcde", "pass"),
        **dict.fromkeys(["faulty", "deadly", "deadly to compile", "hanging"], "crashed"),
    }
    assert rows["a"].message == rows["faulty"].message != rows["b"].message
    said = "killed (SIGSEGV) while running: an illegal instruction"
    assert rows["deadly"].message == said
    assert rows["deadly to compile"].message.endswith("while compiling")
    assert rows["hanging"].message == "stopped: it took too long while running"
    assert time.monotonic() - began < 60


# Where only jax, flax and pytest are, in this process and the worker's, one kernel is broken.
ON_A_BARE_IMAGE = """
import os, sys
absent = "hypothesis matplotlib grain optax orbax sacrebleu sentencepiece tensorflow torch xdist"
sys.modules.update(dict.fromkeys(absent.split()))
if "tests.device.worker" in sys.orig_argv:
    from attnlab.ops import blockwise
    blockwise.attend = lambda *arguments, **options: os.kill(os.getpid(), 11)
"""


def on_a_bare_image(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(ON_A_BARE_IMAGE)
    paths = {"PYTHONPATH": f"{folder}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "tests/device", "-q", *flags],
        cwd=ROOT,
        env=os.environ | paths | {"GIVEN_JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_tests_need_no_more_than_jax_and_flax_and_survive_a_crash(tmp_path):
    file = tmp_path / "rows.jsonl"
    flags = ["--allow_cpu", f"--device_report={file}"]
    of_window = "window-window- and bfloat16 and (blockwise or dense)"
    done = on_a_bare_image(tmp_path, *flags, "-k", of_window)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout
    where, *rows = map(json.loads, file.read_text().splitlines())
    assert where["platform"] == "cpu"
    rows = {row["check"]["implementation"]: row for row in rows}
    assert rows["blockwise"]["message"].startswith("killed (SIGSEGV) while ")
    assert rows["dense"]["status"] == "pass" and rows["dense"]["ratios"]["context, worst row"] < 1


@pytest.mark.slow
def test_without_an_accelerator_they_fail_in_one_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    done = on_a_bare_image(tmp_path, f"--device_report={file}")
    assert done.returncode == 2 and not file.exists()
    assert "no accelerator here, JAX finds only the CPU; with --allow_cpu" in done.stdout
