"""Runs an experiment, or the tests, on this machine.

    launch/local [--no_env] [--newest] [--extra=NAMES] NAME FLAGS…

The first call makes `.venv` in the repository and installs the project into it, with the extra for
the accelerator that it finds, in the versions of launch/constraints.txt; later calls start at once.
The compilers that a --target needs (extras tpu and gpu-compile) are installed into
`.venv/compilers`, which other calls do not load. Everything after NAME is for the experiment
(`launch/local NAME --help`) or, with the NAME `test`, for pytest, whose paths start at the
repository: `launch/local test` is the daily loop, `launch/local test --all` is every test,
`launch/local test --device` checks the kernels on the accelerator that is there, `launch/local test
--mutants [FILE]` says which faults of a line the tests see (tests/mutants.py). `launch/local docs`
builds the pages of docs/.

    --no_env       use the Python that is active, as it is; install nothing
    --newest       install the newest versions of all packages, and keep to them in this `.venv`
    --extra=NAMES  also install these extras of pyproject.toml, with commas between them
    --help         this text

ATTNLAB_PYTHON names the Python to use; without it the first of python3, python3.13, python3.12 and
python3.11 that is at least 3.11.
"""

import argparse
import importlib.util
import json
import os
import re
import signal
import sys
import tomllib
from pathlib import Path

import devices
import environment
from environment import InstallError
from names import ROOT, docstring, experiments, listing, take

TEST, ALL = "test", "--all"
DOCS = "docs"
PAGES = ROOT / "docs" / "_build" / "html"  # what is executed is kept beside it
DEVICE = "--device"  # the tests that are for an accelerator
MUTANTS = "--mutants"  # the tests of the tests
NEEDS = {TEST: {"test"}, DOCS: {"docs"}, "compare_peers": {"compat"}}  # extras, by name
INDEXES = {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"}
COMPILER_OF = {"tpu": "tpu", "cuda": environment.GPU_COMPILER}  # extra by kind of --target


def main(arguments: list[str]) -> None:
    """Parses the command line, prepares the environment and becomes the experiment."""
    split = next((i for i, a in enumerate(arguments) if not a.startswith("-")), len(arguments))
    options, rest = _parse(arguments[:split]), arguments[split:]
    if options.help:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
        print(_help())
        return
    if not rest:
        sys.exit(f"{_help()}\n\nlaunch/local: no NAME was given")
    name, flags = rest[0], rest[1:]
    if name not in {TEST, DOCS} and name not in experiments():
        sys.exit(f"launch/local: unknown experiment {name!r}; the names are:\n{_names()}")

    helps = name not in {TEST, DOCS} and {"--help", "-help", "-h"} & {*flags}
    if options.no_env:
        python = Path(sys.executable)
        parallel = importlib.util.find_spec("xdist") is not None
    elif helps and not environment.holds(ROOT / ".venv", ()):
        made = f"once `launch/local {name} --check=words` has made .venv"
        print(f"{docstring(name)}\n\nThe flags are listed {made}.")
        return
    else:
        extras = set() if helps else _extras(name, flags, options.extra)
        python, parallel = _prepare(extras, options.newest), True
        if not (devices.find_kinds() or devices.extras()):
            # Wheels for a device, or for its compiler, look for it and complain.
            os.environ.setdefault("JAX_PLATFORMS", "cpu")

    # The experiment runs where the user is, so that --input=PATH means what it says there; -P and
    # PYTHONPATH make `experiments` this checkout's, not one of that folder's.
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if name == TEST:
        os.chdir(ROOT)
        # Compiling is most of the time and mostly one thread; a worker takes 1–2 GiB. A file's
        # tests share fixtures that take up to a minute.
        workers = min(4, os.cpu_count() or 1)
        split_up = ["-n", str(workers), "--dist=loadfile"] if parallel and workers > 1 else []
        daily = [] if ALL in flags else ["-m", "not slow"]
        command = ["pytest", *split_up, *daily, *(flag for flag in flags if flag != ALL)]
        if DEVICE in flags:  # which one process has alone
            command = ["pytest", "tests/device", *(flag for flag in flags if flag != DEVICE)]
        if MUTANTS in flags:
            command = ["tests.mutants", *(flag for flag in flags if flag != MUTANTS)]
    elif name == DOCS:
        # -W: a link that leads nowhere, or a cell that fails, ends with status 1.
        places = [str(ROOT / "docs"), str(PAGES)]
        command = ["sphinx", "-W", "--keep-going", "--jobs=auto", *places, *flags]
    else:
        command = [f"experiments.{name}", *flags]
    os.execv(python, [str(python), "-P", "-m", *command])


def _parse(arguments: list[str]) -> argparse.Namespace:
    usage = "launch/local [--no_env] [--newest] [--extra=NAMES] NAME FLAGS…"
    parser = argparse.ArgumentParser("launch/local", usage, add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--no_env", action="store_true")
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("--extra", action="append", default=[])
    options = parser.parse_args(arguments)
    options.extra = [name for names in options.extra for name in names.split(",")]
    if options.no_env and (options.extra or options.newest):
        other = "--extra" if options.extra else "--newest"
        parser.error(f"--no_env installs nothing, got {other} as well; drop one of them")
    return options


def _known_extras(names: list[str]) -> set[str]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        known = tomllib.load(file)["project"].get("optional-dependencies", {})
    unknown = sorted(set(names) - known.keys())
    if unknown:
        sys.exit(f"launch/local: unknown extra {unknown[0]!r}; the extras are: {', '.join(known)}")
    if len(devices.CUDA & set(names)) > 1:
        sys.exit("launch/local: the extras cuda12 and cuda13 exclude each other; give one")
    return set(names)


def _extras(name: str, flags: list[str], named: list[str]) -> set[str]:
    """What a run needs; CUDA's libraries, on a machine without a GPU, only where they are named."""
    asked, needs = _known_extras(named), NEEDS.get(name, set())
    chosen = devices.find_kinds() or INDEXES & os.environ.keys() or sys.platform != "linux"
    if "compat" in needs - asked and not (chosen or environment.holds(ROOT / ".venv", needs)):
        sys.exit(
            f"launch/local: {name} needs torch, which comes from PyPI with 4.6 GB of CUDA's "
            "libraries, and there is no GPU here; for the CPU build set PIP_EXTRA_INDEX_URL="
            f"https://download.pytorch.org/whl/cpu, else: launch/local --extra=compat {name}"
        )
    return asked | needs | _compilers(flags)


def _compilers(flags: list[str]) -> set[str]:
    """The extras for the devices of --target, also of a resumed run; the experiment checks them."""
    flags = list(flags)
    wanted = (take(flags, "target") or "").split(",") + _targets_of(take(flags, "resume"))
    if not any(wanted):
        return set()
    with open(ROOT / "attnlab" / "bench" / "targets.toml", "rb") as file:
        known = tomllib.load(file)
    return {
        COMPILER_OF[device["kind"]]
        for name, device in known.items()
        if any(re.fullmatch(rf"{name}([:-].*)?", target) for target in wanted)
    }


def _targets_of(folder: str | None) -> list[str]:
    """The targets of an earlier run, none where there is no such folder."""
    try:
        return list(json.loads((Path(folder or "") / "settings.json").read_text())["target"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _prepare(extras: set[str], newest: bool) -> Path:
    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):  # `except` and `finally` run, as on Ctrl-C
        if signal.getsignal(number) is not signal.SIG_IGN:  # what nohup ignores stays ignored
            signal.signal(number, leave)
    try:
        return environment.ensure(ROOT, extras, newest=newest)
    except InstallError as error:
        sys.exit(f"launch/local: {error}")
    except KeyboardInterrupt:
        print("\nlaunch/local: interrupted; no half-made environment is left", file=sys.stderr)
        sys.exit(130)


def _names() -> str:
    tests = "The tests of the daily loop, or --all; pytest's flags."
    pages = "The pages of docs/, built into docs/_build/html; sphinx-build's flags."
    return listing(experiments() | {TEST: tests, DOCS: pages})


def _help() -> str:
    return f"{(__doc__ or '').strip()}\n\nThe names:\n\n{_names()}"


if __name__ == "__main__":
    main(sys.argv[1:])
