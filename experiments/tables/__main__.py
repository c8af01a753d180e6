"""The command line of `tables`, and what it does."""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from attnlab.runs import command_line, loop, provenance, remaining
from attnlab.runs.command_line import say
from attnlab.runs.errors import Stopped
from attnlab.runs.folder import Folder
from attnlab.runs.report import grouped, so_far
from attnlab.runs.rows import Rows
from experiments import tables
from experiments.tables import report, scoreboard
from experiments.tables.beside import Context, Found
from experiments.tables.mapping import all_tables
from experiments.tables.settings import Cell, Settings

RUNS = "runs"  # the folder of the trainings within that of the run


def main(argv: list[str]) -> int:
    """Parses the flags and fills the tables."""
    return command_line.run(argv, Settings, run, doc=tables.__doc__, free=("dry_run",))


def run(settings: Settings, folder: Folder) -> int:
    """Measures the cells that are missing, and reports; or judges the claims.

    Raises:
      Invalid: a published table is missing, or the folder cannot be made.
    """
    if settings.claims:
        return scoreboard.run(folder)
    papers = report.published(settings.tables())
    rows: Rows[tuple[Cell, int], Found] = Rows(
        folder, lambda row: (Cell(row.table, row.row), row.seed), [Found]
    )
    mapped = all_tables()
    # Children measure: a parent that held an accelerator would leave them none.
    runs = any(mapped[name].runs for name in settings.tables())
    here: dict[str, Any] = {} if runs else provenance.describe()
    place = folder.wanted if settings.dry_run else folder.begin()
    context = Context(settings.scale, place / RUNS, settings.seeds, settings.data())

    def measure(cell: Cell) -> Iterator[Found]:
        try:
            for seed, values, where in mapped[cell.table].measure(cell.row, context):
                rows.environment = where or here
                yield Found(cell.table, cell.row, dict(values), seed)
        except Stopped as error:  # a cell's failure: the others go on
            say(f"{cell}: {error}")

    def keys(cell: Cell) -> list[tuple[Cell, int]]:
        return [(cell, seed) for seed in (settings.seeds if mapped[cell.table].trains else (0,))]

    def run_of(cell: Cell) -> Hashable:
        """The run that measures the cell, with others or alone."""
        table = mapped[cell.table]
        return str(table.commands(cell.table, cell.row, context)) if table.runs else cell

    def say_plan() -> None:
        left = [cell for cell in settings.cells() if not rows.kept.keys() >= {*keys(cell)}]
        planned = grouped(left, run_of)
        for cells in planned.values():
            say("\n" + "; ".join(map(str, cells)))
            table, first = mapped[cells[0].table], cells[0]
            for words in table.commands(first.table, first.row, context) if table.runs else ():
                say(f"    launch/local {shlex.join(words)}")
        say(f"\n{len(planned)} runs for {len(left)} of {len(settings.cells())} rows")
        if any(mapped[cell.table].trains for cell in left):
            say(
                "a command that trains says with --dry_run how long that takes on this machine, and"
                " with --dry_run --target=h100 what it takes on one; one with --init_from,"
                " once the run that it names is there"
            )

    if settings.dry_run:
        say_plan()
        return 0

    def seconds_left(cells: Sequence[Cell]) -> float | None:
        first: dict[Hashable, Cell] = {}  # cell of a run
        known: dict[Cell, float] = {}
        for (cell, _), seconds in remaining.spent(rows.kept).items():
            representative = first.setdefault(run_of(cell), cell)
            known[representative] = known.get(representative, 0.0) + seconds
        left = {run: cell for cell in cells if (run := run_of(cell)) not in first}
        return remaining.of_items(
            left.values(), known, lambda cell: (cell.table, mapped[cell.table].like(cell.row))
        )

    def line(found: Sequence[Found]) -> str:
        if not found:
            return "nothing was measured"
        first = found[0]
        return mapped[first.table].shown(first.row, [row.values for row in found])

    def reported() -> loop.Report:
        sections = report.sections(papers, rows.kept, context)
        told = so_far(rows, {str(cell): keys(cell) for cell in settings.cells()}, settings)
        return loop.Report(
            report.markdown(sections, told.missing, told.origin),
            figures=report.figures(sections),
            files={"results.csv": report.csv_text(sections)},
            said=report.summary(sections),
        )

    job = loop.Job(
        unit="cells",
        measure=measure,
        line=line,
        report=reported,
        keys=keys,
        seconds_left=seconds_left,
    )
    where = here.get("device", "this machine, by other experiments")
    return loop.run(job, settings.cells(), folder, rows, where=where)


if __name__ == "__main__":
    command_line.start(main)
