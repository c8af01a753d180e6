"""The folder of a run, and the rows in it."""

import dataclasses
import datetime
import errno
import pathlib
import subprocess
import sys
import types

import pytest

from attnlab.runs import folder as folder_module
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import REPORT, ROWS, SETTINGS, Folder, fresh_folder
from attnlab.runs.rows import Rows


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 20, tzinfo=tz)


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    value: int

    @property
    def double(self) -> int:
        return 2 * self.value


@dataclasses.dataclass(frozen=True)
class Other:
    name: str
    words: tuple[str, ...]


def full_disk(path: pathlib.Path, *_, **__):
    path.write_bytes(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def folder(tmp_path) -> Folder:
    """Of a run that has begun."""
    folder = Folder.fresh("one", tmp_path, {"a": 1})
    folder.begin()
    return folder


def rows_of(folder: Folder) -> Rows:
    return Rows(folder, lambda row: row.name, [Row, Other], derived=["double"])


def test_a_folder_that_exists_is_never_used(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "datetime", types.SimpleNamespace(datetime=Frozen))
    first, second = (fresh_folder(tmp_path, "one") for _ in range(2))
    assert first != second and first.is_dir() and second.is_dir()


@pytest.mark.parametrize("flag", ["output_dir", "run_dir"])
@pytest.mark.parametrize("below", ["", "below", "far/below"])
@pytest.mark.parametrize("make", [pathlib.Path.touch, lambda file: file.symlink_to("nothing")])
def test_a_file_in_place_of_a_folder_is_named(make, flag, below, tmp_path):
    file = tmp_path / "file"
    make(file)
    wanted = file / below
    place = {"path": wanted} if flag == "run_dir" else {}
    with pytest.raises(Invalid) as caught:
        Folder.fresh("one", wanted, {}, **place).begin()
    assert str(caught.value) == f"--{flag}={wanted}: {file} is no folder; give a folder"


def test_a_fresh_folder_is_made_when_the_run_begins(tmp_path):
    folder = Folder.fresh("one", tmp_path, {"a": [1]})
    assert not folder.resumes and folder.rows() == {} and not list(tmp_path.iterdir())
    path = folder.begin()
    assert folder.begin() == path and [file.name for file in path.iterdir()] == [SETTINGS]
    again = Folder.kept("one", path)
    assert again.resumes and again.settings == {"a": [1]} and again.begin() == path


def test_one_run_at_a_time_writes_to_a_folder(tmp_path):
    """A run that is killed lets go of it."""
    path = fresh_folder(tmp_path, "one")
    (path / SETTINGS).write_text("{}")
    other = f"""
import fcntl, os, sys
fcntl.flock(os.open({str(path / SETTINGS)!r}, os.O_WRONLY), fcntl.LOCK_EX)
print("claimed", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", other], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"claimed\n"
        with pytest.raises(Invalid, match=f"--resume={path}: a run writes to this folder now"):
            Folder.kept("one", path).claim()
        process.kill()
    for _ in range(2):  # the process that has it may begin again
        assert Folder.kept("one", path).begin() == path
    held = f"import fcntl, os; fcntl.flock(os.open({str(path / SETTINGS)!r}, os.O_WRONLY), 6)"
    refused = subprocess.run([sys.executable, "-c", held], capture_output=True, check=False)
    assert b"BlockingIOError" in refused.stderr


def test_of_two_runs_that_begin_at_once_one_does(tmp_path):
    """The other holds settings.json before it has its name, or has named it since."""
    path, part = tmp_path / "run", tmp_path / "run" / f"{SETTINGS}.tmp"
    path.mkdir()
    held = f"import fcntl, os; fcntl.flock(os.open({str(part)!r}, os.O_WRONLY | os.O_CREAT), 2)"
    held += "; print(1, flush=True); input()"
    first, second = (Folder.fresh("one", tmp_path, {"a": i}, path=path) for i in range(2))
    with subprocess.Popen(
        [sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"1\n"
        with pytest.raises(Invalid, match=f"--run_dir={path}: a run begins there now; wait"):
            first.begin()
        process.kill()
    second.begin()
    with pytest.raises(Invalid, match="a run has begun there meanwhile"):
        first.begin()
    assert [file.name for file in path.iterdir()] == [SETTINGS]
    assert Folder.kept("one", path).settings == {"a": 1}


def test_rows_are_kept_with_where_they_come_from(folder):
    rows = rows_of(folder)
    rows.environment = {"device": "Abacus"}
    rows.add(Row("x", 1))
    rows.add(Other("y", ("p", "q")))
    rows.add(Row("x", 2))
    lines = list(folder.rows().values())
    assert len(lines) == 3 and lines[2]["double"] == 4 and lines[2]["flags"] == {"a": 1}
    again = rows_of(Folder.kept("one", folder.path))
    assert [one.row for one in again.of(["y", "x", "z"])] == [Other("y", ("p", "q")), Row("x", 2)]
    where = again.kept["x"].where
    assert where.environment == {"device": "Abacus"} and where.time >= where.begun > ""


def test_a_line_that_was_cut_off_is_removed_and_the_next_one_whole(folder, monkeypatch):
    rows_of(folder).add(Row("x", 1))
    with open(folder.path / ROWS, "a") as file:
        file.write('\n{"name": "y", "val')  # killed while writing
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "write_text", full_disk)  # the others stay where they are
        rows = rows_of(folder)
    assert list(rows.kept) == ["x"]
    rows.add(Row("z", 3))
    assert list(rows_of(folder).kept) == ["x", "z"]


@pytest.mark.parametrize("line", ["{]", "[]", '{"name": 5}', '{"value": 5}', "\ufeff"])
def test_a_line_that_is_no_row_is_named(line, folder):
    rows_of(folder).add(Row("x", 1))
    with open(folder.path / ROWS, "a") as file:
        file.write(line + "\n")
    with pytest.raises(Invalid, match="results.jsonl, line 2: not a row of one; delete that line"):
        rows_of(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no settings.json there; give a folder that one made"), ("[]", "cannot be read")],
)
def test_a_folder_of_nothing_is_refused(text, message, tmp_path):
    if text is not None:
        (tmp_path / SETTINGS).write_text(text)
    with pytest.raises(Invalid, match=f"--resume={tmp_path}: .*{message}"):
        Folder.kept("one", tmp_path)


def test_a_report_that_does_not_fit_leaves_the_one_before(folder, monkeypatch):
    folder.write("report.md", "whole")
    monkeypatch.setattr(pathlib.Path, "write_text", full_disk)
    with pytest.raises(OSError, match="No space"):
        folder.write("report.md", "another")
    assert (folder.path / "report.md").read_text() == "whole"


@pytest.mark.parametrize("file", [ROWS, REPORT, "own.csv", "figure.svg"])
def test_files_that_no_run_has_made_are_left_alone(file, tmp_path):
    (tmp_path / file).write_text("mine")
    with pytest.raises(Invalid, match=f"--run_dir={tmp_path}: {file} is there, and no settings.js"):
        Folder.fresh("one", tmp_path, {}, path=tmp_path).begin()
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text() == "mine"


@pytest.mark.parametrize("file", [SETTINGS, ROWS])
def test_a_folder_in_place_of_a_file_is_one_line(file, tmp_path):
    (tmp_path / SETTINGS).write_text("{}")
    (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / file).mkdir()
    with pytest.raises(Invalid, match=f"--resume={tmp_path}: .*{file}: Is a directory; give a"):
        Folder.kept("one", tmp_path).rows()
