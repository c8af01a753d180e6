"""Runs venv and pip so that a failure, Ctrl-C or a kill leaves no half of an environment."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Variables that send what is installed, or imported, somewhere else.
REDIRECTING = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")

# What pip or venv said → what to do about it; the first that matches is shown.
REMEDIES = (
    ("No space left", "free some disk space and run the same command again"),
    (
        "ensurepip",
        "install Python's venv module (Debian, Ubuntu: apt install python3-venv), or set "
        "ATTNLAB_PYTHON to another Python",
    ),
    (
        "No matching distribution",
        "check that the package index can be reached (PIP_INDEX_URL names another one) and has "
        "this package for this Python; without an index, use --no_env with a Python that has the "
        "packages",
    ),
    ("", "mend that and run the same command again"),
)
NOISE = re.compile(
    r"WARNING: Location|\[notice\]|Looking in|Using cached|Requirement already"
    r"|note: This error orig|\[end of output\]|exit code:|error: subprocess|[╰×]"
    r"|Obtaining file:|Installing build dep|WARNING: Retrying .*total=[1-9]"
)


class InstallError(Exception):
    """The environment could not be made; the text says why and what to do."""


def run(command: list[str], root: Path, log: list[str], lock: int) -> None:
    """Runs a command in `root` to its end, its output into `log`; takes it down when interrupted.

    Raises:
        InstallError: It failed.
    """
    process = subprocess.Popen(
        command,
        cwd=root,
        env={k: v for k, v in os.environ.items() if k not in REDIRECTING},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # its whole group can then be ended
        pass_fds=(lock,),  # if this process is killed, the lock lasts until its child has ended
    )
    try:
        for line in process.stdout or ():
            log.append(line.rstrip())
            _show_progress(log[-1])
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        _show_progress("")
    if status:
        raise InstallError(_reason(log))


def _end(process: "subprocess.Popen[str]") -> None:
    for number, patience in ((signal.SIGINT, 5), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(patience)


def _reason(log: list[str]) -> str:
    """Picks the lines that say why from pip's output, and the remedy for them."""
    lines = [line.strip(" │") for line in log if not NOISE.search(line)]
    lines = [line[:300] for line in lines if line][-10:]
    remedy = next(remedy for sign, remedy in REMEDIES if sign in "\n".join(lines))
    return "\n".join([*(f"    {line}" for line in lines), f"What to do: {remedy}."])


def remove(venv: Path) -> None:
    """Removes the environment so that at no instant a part of it stands under its name."""
    aside = venv.with_name(f"{venv.name}.removed")
    with _termination_waits():
        shutil.rmtree(aside, ignore_errors=True)
        if venv.exists():
            venv.replace(aside)
            shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[int]:
    """Within `with`, no other launch installs; gives the descriptor of the lock file."""
    with open(root / ".venv.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another launch is making .venv; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


@contextlib.contextmanager
def termination_raises() -> Iterator[None]:
    """Lets `except` and `finally` run on SIGTERM and SIGHUP, as they do on SIGINT."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    with _handlers(leave, (signal.SIGTERM, signal.SIGHUP)):
        yield


def _termination_waits() -> contextlib.AbstractContextManager[None]:
    return _handlers(signal.SIG_IGN, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


@contextlib.contextmanager
def _handlers(handler: Any, numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in numbers}
    for number, old in before.items():
        if old is not signal.SIG_IGN:  # what nohup ignores stays ignored
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def say(text: str) -> None:
    """Tells the user, apart from what the experiment prints."""
    print(f"launch/local: {text}", file=sys.stderr, flush=True)


def _show_progress(line: str) -> None:
    """Shows the last line of output in place on a terminal, and nothing in a log."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
