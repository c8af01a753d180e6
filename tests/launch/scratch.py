"""A repository with its own build backend, for launch/local to make an environment of."""

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from tests.launch.site import Checkout
from tests.several import ROOT

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "scratch"
version = "0"
[project.optional-dependencies]
compat = []
test = []
tpu = ["tpu-compiler"]
gpu-compile = ["gpu-compiler"]
cuda12 = []
cuda13 = []
"""

BACKEND = """
import pathlib, time, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with open("builds", "a") as file:
        file.write("built\\n")
    if pathlib.Path("break").exists():
        raise SystemExit("the backend broke: No space left on device")
    end = time.monotonic() + 60  # a failed test leaves nothing that runs on
    while pathlib.Path("wait").exists() and time.monotonic() < end:
        time.sleep(0.1)
    requires = pathlib.Path("requires").read_text() if pathlib.Path("requires").exists() else ""
    name = "scratch-0-py3-none-any.whl"
    files = {
        "METADATA": "Metadata-Version: 2.1\\nName: scratch\\nVersion: 0\\n"
        "Provides-Extra: compat\\nProvides-Extra: test\\n" + requires,
        "WHEEL": "Wheel-Version: 1.0\\nGenerator: scratch\\nRoot-Is-Purelib: true\\n"
        "Tag: py3-none-any\\n",
    }
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w") as wheel:
        for file, text in files.items():
            wheel.writestr(f"scratch-0.dist-info/{file}", text)
        record = [f"scratch-0.dist-info/{file},,\\n" for file in [*files, "RECORD"]]
        wheel.writestr("scratch-0.dist-info/RECORD", "".join(record))
    return name
"""

HELLO = '''"""Says what it was given.

More that the list does not show.
"""
import json, os, sys

if __name__ == "__main__":
    print(json.dumps([sys.prefix, os.getcwd(), sys.argv[1:]]))
    sys.exit(3 if "--fail" in sys.argv else 0)
'''


class Scratch(Checkout):
    """A repository to launch from, and somewhere else to stand."""

    def __init__(self, folder: Path):
        self.root = folder / "a repository"
        self.venv = self.root / ".venv"
        self.here = folder / "else where"
        self.wheels = folder / "wheels"
        (self.root / "experiments").mkdir(parents=True)
        self.here.mkdir()
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "launch", self.root / "launch", ignore=ignore)
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        (self.root / "backend.py").write_text(BACKEND)
        # A package proper: a namespace would lose to any `experiments` later on the path.
        (self.root / "experiments" / "__init__.py").touch()
        self.add("hello", HELLO, HELLO)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
            "PIP_NO_INDEX": "1",
            "PIP_TARGET": str(folder / "stray"),  # a user's habits must not count
            "PIP_USER": "1",
            "PIP_FIND_LINKS": str(folder / "wheels"),
            "ATTNLAB_PYTHON": sys.executable,
        }

    def add(self, name: str, main: str, init: str = "") -> None:
        """Adds an experiment."""
        folder = self.root / "experiments" / name
        folder.mkdir()
        (folder / "__init__.py").write_text(init)
        (folder / "__main__.py").write_text(main)

    def offer(self, name: str, version: str = "1", requires: str = "") -> None:
        """Puts an empty wheel where pip looks for packages."""
        self.wheels.mkdir(exist_ok=True)
        info = f"{name.replace('-', '_')}-{version}"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        files = {"METADATA": metadata + requires, "WHEEL": wheel, "RECORD": ""}
        with zipfile.ZipFile(self.wheels / f"{info}-py3-none-any.whl", "w") as archive:
            for file, text in files.items():
                archive.writestr(f"{info}.dist-info/{file}", text)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return super().start("local", *arguments)

    def builds(self) -> int:
        file = self.root / "builds"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_for_build(self) -> None:
        end = time.monotonic() + 60
        while not self.builds():
            assert time.monotonic() < end, "pip never came to build the project"
            time.sleep(0.05)

    def leftovers(self) -> list[str]:
        return [path.name for path in self.root.glob(".venv*") if path.name != ".venv.lock"]
