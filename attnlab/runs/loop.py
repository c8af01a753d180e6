"""One run: does what is missing, keeps each row as it comes, and reports however it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from attnlab.runs import figure_files, processes, remaining
from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid, Lost, Stopped, of_system, one_line
from attnlab.runs.folder import REPORT, Folder, is_begun
from attnlab.runs.interrupts import defer_interrupts, interruptible, signal_of
from attnlab.runs.rows import Rows

__all__ = ["Job", "Report", "begun", "run", "write"]

Item = TypeVar("Item", bound=Hashable)
Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True)
class Report:
    """What a run writes about its rows.

    Attributes:
      markdown: text of report.md.
      figures: figures by name, without an ending; None = nothing to draw.
      files: other texts by the name of their file.
      said: text that the terminal shows at the end.
    """

    markdown: str
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    said: str = ""


@dataclasses.dataclass(frozen=True)
class Job(Generic[Item, Row]):
    """What a run does with its items.

    Attributes:
      unit: word for an item, in the plural.
      measure: (item) -> its rows, as they come; after `Lost` the run goes on with the next item.
      report: () -> the report of the rows so far, of which there is one at least.
      line: (rows of an item) -> its results in one line, said behind the title when it is done.
      done: whether a resumed run leaves a row alone; a run with an item that lacks such a row ends
        with status 1.
      title: (item) -> what it is, said before it is measured.
      keys: (item) -> the keys of its rows.
      before: (item) -> None; says or makes ready what the item needs, before its title.
      again: () -> items to measure once more, after all others.
      seconds_left: (items to come) -> about how long they take, said behind the title; None = not
        known yet.
    """

    unit: str
    measure: Callable[[Item], Iterable[Row]]
    report: Callable[[], Report]
    line: Callable[[Sequence[Any]], str]
    done: Callable[[Row], bool] = lambda row: True
    title: Callable[[Item], str] = str
    keys: Callable[[Item], Sequence[Hashable]] = lambda item: (item,)
    before: Callable[[Item], None] = lambda item: None
    again: Callable[[], Sequence[Item]] = lambda: ()
    seconds_left: Callable[[Sequence[Item]], float | None] = lambda items: None


def run(
    job: Job[Item, Row], items: Sequence[Item], folder: Folder, rows: Rows[Any, Row], *, where: str
) -> int:
    """Measures the items without a row and reports, also after Ctrl-C, SIGTERM or a failure.

    Of several processes all measure each item together; the rows of the first count.

    Args:
      job: functions that say what is done with an item.
      items: items of the whole run.
      folder: folder of the run; made here if it is a fresh one.
      rows: rows of the run.
      where: words for what the run runs on.

    Returns:
      The exit status: 0; 1 where an item is not done or the machine let the run down; 128 + the
      number of the signal that ended it.

    Raises:
      Invalid: the folder cannot be made.
    """
    processes.barrier()  # all have read the rows that there are
    path = begun(folder)

    def to_do() -> list[Item]:
        return [item for item in items if not _is_finished(job, item, rows)]

    missing = _agree(items, to_do)
    say(f"{len(missing)} of {len(items)} {job.unit} to run on {where}")
    say(f"results: {path}")
    ending = _Ending()
    left = 0
    lost = 0
    try:
        with interruptible():
            try:
                with ending:
                    _measure(job, missing, rows)
                    _measure(job, _agree(items, job.again), rows)
                    left = processes.agree(lambda: len(to_do()))
                    lost = sum(any(key in rows.lost for key in job.keys(x)) for x in items)
            finally:  # also after a mistake of ours, which is raised again
                with ending:
                    processes.stop_waiting()
                with defer_interrupts(), ending:
                    if rows.kept and processes.is_first():
                        report = job.report()
                        write(report, folder)
                        said = f"\n{report.said}\n" if report.said else ""
                        say(f"{said}\nreport: {folder.path / REPORT}")
    except Exception:
        say(f"\n{_remedy(folder)}")
        raise
    if ending.words:
        say(f"\n{ending.words}")
    status = ending.status or int(left > 0)
    if ending.status or left > lost:
        say(_remedy(folder))
    elif lost:
        say(f"{lost} lost, and again in a resumed run; start a new one with other flags")
    return status


def begun(folder: Folder) -> Path:
    """Begins the folder of a run, in the first of several processes; returns its path.

    Raises:
      Invalid: the folder cannot be made, or another process does not see it.
    """
    path = Path(processes.agree(lambda: str(folder.begin())))
    if not folder.exists:
        folder.join(path)
    if not is_begun(folder.path):
        raise Invalid(
            f"process {processes.index()} does not see {folder.path}; give a folder that all "
            "processes share"
        )
    return folder.path


class _Ending(contextlib.AbstractContextManager[None]):
    """Within `with` what ends a run does not end this process; the first reason is kept."""

    def __init__(self) -> None:
        self.status, self.words = 0, ""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        match error:
            case None:
                return True
            case KeyboardInterrupt() if (other := processes.ended_by()) is not None:
                ending = other.status, f"stopped: {other.line()}"
            case KeyboardInterrupt():
                number = signal_of(error)
                ending = 128 + number, f"{number.name}: what is done is kept"
            case Invalid() | Stopped():  # a device is gone, a training diverged
                ending = 1, f"stopped: {error}"
            case OSError():
                ending = 1, f"stopped: {of_system(error)}"
            case Exception() if processes.is_of_devices(error):
                ending = 1, f"stopped: has another process ended? {one_line(error)}"
            case _:
                return False
        if not self.status:
            self.status, self.words = ending
            processes.tell(self.words, self.status)
        return True


def _agree(items: Sequence[Item], chosen: Callable[[], Sequence[Item]]) -> list[Item]:
    """The items that the first process chooses."""
    if processes.count() == 1:
        return list(chosen())
    return [items[i] for i in processes.agree(lambda: [items.index(item) for item in chosen()])]


def _is_finished(job: Job[Item, Row], item: Item, rows: Rows[Any, Row]) -> bool:
    known = [rows.kept.get(key) for key in job.keys(item)]
    return all(entry is not None and job.done(entry.row) for entry in known)


def _remedy(folder: Folder) -> str:
    if is_begun(folder.path):
        return f"to complete it: {shlex.quote(f'--resume={folder.path}')}"
    return f"{folder.path} is gone, and what was in it; start a new run"


def _measure(job: Job[Item, Row], items: Sequence[Item], rows: Rows[Any, Row]) -> None:
    for i, item in enumerate(items):
        job.before(item)
        processes.barrier()  # some items are for the first alone
        left = job.seconds_left(items[i:])
        about = "" if left is None else f", {remaining.said(left)}"
        say(f"[{i + 1}/{len(items)}] {job.title(item)}{about} … ", end="")
        measured = []
        try:
            for row in job.measure(item):
                rows.add(row)
                measured.append(row)
        except Lost as error:
            rows.lost |= dict.fromkeys(job.keys(item), str(error))
            say(f"lost: {error}")
        else:
            say(job.line(measured))


def write(report: Report, folder: Folder) -> None:
    """Writes a report; a long run does so before its end too."""
    for name, text in report.files.items():
        folder.write(name, text)
    folder.write(REPORT, report.markdown)
    figure_files.save(report.figures, folder.path)
