"""Makes the repository's `.venv`, which is at any time either complete or on its way out.

`.venv/attnlab.json` tells what the folder holds. It is written before anything else, marked
incomplete, and marked complete last; a folder found incomplete (killed, power lost) is made anew. A
`.venv` without the file is somebody else's and is left alone. One lock file lets one launch work at
a time.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import devices

STATE = "attnlab.json"
COMPILER = "gpu-compile"  # the extra with JAX's CUDA plugin alone

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


def ensure(root: Path, extras: set[str]) -> Path:
    """Returns the Python of a complete `.venv` with at least these extras, made first if need be.

    Args:
        root: The repository.
        extras: Extras of pyproject.toml to hold besides the accelerator's.

    Raises:
        InstallError: It could not be made. An environment that was complete before is then as it
            was, any other is gone.
    """
    venv = root / ".venv"
    if not _holds(venv, extras):
        try:
            with _lock(root) as lock, _termination_raises():
                if not _holds(venv, extras):  # another launch may have made it meanwhile
                    _make(venv, extras, lock)
        except OSError as error:
            raise InstallError(
                f"cannot make {venv}: {error}; use a checkout that can be written to, or --no_env "
                "with a Python that has the packages"
            ) from error
    return venv / "bin" / "python"


def _holds(venv: Path, extras: set[str]) -> bool:
    state = _read(venv)
    return (
        _sound(venv, state)
        and state["pyproject"] == _pyproject_hash(venv.parent)
        and extras <= set(state["extras"])
        and devices.seen() <= set(state["devices"])  # a home folder may move to a node with a GPU
    )


def _sound(venv: Path, state: dict[str, Any]) -> bool:
    """Whether the environment is complete and still where, and of the Python, it was made for."""
    if not state.get("complete") or state["root"] != str(venv.parent):
        return False
    python = venv / "bin" / "python"
    asked = os.environ.get("ATTNLAB_PYTHON")
    wanted = os.path.realpath(sys.executable) if asked else state["python"]
    return os.access(python, os.X_OK) and os.path.realpath(python) == state["python"] == wanted


def _make(venv: Path, extras: set[str], lock: int) -> None:
    before = _read(venv)
    if not before and venv.exists() and any(venv.iterdir()):
        raise InstallError(
            f"{venv} was not made by launch/local; move it away, or activate it and use --no_env"
        )
    update = _sound(venv, before)
    held = set(before["extras"]) if update else set()
    found = set() if held & devices.CUDA else devices.extras()
    if found & devices.CUDA and COMPILER in held:
        update, held = False, held - {COMPILER}  # its plugin may be that of the other CUDA
    extras = extras | held | found
    shown = f" with {', '.join(sorted(extras))}" if extras else ""
    _say(f"{'updating' if update else 'making'} .venv{shown} (once; takes minutes)")
    if "compat" in extras and sys.platform == "linux":
        _say("note: torch may bring gigabytes of CUDA libraries; see `compat` in pyproject.toml")

    started = time.monotonic()
    log: list[str] = []
    try:
        if not update:
            _remove(venv)
            venv.mkdir()
            _write(venv, {"complete": False})
            # The real path: the running Python may be that of the .venv just removed.
            _run([os.path.realpath(sys.executable), "-m", "venv", str(venv)], venv, log, lock)
        _write(venv, {"complete": False})
        # Wheels for real GPUs hold the compiler too.
        named = extras - {COMPILER} if extras & devices.CUDA else extras
        project = f".[{','.join(sorted(named))}]" if named else "."
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--no-input"]
        _run([*pip, "--editable", project], venv, log, lock)
        state = {
            "complete": True,
            "root": str(venv.parent),
            "python": os.path.realpath(venv / "bin" / "python"),
            "pyproject": _pyproject_hash(venv.parent),
            "extras": sorted(extras),
            "devices": sorted(devices.seen()),
        }
        _write(venv, state)
    except BaseException:
        # pip downloads and builds everything before it changes anything.
        if update and not any(line.startswith("Installing collected") for line in log):
            _write(venv, before)
        else:
            _remove(venv)
        raise
    _say(f"made .venv in {time.monotonic() - started:.0f} s")


def _run(command: list[str], venv: Path, log: list[str], lock: int) -> None:
    """Runs a command to its end, its output into `log`; takes it down when interrupted."""
    process = subprocess.Popen(
        command,
        cwd=venv.parent,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")},
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
        raise InstallError(f"cannot make .venv:\n{_reason(log)}")


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


def _read(venv: Path) -> dict[str, Any]:
    try:
        return json.loads((venv / STATE).read_text())
    except FileNotFoundError:
        return {}


def _write(venv: Path, state: dict[str, Any]) -> None:
    part = venv / f"{STATE}.part"
    part.write_text(json.dumps(state, indent=1))
    part.replace(venv / STATE)


def _remove(venv: Path) -> None:
    """Removes the environment so that at no instant a part of it stands under its name."""
    aside = venv.with_name(".venv.removed")
    with _termination_waits():
        shutil.rmtree(aside, ignore_errors=True)
        if venv.exists():
            venv.replace(aside)
            shutil.rmtree(aside, ignore_errors=True)


def _pyproject_hash(root: Path) -> str:
    return hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest()


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[int]:
    with open(root / ".venv.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another launch is making .venv; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


@contextlib.contextmanager
def _termination_raises() -> Iterator[None]:
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
        if old is not signal.SIG_IGN:  # nohup's wish stands
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _say(text: str) -> None:
    print(f"launch/local: {text}", file=sys.stderr, flush=True)


def _show_progress(line: str) -> None:
    """Shows the last line of output in place on a terminal, and nothing in a log."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
