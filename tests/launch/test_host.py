"""launch/host.py: a command's output, signals and status."""

import signal
import subprocess
import sys

import pytest

from tests.several import ROOT


def host(folder, code: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, ROOT / "launch" / "host.py", folder, sys.executable, "-uc", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("pass", 0)]
)
def test_output_is_shown_and_kept_and_the_status_passed_on(tmp_path, end, status):
    code = f"import os, sys; print('é' * 9); print('b', file=sys.stderr); {end}"
    for _ in range(2):  # a run that goes on adds to its log
        process = host(tmp_path / "run", code)
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out.decode()) == (status, "é" * 9 + "\nb\n")
    [log] = (tmp_path / "run").iterdir()
    assert log.name.startswith("log-") and log.read_bytes() == 2 * out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_go_to_the_command(tmp_path, number):
    code = f"""
import signal, sys, time
signal.signal({int(number)}, lambda *_: sys.exit(143))
print("ready")
time.sleep(30)"""
    process = host(tmp_path, code)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 143
