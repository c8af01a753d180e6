"""A checkout to launch from, on a machine whose cluster tools are fakes that record their calls."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.several import ROOT

# What the launchers and their templates use of a machine; its own cluster tools stay out of reach.
TOOLS = """bash env readlink dirname basename git tar gzip find rm mkdir hostname tail grep
setsid nohup cat kill sleep mountpoint cp mv sh""".split()

# Arguments may hold anything but these two separators.
FAKE = """#!/usr/bin/env bash
tool="$(basename "$0")"
{ printf '%s\\037' "$tool" "$@"; printf '\\036'; } >> "$FAKES/calls"
if [ -f "$FAKES/$tool" ]; then . "$FAKES/$tool"; fi
"""

# Prints what it was given; the experiment of the scratch checkout.
HELLO = '''"""Says what it was given."""
import json, os, pathlib, sys, time

if [a for a in sys.argv if a.startswith("--check=")]:
    with open(os.path.join(os.environ["FAKES"], "checked"), "a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\\\\n")
    if "--killed" in sys.argv:
        os.kill(os.getpid(), 9)
    sys.exit("hello: --wrong goes with nothing" if "--wrong" in sys.argv else 0)
folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--run_dir=")).partition("=")[2])
folder.mkdir(parents=True, exist_ok=True)
with open(folder / "results.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\\\n")
print("hello from", os.environ.get("SLURM_PROCID", "0"), flush=True)
if "--platform" in sys.argv:
    print("on", os.environ.get("JAX_PLATFORMS", "any"), flush=True)
sys.exit(next((int(a.partition("=")[2]) for a in sys.argv if a.startswith("--status=")), 0))
'''.replace("\\\\n", "\\n")

# Flags that a shell, YAML or Kubernetes would change, if they were let.
ODD = [
    "--set=a b",
    "--x=$HOME $(id) `id`",
    "--y='\"",
    "--z=a,b=c;d|e&f",
    "--n=\nnew\\line",
    "--é=😀*",
]


class Checkout:
    """Runs the launchers of a checkout at `root`, called from the folder `here`."""

    root: Path
    here: Path
    environment: dict[str, str]

    def start(self, place: str, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.root / "launch" / place, *arguments],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


class Site(Checkout):
    """A scratch checkout and its surroundings."""

    def __init__(self, folder: Path, tools: list[str]):
        self.root, self.home, self.fakes = folder / "a checkout", folder / "home", folder / "fakes"
        self.bin, self.here = folder / "bin", folder / "here"
        for made in (self.home, self.fakes, self.bin, self.here):
            made.mkdir()
        shutil.copytree(
            ROOT / "launch", self.root / "launch", ignore=shutil.ignore_patterns("__pycache__")
        )
        (self.root / "attnlab" / "bench").mkdir(parents=True)
        shutil.copy(ROOT / "attnlab" / "bench" / "targets.toml", self.root / "attnlab" / "bench")
        shutil.copy(ROOT / ".gitignore", self.root)
        (self.root / "pyproject.toml").write_text("[project]\n")
        (self.root / "experiments" / "hello").mkdir(parents=True)
        shutil.copy(ROOT / "experiments" / "__init__.py", self.root / "experiments")
        hello = self.root / "experiments" / "hello"
        (hello / "__init__.py").write_text('"""Says hello."""\n\nSHARED_BY = "processes"\n')
        (hello / "__main__.py").write_text(HELLO)
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        (self.bin / "python3").symlink_to(sys.executable)  # not a version manager's shim
        for tool in tools:
            self.fake(tool)
        self.python = self.root / ".venv" / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        # In place of the Python that has the packages: every check passes, in a tenth of its time.
        self.python.write_text("#!/bin/sh\n")
        self.python.chmod(0o755)
        self.environment = {
            "PATH": str(self.bin),
            "HOME": str(self.home),
            "FAKES": str(self.fakes),
            "ATTNLAB_PYTHON": str(
                Path(sys.executable).resolve()
            ),  # which begins sooner than a venv's
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        self.git("init", "--quiet")
        self.commit()

    def refuses(self, message: str, *arguments: str) -> None:
        """A launcher says so and ends: no tool is called, and nothing is written."""
        status, out, err = self.run(*arguments)
        assert (status, out) == (2, "") and message in err, (status, out, err)
        assert not self.calls() and not list(self.here.iterdir())

    def fake(self, tool: str, does: str = "") -> None:
        """Makes a tool that records its calls and does what a line of bash says."""
        (self.bin / tool).write_text(FAKE)
        (self.bin / tool).chmod(0o755)
        (self.fakes / tool).write_text(does)

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(self.root), *who, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, env=self.environment)
        return done.stdout.decode().strip()

    def checks(self) -> None:
        """Has `hello` itself check its flags before each launch."""
        self.python.unlink()
        self.python.symlink_to(sys.executable)

    def alone(self) -> None:
        """Has `hello` run in one process only, although its sources speak of several."""
        init = self.root / "experiments" / "hello" / "__init__.py"
        init.write_text('"""Says hello."""\n\n# several=True, SLURM_ARRAY_TASK_ID\n')
        self.commit()

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=all")

    def revision(self) -> str:
        return self.git("rev-parse", "--short=12", "HEAD")

    def checked(self) -> list[list[str]]:
        """The flags that the experiment was to check so far."""
        file = self.fakes / "checked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def calls(self) -> list[list[str]]:
        """The calls of the fakes so far, and forgets them."""
        file = self.fakes / "calls"
        text = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return [call.split("\x1f")[:-1] for call in text.split("\x1e")[:-1]]
