"""Runs of other experiments, each in a folder that its flags name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attnlab.bench.workers import death
from attnlab.runs.command_line import BAD_FLAG
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import SETTINGS
from attnlab.runs.interrupts import signal_of, uninterrupted

__all__ = ["as_name", "kept", "run", "where"]


def as_name(words: Sequence[str]) -> str:
    """Flags as the name of a folder."""
    return re.sub(r"[^\w.=,-]+", "_", " ".join(word.removeprefix("--") for word in words))


def kept(folder: Path) -> list[Path]:
    """The runs in a folder, the last one last."""
    return sorted(path.parent for path in folder.glob(f"*/{SETTINGS}"))


def where(folder: Path) -> list[str]:
    """Flags of a run that goes on with the last one in a folder, or begins the first."""
    found = kept(folder)
    return [f"--resume={found[-1]}" if found else f"--output_dir={folder}"]


# `python -m` for a process that is told to end when this one is gone, however it went; the kernel
# does that on Linux alone. Not `preexec_fn`, which forks a process that has threads.
_MODULE = """
import ctypes, os, runpy, signal, sys
_, parent, *sys.argv = sys.argv
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(parent):
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run(words: Sequence[str]) -> str:
    """Runs a module to its end; why it failed, or "".

    It has a session of its own, so that Ctrl-C reaches it once, from here; it keeps what it has. If
    this process is killed it gets SIGTERM, on Linux.

    Raises:
      Invalid: the module does not accept its flags; what it said stands above.
    """
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _MODULE, str(os.getpid()), *words],
        start_new_session=True,
        env=dict(os.environ, PYTHONPATH=paths),
    )
    try:
        status = process.wait()
    except KeyboardInterrupt as error:
        process.send_signal(signal_of(error))
        with uninterrupted():
            process.wait()
        raise
    said = shlex.join(["python", "-m", *words])
    if status == BAD_FLAG:
        raise Invalid(f"{said}: not accepted")
    return f"{said}: {death(status)}" if status else ""
