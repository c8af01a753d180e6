"""The report of `tables`: each table with the paper's number, ours and the verdict."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnlab.runs.command_line import command
from attnlab.runs.markdown import markdown_table
from attnlab.runs.published import Table, read
from attnlab.runs.rows import Kept
from experiments.tables import verdicts
from experiments.tables.mapping import TABLES, Cell
from experiments.tables.parameters import Count, vocabularies
from experiments.tables.settings import Settings

__all__ = ["Line", "Found", "csv_text", "lines", "markdown", "published"]

PUBLISHED = Path(__file__).parents[1] / "published"
NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True)
class Found:
    """What was measured for a cell.

    Attributes:
      table: name of the table.
      row: name of the row.
      values: our numbers by name.
    """

    table: str
    row: str
    values: dict[str, float]

    @property
    def cell(self) -> Cell:
        """The cell that it is of."""
        return Cell(self.table, self.row)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
      table: name of the table.
      row: name of the row.
      paper: number as it is published.
      ours: our number, "" where it was not run.
      verdict: verdict by the rules of `verdicts`, "not run" where there is no number.
      scale: scale of ours.
      revision: git revision that made it.
      command: command that makes the table.
    """

    table: str
    row: str
    paper: str
    ours: str
    verdict: str
    scale: str
    revision: str
    command: str


def published(names: Sequence[str]) -> dict[str, Table]:
    """The published tables of ours, by our name.

    Raises:
      Invalid: one is missing, or does not say where it comes from.
    """
    return {name: read(PUBLISHED / TABLES[name].file) for name in names}


def lines(
    names: Sequence[str], kept: Mapping[Cell, Kept[Found]], papers: Mapping[str, Table]
) -> list[Line]:
    """All lines of some tables.

    Args:
      names: names of the tables.
      kept: our numbers.
      papers: published tables by our name.
    """
    found = []
    for name in names:
        mapped = TABLES[name]
        for row, ours in mapped.rows.items():
            paper = papers[name].printed[row][mapped.column]
            one = kept.get(Cell(name, row))
            number, verdict, revision = "", NOT_RUN, ""
            if one is not None:
                number = ours.written(one.row.values)
                verdict = ours.verdict(paper, one.row.values)
                revision = one.where.environment["revision"] or ""
            how = command("tables", Settings, {"only": [name], "scale": mapped.scale})
            found.append(Line(name, row, paper, number, verdict, mapped.scale, revision, how))
    return found


def markdown(found: Sequence[Line], papers: Mapping[str, Table], *, where: str) -> str:
    """The whole report.

    Args:
      found: lines of all tables.
      papers: published tables by our name.
      where: table of the machines and revisions that the numbers are from.
    """
    parts = ["# Published tables beside ours", summary(found), verdicts.RULES]
    for name in dict.fromkeys(line.table for line in found):
        parts += _section(name, [line for line in found if line.table == name], papers[name])
    return "\n\n".join([*parts, "## Where", where]) + "\n"


def summary(found: Sequence[Line]) -> str:
    """The verdicts of each table, counted."""
    cells = []
    for name in dict.fromkeys(line.table for line in found):
        some = [line.verdict for line in found if line.table == name]
        counted = {verdict: some.count(verdict) for verdict in dict.fromkeys(some)}
        said = ", ".join(f"{number} {verdict}" for verdict, number in counted.items())
        cells.append([name, TABLES[name].title, TABLES[name].scale, said])
    return markdown_table(["table", "of", "scale", "verdicts"], cells)


def csv_text(found: Sequence[Line]) -> str:
    """The lines as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in dataclasses.fields(Line)])
    writer.writeheader()
    writer.writerows(map(dataclasses.asdict, found))
    return text.getvalue()


def _section(name: str, found: Sequence[Line], paper: Table) -> list[str]:
    mapped = TABLES[name]
    counts = {row: ours for row, ours in mapped.rows.items() if isinstance(ours, Count)}
    possible = {
        line.row: vocabularies(counts[line.row], line.paper)
        for line in found
        if line.row in counts
        and counts[line.row].vocab_size is not None
        and verdicts.is_rounded(line.paper)
    }
    header = ["row", "paper", "ours", "verdict"]
    cells = [[line.row, line.paper, line.ours, line.verdict] for line in found]
    if possible:
        header.append("vocabularies that round to the paper's")
        cells = [
            [*row, _interval(possible[line.row]) if line.row in possible else ""]
            for row, line in zip(cells, found, strict=True)
        ]
    parts = [f"## {mapped.title}", markdown_table(header, cells)]
    sizes = {count.vocab_size for count in counts.values()}
    parts += [_of_one_vocabulary(found, possible, *sizes)] if possible else []
    source = f"Paper: {paper.source}; column `{mapped.column}`."
    parts += [mapped.note] if mapped.note else []
    return [*parts, source, f"    {found[0].command}"]


def _of_one_vocabulary(
    found: Sequence[Line], possible: Mapping[str, range], chosen: int | None
) -> str:
    """Which numbers of ids give every printed number that one can give."""
    exact = [possible[line.row] for line in found if line.verdict == verdicts.EXACT]
    said = f"Ours has {chosen:,} ids."
    if not exact:
        return said
    common = range(max(x.start for x in exact), min(x.stop for x in exact))
    number = "all numbers" if len(exact) == len(found) else f"{len(exact)} of {len(found)} numbers"
    return f"{said} One vocabulary gives {number} of the paper: {_interval(common)} ids."


def _interval(numbers: range) -> str:
    if not numbers:
        return "none"
    first, last = f"{numbers.start:,}", f"{numbers.stop - 1:,}"
    return first if first == last else f"{first} to {last}"
