"""One run: rows as they come, what ends it, and what is left to do."""

import dataclasses
import errno
import os
import shutil
import signal

import pytest

from attnlab.runs import figure_files, loop
from attnlab.runs.errors import Invalid, Lost, Stopped
from attnlab.runs.flags import Flags
from attnlab.runs.folder import Folder
from attnlab.runs.interrupts import Terminated
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    status: str = "ok"
    value: int = 0


def job(rows: Rows, measure, **options) -> loop.Job:
    def report() -> loop.Report:
        names = " ".join(f"{one.row.name}={one.row.status}" for one in rows.kept.values())
        return loop.Report(names, files={"table.csv": names}, said="a summary")

    return loop.Job(
        **dict(
            unit="letters",
            measure=measure,
            done=lambda row: row.status == "ok",
            title=lambda name: f"letter {name}",
            line=lambda found: ", ".join(row.status for row in found),
            report=report,
        )
        | options
    )


def run(tmp_path, measure, items="abc", resume=None, **options) -> tuple[int, Folder]:
    folder = Folder.fresh("spell", tmp_path, {"letters": "abc"})
    if resume is not None:
        folder = Folder.kept("spell", resume.path)
    rows = Rows(folder, lambda row: row.name, [Row])
    return loop.run(job(rows, measure, **options), list(items), folder, rows, where="paper"), folder


def one(name: str) -> list[Row]:
    return [Row(name)]


def test_a_run_leaves_rows_and_report(tmp_path, capsys):
    status, folder = run(tmp_path, one)
    out = capsys.readouterr().out.splitlines()
    assert status == 0 and out[:3] == [
        "3 of 3 letters to run on paper",
        f"results: {folder.path}",
        "[1/3] letter a … ok",
    ]
    assert out[-3:] == ["a summary", "", f"report: {folder.path / 'report.md'}"]
    assert (folder.path / "report.md").read_text() == "a=ok b=ok c=ok"
    assert (folder.path / "table.csv").exists()


def test_a_row_that_is_not_done_is_measured_again_by_a_resumed_run(tmp_path, capsys):
    status, folder = run(tmp_path, lambda name: [Row(name, "busy" if name == "b" else "ok")])
    assert status == 1 and (folder.path / "report.md").read_text() == "a=ok b=busy c=ok"
    assert capsys.readouterr().out.endswith(f"to complete it: --resume={folder.path}\n")
    asked = []
    status, _ = run(tmp_path, lambda name: asked.append(name) or one(name), resume=folder)
    assert status == 0 and asked == ["b"]
    assert "1 of 3 letters" in capsys.readouterr().out
    assert (folder.path / "report.md").read_text() == "a=ok b=ok c=ok"


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyboardInterrupt(), 130, "SIGINT: what is done is kept"),
        (Terminated(), 143, "SIGTERM: what is done is kept"),
        (Invalid("the device is gone"), 1, "stopped: the device is gone"),
        (Stopped("out of time"), 1, "stopped: out of time"),
        (OSError(errno.ENOSPC, "No space left", "/x"), 1, "stopped: /x: No space left"),
        (TimeoutError("waited for\na minute"), 1, "stopped: waited for a minute"),
    ],
)
def test_what_ends_a_run_is_said_and_the_report_is_written(error, status, words, tmp_path, capsys):
    def ends(name):
        if name == "b":
            raise error
        return one(name)

    found, folder = run(tmp_path, ends)
    out = capsys.readouterr().out.splitlines()
    assert found == status and (folder.path / "report.md").read_text() == "a=ok"
    assert out[-2:] == [words, f"to complete it: --resume={folder.path}"]


def diverges(name):
    if name == "b":
        raise Lost("the loss is nan")
    return one(name)


def test_an_item_that_is_lost_does_not_keep_the_others_from_being_done(tmp_path, capsys):
    folder = Folder.fresh("spell", tmp_path, {})
    rows = Rows(folder, lambda row: row.name, [Row])

    def report():
        return loop.Report(so_far(rows, {x: [x] for x in "abcd"}, Flags()).missing)

    abc = job(rows, diverges, report=report)
    status = loop.run(abc, list("abc"), folder, rows, where="paper")
    out = capsys.readouterr().out
    assert status == 1 and list(rows.kept) == ["a", "c"]
    assert "letter b … lost: the loss is nan\n" in out and "--resume" not in out
    assert (folder.path / "report.md").read_text() == "Not done yet: d. Lost: b (the loss is nan)."

    def cut_short(name):
        if name == "c":
            raise KeyboardInterrupt
        return diverges(name)

    assert run(tmp_path, cut_short)[0] == 130
    assert "to complete it: --resume=" in capsys.readouterr().out


def test_rows_of_an_item_are_kept_as_they_come(tmp_path):
    def half(name):
        yield Row(f"{name}1")
        raise KeyboardInterrupt

    def keys(name):
        return [f"{name}1", f"{name}2"]

    status, folder = run(tmp_path, half, keys=keys)
    assert status == 130 and (folder.path / "report.md").read_text() == "a1=ok"
    asked = []

    def rest(name):
        asked.append(name)
        return [Row(f"{name}1"), Row(f"{name}2")]

    assert run(tmp_path, rest, keys=keys, resume=folder)[0] == 0
    assert asked == list("abc")


def test_a_mistake_of_ours_does_not_lose_the_report(tmp_path, capsys):
    def breaks(name):
        if name == "b":
            raise RuntimeError("a bug")
        return one(name)

    with pytest.raises(RuntimeError, match="a bug"):
        run(tmp_path, breaks)
    (folder,) = tmp_path.iterdir()
    assert (folder / "report.md").read_text() == "a=ok"
    assert capsys.readouterr().out.endswith(f"to complete it: --resume={folder}\n")


def test_a_folder_that_is_gone_is_not_offered_again(tmp_path, capsys):
    def removes(name):
        shutil.rmtree(next(tmp_path.iterdir()))
        return one(name)

    status, folder = run(tmp_path, removes)
    out = capsys.readouterr().out
    assert status == 1 and f"stopped: {folder.path / 'results.jsonl'}: No such file" in out
    assert out.endswith(f"{folder.path} is gone, and what was in it; start a new run\n")


def test_a_full_disk_during_the_report_is_one_line(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figure_files, "save", full)
    status, folder = run(tmp_path, one)
    assert status == 1 and len((folder.path / "results.jsonl").read_text().splitlines()) == 3
    assert (folder.path / "report.md").read_text() == "a=ok b=ok c=ok"
    assert "stopped: No space left on device" in capsys.readouterr().out


def test_an_interrupt_while_the_report_is_written_waits(tmp_path):
    def slow_report():
        os.kill(os.getpid(), signal.SIGINT)
        return loop.Report("whole")

    status, folder = run(tmp_path, one, report=slow_report)
    assert status == 0 and (folder.path / "report.md").read_text() == "whole"


def test_some_items_are_measured_again_at_the_end(tmp_path, capsys):
    asked = []

    def measure(name):
        asked.append(name)
        return [Row(name, value=len(asked))]

    status, folder = run(tmp_path, measure, again=lambda: ["b"], before=lambda name: None)
    assert status == 0 and asked == ["a", "b", "c", "b"]
    assert "[1/1] letter b … ok" in capsys.readouterr().out
    assert Rows(folder, lambda row: row.name, [Row]).kept["b"].row.value == 4


def test_without_a_row_there_is_no_report(tmp_path, capsys):
    def ends(name):
        raise KeyboardInterrupt

    status, folder = run(tmp_path, ends)
    assert status == 130 and not (folder.path / "report.md").exists()
    assert "report:" not in capsys.readouterr().out
