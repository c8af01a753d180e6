"""Where a result came from, in a repository made for it."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from attnlab.runs import provenance


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A repository with these sources and a result that is kept among them."""
    for name in ("attnlab/runs", "experiments/results/cpu", "tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "attnlab"\nversion = "1.2.3"\n')
    (tmp_path / "experiments" / "results" / "cpu" / "report.md").write_text("old")
    shutil.copy(provenance.__file__, tmp_path / "attnlab" / "records")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    author = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    git(tmp_path, *author, "commit", "--quiet", "--message=all")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)
    return done.stdout.decode().strip()


def of(checkout: Path):
    path = checkout / "attnlab" / "records" / "provenance.py"
    spec = importlib.util.spec_from_file_location("provenance_there", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("experiments/results/cpu/report.md", False),
        ("experiments/results/cpu/new/results.jsonl", False),
        ("results/translate-1/report.md", False),
        ("README.md", False),
        ("tests/test_new.py", False),
        ("attnlab/runs/provenance.py", True),
        ("attnlab/new.py", True),
        ("experiments/new.py", True),
    ],
)
def test_a_revision_is_changed_where_the_sources_are(checkout, file, counts):
    path = checkout / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + "\n")
    revision = git(checkout, "rev-parse", "--short=12", "HEAD")
    assert of(checkout).revision() == revision + "+changes" * counts


def test_sources_in_nobodys_or_somebody_elses_repository_have_no_revision(checkout):
    git(checkout, "rm", "--quiet", "--cached", "attnlab/runs/provenance.py")
    assert of(checkout).revision() == ""
    shutil.rmtree(checkout / ".git")
    assert of(checkout).revision() == ""


def test_the_version_of_a_checkout_is_its_own_whatever_is_installed(checkout):
    there = of(checkout)
    assert there.version("attnlab") == "1.2.3"
    assert there.version("jax") == provenance.version("jax") != "not installed"
    assert there.version("no-such-package") == "not installed"
    assert provenance.version("attnlab") != "not installed"
