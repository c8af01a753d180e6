"""Where a result came from, in a repository made for it."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from attnlab.runs import provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.rows import Where
from attnlab.training.run import keep_compiled


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A repository with these sources and a result that is kept among them."""
    for name in ("attnlab/runs", "experiments/results/cpu", "tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "attnlab"\nversion = "1.2.3"\n')
    (tmp_path / "experiments" / "results" / "cpu" / "report.md").write_text("old")
    shutil.copy(provenance.__file__, tmp_path / "attnlab" / "runs")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    author = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    git(tmp_path, *author, "commit", "--quiet", "--message=all")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)
    return done.stdout.decode().strip()


def of(checkout: Path):
    path = checkout / "attnlab" / "runs" / "provenance.py"
    spec = importlib.util.spec_from_file_location("provenance_there", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("experiments/results/cpu/report.md", False),
        ("results/translate-1/report.md", False),
        ("attnlab/runs/provenance.py", True),
        ("experiments/new.py", True),
    ],
)
def test_a_revision_is_changed_where_the_sources_are(checkout, file, counts):
    path = checkout / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + "\n")
    revision = git(checkout, "rev-parse", "--short=12", "HEAD")
    assert of(checkout).revision() == revision + "+changes" * counts


def test_sources_that_a_launcher_sent_have_the_revision_that_it_wrote(checkout):
    (checkout / "REVISION").write_text("0123456789ab+changes")
    assert of(checkout).revision() == "0123456789ab+changes"


def test_sources_in_nobodys_or_somebody_elses_repository_have_no_revision(checkout):
    git(checkout, "rm", "--quiet", "--cached", "attnlab/runs/provenance.py")
    assert of(checkout).revision() == ""
    shutil.rmtree(checkout / ".git")
    assert of(checkout).revision() == ""


def test_a_report_says_whether_the_versions_are_those_that_were_tested(checkout):
    there = of(checkout)
    assert there.untested_packages({"jax": "1"}) is None  # sources without the file
    (checkout / "launch").mkdir()
    (checkout / "launch" / "constraints.txt").write_text(
        '# why\njax==1; python_version < "3"\njax==2.0; python_version >= "3"\nflax==3\nb==4\n'
    )
    assert there.untested_packages({"jax": "2.0", "flax": "3", "attnlab": "9"}) == []
    assert there.untested_packages({"jax": "1", "flax": "not installed"}) == ["jax", "flax"]
    for untested, words in (
        (None, "jax 1 |"),
        ([], "as tested |"),
        (["jax"], "than tested: jax |"),
    ):
        environment = {"versions": {"jax": "1"}} | (
            {} if untested is None else {"untested": untested}
        )
        assert words in provenance.table([Where(environment)])


def test_the_version_of_a_checkout_is_its_own_whatever_is_installed(checkout):
    there = of(checkout)
    assert there.version("attnlab") == "1.2.3"
    assert there.version("jax") == provenance.version("jax") != "not installed"
    assert there.version("no-such-package") == "not installed"
    assert provenance.version("attnlab") != "not installed"


def test_processors_of_one_name_are_told_apart_and_keep_their_programs_apart(monkeypatch, tmp_path):
    devices, folders = set(), set()
    config = SimpleNamespace(values={"jax_compilation_cache_dir": None})
    config.update = lambda name, folder: folders.add(folder)
    for flags in ("avx2", "avx2 avx512f", "avx2 avx512f avx512_bf16"):
        cpuinfo = f"model name\t: AMD EPYC\nflags\t\t: sse2 {flags}\n"
        monkeypatch.setattr(provenance, "_cpuinfo", lambda text=cpuinfo: text)
        found = provenance.describe(["absl-py"])
        devices.add((found["device"], "absl-py" in found["versions"]))
        with monkeypatch.context() as patch:
            patch.setattr(jax, "config", config)
            keep_compiled(tmp_path)
    assert devices == {("AMD EPYC, AVX2", True), ("AMD EPYC, AVX-512", True)}
    assert len(folders) == 3


@pytest.mark.parametrize("error", [RuntimeError("no backend\nand more"), AssertionError()])
def test_no_device_is_one_line(error, monkeypatch):
    def absent():
        raise error

    monkeypatch.setenv("JAX_PLATFORMS", "abacus")
    monkeypatch.setattr(jax, "local_devices", absent)
    with pytest.raises(Invalid, match="^JAX_PLATFORMS=abacus: no .*; unset it, or name"):
        provenance.describe()


def test_a_compiler_that_computes_wrongly_is_refused(monkeypatch):
    monkeypatch.setattr(provenance, "reductions_are_right", lambda: False)
    with pytest.raises(Invalid, match="computes the sum of a matrix product wrongly .*XLA_FLAGS="):
        provenance.describe()
