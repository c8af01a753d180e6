"""The command of a study: trains and tests what is missing, or says what that would take."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from attnlab.runs import command_line, loop, processes, provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from attnlab.studies import plan
from attnlab.studies.run import Run
from attnlab.studies.study import D, S, Study
from attnlab.training.flags import FREE

__all__ = ["main"]


def run(kind: type[Study[S, D]], settings: S, folder: Folder) -> int:
    """Trains and tests what is missing, in this process, and reports; returns the status.

    Raises:
      Invalid: as `Run`, or the folder cannot be made.
    """
    if settings.dry_run and processes.count() > 1:  # they may have no folder in common
        raise Invalid("--dry_run: needs a single process; start one, or leave it out")
    plan.prepare(settings)
    opened = Run(kind, settings, folder)
    if settings.dry_run:
        plan.say(opened)
        return 0
    where = provenance.devices_of(opened.rows.environment)
    return loop.run(opened.job(), opened.cells, folder, opened.rows, where=where)


def main(argv: list[str], kind: type[Study[Any, Any]], package: ModuleType) -> int:
    """Parses the command line of a study and runs it."""
    return command_line.run(
        argv,
        kind.flags,
        functools.partial(run, kind),
        doc=package.__doc__,
        free=(*FREE, *kind.free),
        several=getattr(package, "SHARED_BY", "") == "processes",
    )
