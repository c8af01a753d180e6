"""The command line of `tables`, and what it does."""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Iterator, Sequence

from attnlab.runs import command_line, loop, remaining
from attnlab.runs.command_line import say
from attnlab.runs.errors import Stopped
from attnlab.runs.folder import Folder
from attnlab.runs.report import group, so_far
from attnlab.runs.rows import Rows
from experiments import tables
from experiments.tables import report, scoreboard
from experiments.tables.mapping import all_tables
from experiments.tables.settings import Cell, Settings
from experiments.tables.table import Measurement

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
    papers = report.read_published(settings.tables())
    rows: Rows[tuple[Cell, int], Measurement] = Rows(
        folder, lambda row: (Cell(row.table, row.row), row.seed), [Measurement]
    )
    mapped = all_tables()
    place = folder.wanted if settings.dry_run else folder.begin()
    context = settings.context(place / RUNS)

    def measure(cell: Cell) -> Iterator[Measurement]:
        try:
            for seed, values, environment in mapped[cell.table].measure(cell.row, context):
                rows.environment = environment
                yield Measurement(cell.table, cell.row, dict(values), seed)
        except Stopped as error:  # a cell's failure: the others go on
            say(f"{cell}: {error}")

    def keys(cell: Cell) -> list[tuple[Cell, int]]:
        return [(cell, seed) for seed in (settings.seeds if mapped[cell.table].trains else (0,))]

    def run_of(cell: Cell) -> Hashable:
        """The run that measures the cell, with others or alone: its commands."""
        return str(mapped[cell.table].commands(cell.row, context))

    def say_plan() -> None:
        left = [cell for cell in settings.cells() if not rows.kept.keys() >= {*keys(cell)}]
        planned = group(left, run_of)
        for cells in planned.values():
            say("\n" + "; ".join(map(str, cells)))
            for words in mapped[cells[0].table].commands(cells[0].row, context):
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
        left = {run_of(cell): cell for cell in cells}
        of_runs_left = [cell for run, cell in left.items() if run not in first]
        return remaining.of_items(
            of_runs_left, known, lambda cell: (cell.table, type(mapped[cell.table]))
        )

    def line(found: Sequence[Measurement]) -> str:
        if not found:
            return "nothing was measured"
        return mapped[found[0].table].format_row([row.values for row in found])

    def make_report() -> loop.Report:
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
        report=make_report,
        keys=keys,
        seconds_left=seconds_left,
    )
    where = "this machine, by other experiments"
    return loop.run(job, settings.cells(), folder, rows, where=where)


if __name__ == "__main__":
    command_line.start(main)
