"""Makes the repository's `.venv`, which at any time is either complete or marked incomplete.

`.venv/attnlab.json` tells what the folder holds. It is written before anything else, marked
incomplete, and marked complete last; a folder found incomplete (killed, power lost) is made anew. A
`.venv` without the file is somebody else's and is left alone. One lock file lets one launch work at
a time.

Compilers for devices that are not here bring plugins that look for their device whenever JAX
starts, and complain. They live in `.venv/compilers`, an environment that sees the packages of
`.venv` and adds only the compilers, so that commands which do not need them do not load them.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import devices

STATE = "attnlab.json"
CONSTRAINTS = "launch/constraints.txt"  # the versions that the tests ran with
GPU_COMPILER = "gpu-compile"
COMPILERS = {"tpu", GPU_COMPILER}  # extras of pyproject.toml
# Variables that send what is installed, or imported, somewhere else.
REDIRECTING = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")
# What pip or venv said → what to do about it; the first that matches is shown.
REMEDIES = {
    "No space left": "free some disk space and run the same command again",
    "ensurepip": "install Python's venv module (Debian, Ubuntu: apt install python3-venv), or set "
    "ATTNLAB_PYTHON to another Python",
    "No matching distribution": "check that the package index can be reached (PIP_INDEX_URL names "
    "another one) and has this package for this Python; or use --no_env with a Python that has the "
    "packages",
    "": "mend that and run the same command again",
}


class InstallError(Exception):
    """The environment could not be made; the text says why and what to do."""


def ensure(root: Path, extras: Collection[str], *, newest: bool = False) -> Path:
    """Returns the Python of a complete environment with these extras, made first if need be.

    Args:
        root: Folder of the repository.
        extras: Extras of pyproject.toml to install besides the accelerator's. With a compiler for
            a device that is not here, the Python is that of `.venv/compilers`, else of `.venv`.
        newest: Whether packages are the newest rather than those of CONSTRAINTS. An environment
            that has them keeps them.

    Raises:
        InstallError: The environment could not be made. One that was complete before is then as it
            was; any other is gone.
    """
    venv = root / ".venv"
    plain, compilers = set(extras) - COMPILERS, set(extras) & COMPILERS

    def is_made() -> bool:
        made = holds(venv, plain, newest=newest)
        return made and _holds_compilers(venv, _absent(venv, compilers))

    if not is_made():
        try:
            with _lock(root) as lock:
                if not holds(venv, plain, newest=newest):  # another launch may have made it
                    _make(venv, plain, lock, newest)
                if not is_made():
                    _make_compilers(venv, _absent(venv, compilers), lock)
        except OSError as error:
            raise InstallError(
                f"cannot make {venv}: {error}; use a checkout that can be written to, or --no_env "
                "with a Python that has the packages"
            ) from error
    return _python(_compilers(venv) if _absent(venv, compilers) else venv)


def holds(venv: Path, extras: Collection[str], *, newest: bool = False) -> bool:
    """Whether this environment is complete, with these extras, as the project has them now."""
    state = _read(venv)
    return (
        _sound(venv, state)
        and state["requirements"] == _requirements(venv.parent)
        and state["newest"] >= newest
        and set(extras) <= set(state["extras"])
        and devices.find_kinds()
        <= set(state["devices"])  # a home folder may move to a node with a GPU
    )


def _sound(venv: Path, state: dict[str, Any]) -> bool:
    """Whether the environment is complete and still where, and of the Python, it was made for."""
    if not (state.get("complete") and state.get("root") == str(venv.parent)):
        return False
    asked = os.environ.get("ATTNLAB_PYTHON")
    wanted = os.path.realpath(sys.executable) if asked else state["python"]
    python = _python(venv)
    return os.access(python, os.X_OK) and os.path.realpath(python) == state["python"] == wanted


def _make(venv: Path, extras: set[str], lock: int, newest: bool) -> None:
    before = _read(venv)
    if not (venv / STATE).exists() and venv.exists() and any(venv.iterdir()):
        raise InstallError(
            f"{venv} was not made by launch/local; move it away, or activate it and use --no_env"
        )
    update = _sound(venv, before)
    held = set(before["extras"]) if update else set()
    newest = newest or (update and before["newest"])
    if newest:
        versions = ["--upgrade", "--upgrade-strategy=eager"]
    else:
        versions = [f"--constraint={CONSTRAINTS}"]
    extras = extras | held | (set() if held & devices.CUDA else devices.extras())
    if "compat" in extras and sys.platform == "linux":
        say("note: torch may bring gigabytes of CUDA libraries; see `compat` in pyproject.toml")
    project = f".[{','.join(sorted({'all', *extras}))}]"
    python = os.path.realpath(sys.executable)  # it may be in the .venv that is removed
    with _changing(venv, ".venv", extras, update) as log:
        if not update:
            run([python, "-m", "venv", str(venv)], venv.parent, log, lock)
        run([*_pip(venv), *versions, "--editable", project], venv.parent, log, lock)
        state = {
            "root": str(venv.parent),
            "python": os.path.realpath(_python(venv)),
            "requirements": _requirements(venv.parent),
            "newest": newest,
            "devices": sorted(devices.find_kinds()),
        }
        _write(venv, {"complete": True, "extras": sorted(extras), **state})


def _compilers(venv: Path) -> Path:
    return venv / "compilers"


def _absent(venv: Path, compilers: set[str]) -> set[str]:
    """The compilers that the wheels for real devices in `.venv` do not hold already."""
    held = set(_read(venv).get("extras", ()))
    return compilers - held - ({GPU_COMPILER} if held & devices.CUDA else set())


def _holds_compilers(venv: Path, compilers: set[str]) -> bool:
    state = _read(_compilers(venv))
    return not compilers or (
        state.get("complete", False)
        and compilers <= set(state["extras"])
        and state["beside"] == _packages(venv)
        and os.access(_python(_compilers(venv)), os.X_OK)
    )


def _make_compilers(venv: Path, compilers: set[str], lock: int) -> None:
    folder = _compilers(venv)
    before = _read(folder)
    update = before.get("complete", False) and os.access(_python(folder), os.X_OK)
    compilers = compilers | (set(before["extras"]) if update else set())
    packages = _packages(venv)
    constraints = venv / "compilers.txt"  # nothing of `.venv` may be there in two versions
    constraints.write_text("\n".join(packages))
    with open(venv.parent / "pyproject.toml", "rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"]
    wanted = [requirement for extra in sorted(compilers) for requirement in known[extra]]
    with _changing(folder, ".venv/compilers", compilers, update) as log:
        if not update:
            python = os.path.realpath(_python(venv))
            run([python, "-m", "venv", "--without-pip", str(folder)], venv.parent, log, lock)
            # addsitedir also reads the .pth files there, as of editable installs.
            line = f"import site; site.addsitedir({str(_site_packages(venv))!r})\n"
            (_site_packages(folder) / "attnlab_base.pth").write_text(line)
        run([*_pip(folder), f"--constraint={constraints}", *wanted], venv.parent, log, lock)
        _write(folder, {"complete": True, "extras": sorted(compilers), "beside": packages})


@contextlib.contextmanager
def _changing(folder: Path, name: str, extras: set[str], update: bool) -> Iterator[list[str]]:
    """Within `with`, an environment is marked incomplete; gives the list that has pip's output.

    After a failure it is as it was before, or gone.
    """
    shown = f" with {', '.join(sorted(extras))}" if extras else ""
    say(f"{'updating' if update else 'making'} {name}{shown} (once; takes minutes)")
    before, started = _read(folder), time.monotonic()
    log: list[str] = []
    try:
        if not update:
            _remove(folder)
            folder.mkdir()
        _write(folder, {"complete": False})
        yield log
    except BaseException as error:
        # pip downloads and builds everything before it changes anything.
        if update and not any(line.startswith("Installing collected") for line in log):
            _write(folder, before)
        else:
            _remove(folder)
        if isinstance(error, InstallError):
            raise InstallError(f"cannot make {name}:\n{error}") from None
        raise
    say(f"made {name} in {time.monotonic() - started:.0f} s")


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
        for number, patience in ((signal.SIGINT, 5), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(patience)
        raise
    finally:
        _show_progress("")
    if status:
        last = "\n".join(f"    {line[:300]}" for line in log[-15:] if line)
        remedy = next(remedy for sign, remedy in REMEDIES.items() if sign in last)
        raise InstallError(f"{last}\nWhat to do: {remedy}.")


def _show_progress(line: str) -> None:
    """Shows the last line of output in place on a terminal, and nothing in a log."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Tells the user, apart from what the experiment prints."""
    print(f"launch/local: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[int]:
    """Within `with`, no other launch installs; gives the descriptor of the lock file."""
    with open(root / ".venv.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another launch is making .venv; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _remove(folder: Path) -> None:
    """Removes an environment, of which at no instant a part stands under its name."""
    aside = folder.with_name(f"{folder.name}.removed")
    shutil.rmtree(aside, ignore_errors=True)  # of a removal that was interrupted
    if folder.exists():
        folder.replace(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


def _pip(venv: Path) -> list[str]:
    return [str(_python(venv)), "-m", "pip", "install", "--no-input"]


def _site_packages(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def _packages(venv: Path) -> list[str]:
    """The installed packages as pip's requirements, from names of folders alone, which is quick."""
    folders = _site_packages(venv).glob("*.dist-info")
    names = [folder.name.removesuffix(".dist-info") for folder in folders]
    return sorted("==".join(name.rsplit("-", 1)) for name in names)


def _read(venv: Path) -> dict[str, Any]:
    try:
        state = json.loads((venv / STATE).read_text())
    except FileNotFoundError:
        return {}
    except ValueError:  # the power went while it was written
        return {"complete": False}
    return state if isinstance(state, dict) else {"complete": False}


def _write(venv: Path, state: dict[str, Any]) -> None:
    part = venv / f"{STATE}.part"
    part.write_text(json.dumps(state, indent=1))
    part.replace(venv / STATE)


def _requirements(root: Path) -> str:
    """A hash of all that says what is installed."""
    files = (root / "pyproject.toml", root / CONSTRAINTS)
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
