"""An experiment that measures one host's devices, on every host of a run."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TypeVar

from attnlab.runs import processes
from attnlab.runs.command_line import say
from attnlab.runs.flags import Flags
from attnlab.runs.folder import REPORT, Folder, is_begun
from attnlab.runs.loop import begun
from attnlab.runs.markdown import markdown_table

__all__ = ["on_every_host"]

S = TypeVar("S", bound=Flags)


def on_every_host(experiment: Callable[[S, Folder], int], settings: S, folder: Folder) -> int:
    """Runs an experiment once in each process, alone with its devices; one verdict of all.

    Each has a folder process_I in that of the run, where its report is. Of a single process it is
    the experiment itself.

    Args:
      experiment: function of the settings and the folder; returns a status.
      settings: settings of the run.
      folder: folder of the run.

    Returns:
      The exit status: the largest of all.

    Raises:
      Invalid: the folder cannot be made, or one process cannot do the experiment.
    """
    if processes.count() == 1:
        return experiment(settings, folder)
    path, index = begun(folder), processes.index()
    mine = path / f"process_{index}"
    if is_begun(mine):
        own = Folder.kept(folder.name, mine)
    else:
        own = Folder.fresh(folder.name, path, folder.settings, path=mine)
    with processes.alone():
        status = experiment(settings, own)
    if status > 128:
        processes.tell("a signal; what is done is kept", status)
    statuses = processes.gather((platform.node(), status))
    table = markdown_table(
        ["process", "host", "verdict"],
        [
            [f"[{i}](process_{i}/{REPORT})", host, _verdict(host_status)]
            for i, (host, host_status) in enumerate(statuses)
        ],
    )
    worst = max(host_status for _, host_status in statuses)
    head = f"{len(statuses)} processes: {_verdict(worst)}."
    if index == 0:
        folder.write(REPORT, f"# {folder.name}\n\n{head}\n\n{table}\n")
    say(f"\n{head}\n\n{table}\n\nreport: {path / REPORT}")
    return worst


def _verdict(status: int) -> str:
    if status == 0:
        return "as it should be"
    return "something is missing or failed" if status == 1 else f"ended with status {status}"
