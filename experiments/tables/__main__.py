"""The command line of `tables`, and what it does."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.runs import command_line, loop, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.rows import Rows
from experiments import tables
from experiments.tables import report
from experiments.tables.mapping import TABLES, Cell
from experiments.tables.report import Found
from experiments.tables.settings import Settings


def main(argv: list[str]) -> int:
    """Parses the flags and fills the tables."""
    return command_line.run(argv, Settings, run, doc=tables.__doc__)


def run(settings: Settings, folder: Folder) -> int:
    """Measures the cells that are missing, and reports.

    Raises:
      Invalid: a published table is missing, or the folder cannot be made.
    """
    papers = report.published(settings.tables())
    rows: Rows[Cell, Found] = Rows(folder, lambda row: row.cell, [Found])
    rows.environment = provenance.describe(())
    cells = settings.cells()

    def measure(cell: Cell) -> list[Found]:
        return [Found(cell.table, cell.row, TABLES[cell.table].rows[cell.row].measure())]

    def line(found: Sequence[Found]) -> str:
        one = found[0]
        return TABLES[one.table].rows[one.row].written(one.values)

    def reported() -> loop.Report:
        lines = report.lines(settings.tables(), rows.kept, papers)
        where = provenance.table([one.where for one in rows.of(cells)])
        return loop.Report(
            report.markdown(lines, papers, where=where),
            files={"results.csv": report.csv_text(lines)},
            said=report.summary(lines),
        )

    job = loop.Job(
        unit="cells",
        measure=measure,
        done=lambda row: True,
        title=str,
        line=line,
        report=reported,
    )
    return loop.run(job, cells, folder, rows, where=rows.environment["device"])


if __name__ == "__main__":
    command_line.start(main)
