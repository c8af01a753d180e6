"""launch/local, on a scratch repository that carries its build backend: no network needed."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.scratch import HELLO, PYPROJECT, Scratch
from tests.several import ROOT

PACKAGES = """
import importlib.metadata as metadata, json, sys
ours = ("scratch", "gpu-compiler", "tpu-compiler", "shared")
found = {d.name + " " + d.version for d in metadata.distributions() if d.name in ours}
print(json.dumps([sys.prefix, sorted(found)]))
"""


@pytest.fixture
def scratch(tmp_path) -> Scratch:
    return Scratch(tmp_path)


def test_help_lists_experiments_with_their_first_lines(scratch):
    status, out, _ = scratch.run("--help")
    assert status == 0
    names = [line.split(maxsplit=1) for line in out.split("The names:")[1].split("\n") if line]
    assert names[0] == ["hello", "Says what it was given."]
    assert [name for name, _ in names] == ["hello", "test", "docs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no NAME was given"),
        (["helo"], "unknown experiment 'helo'; the names are:\n    hello              Says what"),
        (["--no-env", "hello"], "unrecognized arguments: --no-env"),
        (
            ["--extra=gpu", "hello"],
            "unknown extra 'gpu'; the extras are: compat, test, tpu, gpu-compile, cuda12, cuda13",
        ),
        (["--no_env", "--extra=test", "hello"], "drop one of them"),
        (["--extra=", "hello"], "unknown extra ''"),
        (
            ["--extra", "test", "hello"],
            "usage: launch/local [--no_env] [--newest] [--extra=NAMES] NAME FLAGS…",
        ),
        (["--no_env", "--newest", "hello"], "--no_env installs nothing, got --newest as well"),
        (["--extra=cuda12,cuda13", "hello"], "cuda12 and cuda13 exclude each other; give one"),
    ],
)
def test_bad_command_lines_end_at_once(scratch, arguments, message):
    status, out, err = scratch.run(*arguments)
    assert status != 0
    assert message in err
    assert out == "" and scratch.leftovers() == []


def test_a_link_to_the_launcher_is_the_launcher(scratch, tmp_path):
    (tmp_path / "one").symlink_to(scratch.root / "launch" / "local")
    (scratch.here / "two").symlink_to("../one")
    command = [scratch.here / "two", "--help"]
    done = subprocess.run(command, env=scratch.environment, capture_output=True, text=True)
    assert "hello              Says what it was given." in done.stdout, done.stderr


def test_a_reader_of_the_help_may_leave(scratch):
    with scratch.start("--help") as process:
        process.stdout.close()
        assert process.stderr.read() == ""


def test_a_folder_that_is_gone_is_the_reason(scratch):
    gone = scratch.here / "gone"
    gone.mkdir()
    command = f'cd "{gone}"; rmdir "{gone}"; exec "{scratch.root}/launch/local" --help'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1 and "the folder you are in is gone" in done.stderr
    assert "needs Python" not in done.stderr


def test_needs_a_new_enough_python(scratch):
    scratch.environment["ATTNLAB_PYTHON"] = "false"
    status, _, err = scratch.run("--no_env", "hello")
    assert status != 0
    assert "needs Python >= 3.11" in err and len(err.splitlines()) == 1


def test_passes_over_a_python_that_is_too_old(scratch, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in (("python3", "exit 1"), ("python3.13", f'exec "{sys.executable}" "$@"')):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    del scratch.environment["ATTNLAB_PYTHON"]
    scratch.environment["PATH"] = f"{programs}:/usr/bin:/bin"
    status, out, _ = scratch.run("--no_env", "hello")
    assert (status, json.loads(out)[0]) == (0, sys.prefix)


def test_no_env_runs_in_the_active_python_where_the_user_is(scratch):
    (scratch.here / "experiments").mkdir()
    (scratch.here / "experiments" / "__init__.py").write_text("raise ImportError('not mine')")
    status, out, _ = scratch.run("--no_env", "hello", "--input=a b", "--fail")
    assert status == 3
    assert json.loads(out) == [sys.prefix, str(scratch.here), ["--input=a b", "--fail"]]
    assert scratch.leftovers() == []


@pytest.mark.slow
def test_no_env_test_runs_pytest_in_the_repository(scratch):
    slow = "@pytest.mark.slow\ndef test_slow():\n    pass\n"
    (scratch.root / "test_it.py").write_text(f"import pytest\ndef test_it():\n    pass\n{slow}")
    device = scratch.root / "tests" / "device"
    device.mkdir(parents=True)
    (device / "test_kernel.py").write_text("def test_kernel():\n    pass\n")
    for flags, run in (
        ((), {"test_it"}),
        (("--all",), {"test_it", "test_slow"}),
        (("-m", "slow"), {"test_slow"}),
        (("--device",), {"test_kernel"}),
    ):
        files = () if "--device" in flags else ("test_it.py",)
        status, out, err = scratch.run("--no_env", "test", "-v", *flags, *files)
        assert status == 0, err
        assert set(re.findall(r"(?<=::)\w+", out)) == run


def test_mutants_are_run_in_the_repository(scratch):
    (scratch.root / "tests").mkdir()
    (scratch.root / "tests" / "__init__.py").touch()
    (scratch.root / "tests" / "mutants.py").write_text(
        "import os, sys; print(os.getcwd(), *sys.argv[1:])"
    )
    status, out, err = scratch.run("--no_env", "test", "--mutants", "attnlab/ops")
    assert (status, out) == (0, f"{scratch.root} attnlab/ops\n"), err


def test_pages_are_built_in_the_folder_of_the_pages(scratch):
    (scratch.root / "sphinx.py").write_text("import sys; print(*sys.argv[-3:]); sys.exit(1)")
    pages = scratch.root / "docs"
    status, out, _ = scratch.run("--no_env", "docs", "-q")
    assert (status, out) == (1, f"{pages} {pages}/_build/html -q\n")


@pytest.mark.slow
def test_makes_the_environment_once_and_updates_it_when_it_must(scratch):
    status, out, err = scratch.run("hello")
    assert status == 0, err
    assert json.loads(out)[0] == str(scratch.venv)
    assert "making .venv" in err
    first = scratch.builds()

    assert scratch.run("hello")[2] == ""
    assert scratch.builds() == first

    assert "updating .venv with compat" in scratch.run("--extra=compat", "hello")[2]
    assert scratch.run("--extra=compat", "hello")[2] == ""

    with open(scratch.root / "pyproject.toml", "a") as file:
        file.write("# changed\n")
    # The backend fails before pip has changed anything, so what was complete is kept…
    (scratch.root / "break").touch()
    status, out, err = scratch.run("hello")
    assert (status, out) == (1, "")
    assert "the backend broke" in err and "free some disk space" in err
    kept = json.loads((scratch.venv / "attnlab.json").read_text())
    assert kept["complete"] and "compat" in kept["extras"]
    # …and serves again once the file is as it was.
    (scratch.root / "pyproject.toml").write_text(PYPROJECT)
    assert scratch.run("hello")[2] == ""

    moved = scratch.root.with_name("moved")
    scratch.root.rename(moved)
    scratch.root, scratch.venv = moved, moved / ".venv"
    (moved / "break").unlink()
    assert "making .venv" in scratch.run("hello")[2]


@pytest.mark.slow
def test_a_target_brings_its_compiler_to_no_other_command(scratch):
    bench = scratch.root / "attnlab" / "bench"
    bench.mkdir(parents=True)
    shutil.copy(ROOT / "attnlab" / "bench" / "targets.toml", bench)
    scratch.add("packages", PACKAGES)
    (scratch.here / "earlier").mkdir()
    (scratch.here / "earlier" / "settings.json").write_text('{"target": ["v5e"]}')
    compilers = str(scratch.venv / "compilers")

    status, out, err = scratch.run("--extra=tpu", "packages")
    assert status == 1 and "making .venv (once" in err, err
    assert "cannot make .venv/compilers" in err and "package index can be reached" in err
    assert not (scratch.venv / "compilers").exists()

    scratch.offer("tpu-compiler", requires="Requires-Dist: shared\n")
    scratch.offer("gpu-compiler")
    scratch.offer("shared")
    status, out, err = scratch.run("packages", "--target=v5e:4x4,nonsense")
    assert status == 0 and "making .venv/compilers with tpu (once" in err, err
    assert "making .venv (once" not in err
    assert json.loads(out) == [compilers, ["scratch 0", "shared 1", "tpu-compiler 1"]]
    for flags in (["--target", "v5e-8"], ["--resume=earlier"], ["-target=v4"]):
        assert scratch.run("packages", *flags) == (0, out, "")
    plain = [str(scratch.venv), ["scratch 0"]]
    for flags in ([], ["--target"], ["--target=nonsense"], ["--resume=elsewhere"]):
        status, out, err = scratch.run("packages", *flags)
        assert (status, json.loads(out), err) == (0, plain, "")

    # What `.venv` holds is not installed again, and decides the versions of what is added to it.
    scratch.offer("shared", "2")
    (scratch.root / "requires").write_text("Requires-Dist: shared; extra == 'compat'\n")
    status, out, err = scratch.run("--extra=compat", "packages", "--target=a100-80,v4")
    assert "updating .venv with compat (once" in err, err
    assert "updating .venv/compilers with gpu-compile, tpu (once" in err
    everything = ["gpu-compiler 1", "scratch 0", "shared 2", "tpu-compiler 1"]
    assert json.loads(out) == [compilers, everything]
    assert scratch.run("--extra=tpu", "--extra=gpu-compile", "packages") == (0, out, "")
    assert scratch.run("--extra=tpu,gpu-compile", "packages") == (0, out, "")
    assert json.loads(scratch.run("packages")[1]) == [str(scratch.venv), ["scratch 0", "shared 2"]]


@pytest.mark.slow
def test_versions_are_those_that_were_tested_or_the_newest(scratch):
    constraints = scratch.root / "launch" / "constraints.txt"
    constraints.write_text("shared==1\n")
    (scratch.root / "requires").write_text("Requires-Dist: shared\n")
    for version in ("1", "2", "3"):
        scratch.offer("shared", version)
    scratch.add("packages", PACKAGES)

    def version(*options: str) -> tuple[str, bool]:
        status, out, err = scratch.run(*options, "packages")
        assert status == 0, err
        return json.loads(out)[1][-1], "(once" in err

    assert version() == ("shared 1", True)
    assert version() == ("shared 1", False)
    constraints.write_text("shared==2\n")
    assert version() == ("shared 2", True)
    assert version("--newest") == ("shared 3", True)
    assert version("--newest") == version() == ("shared 3", False)
    assert version("--extra=compat") == ("shared 3", True)


@pytest.mark.slow
def test_a_failed_install_says_why_and_leaves_nothing(scratch):
    (scratch.root / "break").touch()
    status, out, err = scratch.run("hello")
    assert (status, out) == (1, "")
    assert "the backend broke" in err and "What to do: free some disk space" in err
    assert scratch.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_install_leaves_nothing(scratch, number, status):
    (scratch.root / "wait").touch()
    process = scratch.start("hello")
    scratch.wait_for_build()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == status
    assert scratch.leftovers() == []


@pytest.mark.slow
def test_a_killed_install_is_made_anew_after_its_pip_has_ended(scratch):
    (scratch.root / "wait").touch()
    killed = scratch.start("hello")
    scratch.wait_for_build()
    killed.kill()
    killed.communicate(timeout=30)
    assert scratch.leftovers() == [".venv"]
    following = scratch.start("hello")
    assert "waiting" in following.stderr.readline()
    (scratch.root / "wait").unlink()
    out, err = following.communicate(timeout=120)
    assert following.returncode == 0, err
    assert json.loads(out)[0] == str(scratch.venv)


@pytest.mark.slow
def test_two_launches_at_once_make_one_environment(scratch):
    (scratch.root / "wait").touch()
    first = scratch.start("hello")
    scratch.wait_for_build()
    second = scratch.start("hello")
    assert "waiting" in second.stderr.readline()
    builds = scratch.builds()
    (scratch.root / "wait").unlink()
    for process in (first, second):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert json.loads(out)[0] == str(scratch.venv)
    assert scratch.builds() == builds


def test_help_installs_nothing(scratch):
    status, out, err = scratch.run("hello", "--help")
    assert (status, err) == (0, "") and not scratch.leftovers() and not scratch.builds()
    assert out.startswith("Says what it was given.\n\nMore that the list does not show.\n")
    assert "once `launch/local hello --check=words` has made .venv" in out


@pytest.mark.slow
def test_help_of_what_needs_more_is_that_of_the_environment_as_it_is(scratch):
    scratch.add("compare_peers", HELLO, HELLO)
    assert scratch.run("hello")[0] == 0
    builds = scratch.builds()
    status, out, err = scratch.run("compare_peers", "--help")
    assert (status, err, scratch.builds()) == (0, "", builds)
    assert json.loads(out)[::2] == [str(scratch.venv), ["--help"]]


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="there is a GPU here")
def test_a_machine_without_a_gpu_gets_no_gigabytes_of_cuda_unasked(scratch):
    scratch.add("compare_peers", HELLO, HELLO)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        scratch.environment.pop(name, None)
    status, out, err = scratch.run("compare_peers")
    assert (status, out) == (1, "") and not scratch.leftovers()
    assert "comes from PyPI with 4.6 GB of CUDA's libraries, and there is no GPU here" in err
    assert "launch/local --extra=compat compare_peers" in err


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--extra=compat"], []])
def test_gigabytes_that_are_asked_for_come(scratch, options):
    scratch.add("compare_peers", HELLO, HELLO)
    scratch.environment["PIP_EXTRA_INDEX_URL"] = "http://127.0.0.1:9"  # PIP_NO_INDEX asks none
    if options:
        del scratch.environment["PIP_EXTRA_INDEX_URL"]
    status, _, err = scratch.run(*options, "compare_peers")
    assert status == 0 and "making .venv with compat" in err, err


def test_somebody_elses_environment_is_left_alone(scratch):
    scratch.venv.mkdir()
    (scratch.venv / "mine").touch()
    status, _, err = scratch.run("hello")
    assert status == 1
    assert "was not made by launch/local" in err
    assert (scratch.venv / "mine").exists()
