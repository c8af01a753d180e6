"""What launch/local would install for the devices that it sees; nothing is installed."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.launch.scratch import PYPROJECT
from tests.several import ROOT


@pytest.fixture
def devices(monkeypatch):
    spec = importlib.util.spec_from_file_location("devices", ROOT / "launch" / "devices.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "find_kinds", set)
    return module


@pytest.fixture
def environment(devices, monkeypatch):
    monkeypatch.setitem(sys.modules, "devices", devices)
    monkeypatch.syspath_prepend(ROOT / "launch")
    spec = importlib.util.spec_from_file_location("environment", ROOT / "launch" / "environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installs(environment, monkeypatch, tmp_path) -> list[str]:
    """What pip would be asked for, in order; nothing is installed."""
    asked = []

    def run(command, *_):
        folder = Path(command[-1])
        if "venv" in command:
            (folder / "bin").mkdir()
            (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
            (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
        else:
            wanted = command[command.index("--no-input") + 1 :]
            asked.append(",".join(word for word in wanted if not word.startswith("--")))

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.delenv("ATTNLAB_PYTHON", raising=False)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "constraints.txt").touch()
    return asked


@pytest.mark.parametrize(
    ("found", "installed"),
    [
        (set(), [".[all]", "gpu-compiler,tpu-compiler"]),
        ({"cuda13"}, [".[all,cuda13]", "tpu-compiler"]),  # whose plugin is the compiler
        ({"tpu"}, [".[all,tpu]", "gpu-compiler"]),
        ({"cuda12", "tpu"}, [".[all,cuda12,tpu]"]),
    ],
)
def test_wheels_for_real_devices_are_their_compilers(
    environment, installs, devices, monkeypatch, tmp_path, found, installed
):
    monkeypatch.setattr(devices, "extras", lambda: found)
    monkeypatch.setattr(devices, "find_kinds", lambda: {"accel"} if "tpu" in found else set())
    for _ in range(2):  # the second time nothing is left to do
        python = environment.ensure(tmp_path, {"gpu-compile", "tpu"})
        assert installs == installed
    assert python.parts.count("compilers") == len(installed) - 1


@pytest.mark.parametrize(
    ("state", "again"),
    [
        (lambda made: made, []),
        (lambda made: {"complete": True}, [".[all]"]),
        (lambda made: [], [".[all]"]),
        (lambda made: None, [".[all]"]),  # the power went while it was written
    ],
)
def test_what_is_not_known_to_be_right_is_made_anew(environment, installs, tmp_path, state, again):
    environment.ensure(tmp_path, {"compat"})
    assert installs == [".[all,compat]"]
    file = tmp_path / ".venv" / "attnlab.json"
    changed = state(json.loads(file.read_text()))
    file.write_text("" if changed is None else json.dumps(changed))
    for _ in range(2):
        environment.ensure(tmp_path, set())
        assert installs[1:] == again


@pytest.mark.parametrize(
    ("cards", "extras"),
    [
        ("580.65.06, 9.0", {"cuda13"}),
        ("580.65.06, 9.0\n580.65.06, 7.0", {"cuda12"}),  # CUDA 13 dropped Volta
        ("570.124.06, 9.0", {"cuda12"}),
        ("470.256.02, 8.0", set()),
        ("No devices were found", set()),
    ],
)
def test_cuda_is_chosen_by_driver_and_card(devices, monkeypatch, tmp_path, cards, extras):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{cards}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert devices.extras() == extras


def test_accelerators_without_their_tool(devices, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    for files, extras in (({"nvidia"}, {"cuda12"}), ({"vfio"}, {"tpu"}), (set(), set())):
        monkeypatch.setattr(devices, "find_kinds", lambda files=files: files)
        assert devices.extras() == extras


def test_beside_the_clone_the_package_is_the_clones(tmp_path):
    """Where an import finds the clone's own folder first, of the same name."""
    pytest.importorskip("setuptools", reason="pip would download what builds the project")
    clone = tmp_path / "attnlab"
    (clone / "attnlab").mkdir(parents=True)
    (clone / "attnlab" / "__init__.py").touch()
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, clone)
    build = f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "packages")
    found = "import site; site.addsitedir('packages'); import attnlab; print(attnlab.__file__)"
    command = [sys.executable, "-S", "-c", found]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    printed = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert printed == f"{clone / 'attnlab' / '__init__.py'}\n"
