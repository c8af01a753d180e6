"""The report of `tables`: each table with the paper's number, ours and the verdict."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.runs.folder import Folder
from attnlab.runs.markdown import markdown_table
from attnlab.runs.published import Table, read
from attnlab.runs.report import document
from attnlab.runs.rows import Kept, Rows
from attnlab.runs.units import PLUS_MINUS
from experiments.tables import verdicts
from experiments.tables.mapping import PUBLISHED, all_tables
from experiments.tables.runs import Context
from experiments.tables.settings import Settings
from experiments.tables.table import Found, Measurement, PublishedTable
from experiments.tables.verdicts import Gap

# Revisions at which the losses of the first 20 steps of a model, of seed 0, are the same bits:
# `translate --preset=small` on Multi30k, of Luong's with the dot product, of Britz's with additive.
TRAIN_ALIKE = (
    {"416e1f20c911", "3ff62886838b", "8f27a9fac928", "f5d85367bbca"},
    {"046ffb55c77e", "a53ba1f96a83", "cb4d5deb3ec3"},
    {"7211122b1961", "1f1e373d4e5f"},  # of Luong's models
)
# Of the kept rows of translation, those before dffa1694: the first loss of such a model is another
# one there.
_NORMALIZED_SUBWORDS = {
    *TRAIN_ALIKE[0], *TRAIN_ALIKE[1],
    "2d353c3e9643", "42a2405a5e31", "5b073df50fa5", "d52656b40589",
}  # fmt: skip
_NEXT_LINE = " && \\\n        "
_SCALES = {
    "cpu": "Models of text are trained as `translate --preset=small` does: 128 wide, on Multi30k"
    " from German to English, where the papers translate from English; 4,000 steps of 64 pairs;"
    " greedy search.",
    "gpu": "Models of text are trained as `translate --preset=gpu` does, on Multi30k from German to"
    " English, where the papers translate from English.",
    "paper": "Models of text are trained as `translate --preset=paper` does, on WMT14 of TFDS, with"
    " subwords, and tested on newstest2014.",
}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a table, and of results.csv, where None is an empty cell.

    Attributes:
      table: name of the table.
      row: name of the row.
      paper: number as it is published, "" where the paper has none.
      ours: our number, "" where it was not run; of several seeds the mean ± half of its interval.
      verdict: verdict by the rules of `verdicts`, "not run" where there is no number.
      scale: scale of ours.
      seeds: seeds that it is of.
      revision: git revision that made it, or those of its seeds with spaces between.
      command: command that makes it.
      n: number of seeds, or of measurements.
      mean: mean of our number over the seeds.
      sd: standard deviation over the seeds.
      paper_gap: the paper's gap, or its word.
      gap: our gap.
      low: lower end of the 95 % interval of our gap.
      high: upper end of it.
    """

    table: str
    row: str
    paper: str
    ours: str
    verdict: str
    scale: str
    seeds: str = ""
    revision: str = ""
    command: str = ""
    n: int = 0
    mean: float | None = None
    sd: float | None = None
    paper_gap: float | str | None = None
    gap: float | None = None
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Section:
    """A table, what was found for it, and what the paper prints.

    Attributes:
      name: name of the table.
      paper: numbers that the paper prints, by row.
      found: our numbers by row, of all seeds.
      lines: lines of the table.
      source: origin of the paper's numbers.
    """

    name: str
    paper: Mapping[str, str]
    found: Found
    lines: Sequence[Line]
    source: str

    @property
    def table(self) -> PublishedTable:
        """The table."""
        return all_tables()[self.name]

    @functools.cached_property
    def figure(self) -> Any:
        """The figure of the rows; None = there is nothing to draw."""
        return self.table.figure(self.paper, self.found)


def read_published(names: Sequence[str]) -> dict[str, Table]:
    """The published tables of ours, by our name.

    Raises:
      Invalid: one is missing, or does not say where it comes from.
    """
    tables = {name: all_tables()[name] for name in names}
    return {name: read(PUBLISHED / one.file, keys=one.keys) for name, one in tables.items()}


def sections(
    papers: Mapping[str, Table], kept: Mapping[Any, Kept[Measurement]], context: Context
) -> list[Section]:
    """All tables of a run.

    Args:
      papers: published tables by our name.
      kept: our numbers.
      context: scale, seeds and data of the run.
    """
    return [_make_section(name, paper, kept, context) for name, paper in papers.items()]


def read_sections(folder: Path) -> list[Section]:
    """All tables of a run, from its folder.

    Raises:
      Invalid: there is no run in it, or one of another version.
    """
    run = Folder.kept("tables", folder)
    settings = Settings.from_json(run.settings)
    rows: Rows[Any, Measurement] = Rows(
        run, lambda found: (found.table, found.row, found.seed), [Measurement]
    )
    return sections(read_published(settings.tables()), rows.kept, settings.context(folder))


def _make_section(
    name: str, published: Table, kept: Mapping[Any, Kept[Measurement]], context: Context
) -> Section:
    table = all_tables()[name]
    paper = table.paper(published)
    of_row: dict[str, list[Kept[Measurement]]] = {row: [] for row in table.rows}
    for one in kept.values():
        if one.row.table == name and one.row.row in of_row:
            of_row[one.row.row].append(one)
    found = {row: [one.row.values for one in some] for row, some in of_row.items() if some}
    verdict = table.verdicts(paper, found)
    scores = table.scores(found)
    gaps = {gap.row: gap for gap in table.gaps(paper, found)}
    lines = []
    for row, some in of_row.items():
        seeds = tuple(sorted(one.row.seed for one in some)) if table.trains else ()
        # A row may have more seeds than the run, or fewer.
        of_seeds = dataclasses.replace(context, seeds=seeds) if seeds else context
        commands = [shlex.join(["launch/local", *words]) for words in table.commands(row, of_seeds)]
        revisions = dict.fromkeys(one.where.environment["revision"] or "unknown" for one in some)
        line = Line(
            table=name,
            row=row,
            paper=paper.get(row, ""),
            ours=table.format_row(found[row]) if row in found else "",
            **numbers(scores.get(row, ()), gaps.get(row)),
            n=len(some),
            verdict=verdict.get(row, verdicts.NOT_RUN),
            scale=context.scale,
            seeds=",".join(map(str, seeds)),
            revision=" ".join(revisions),
            command=" && ".join(commands),
        )
        lines.append(line)
    columns = [table.column] if isinstance(table.column, str) else table.column.values()
    noun = "column" if len(columns) == 1 else "columns"
    source = f"{published.source}; {noun} {', '.join(f'`{x}`' for x in columns)}."
    return Section(name, paper, found, lines, source)


def numbers(scores: Sequence[float], gap: Gap | None) -> dict[str, Any]:
    """The columns of results.csv that are numbers of a row and of its gap."""
    has_interval = gap is not None and math.isfinite(gap.half_width)  # not of a single seed
    return {
        "mean": statistics.fmean(scores) if scores else None,
        "sd": statistics.stdev(scores) if len(scores) > 1 else None,
        "paper_gap": gap and gap.paper,
        "gap": gap and gap.ours,
        "low": gap.ours - gap.half_width if gap and has_interval else None,
        "high": gap.ours + gap.half_width if gap and has_interval else None,
    }


def markdown(found: Sequence[Section], missing: str, origin: str) -> str:
    """The whole report.

    Args:
      found: all tables.
      missing: paragraph on what was not run.
      origin: section on where the numbers are from.
    """
    rules = [verdicts.RULES[rule] for rule in dict.fromkeys(one.table.rule for one in found)]
    scale = found[0].lines[0].scale
    translates = {section.table.data(scale) for section in found} & {"multi30k", "wmt14"}
    parts = ["# Published tables beside ours", summary(found)]
    if translates:
        parts.append(_SCALES[scale])
    parts += rules
    if any(one.table.trains for one in found):
        parts.append(PLUS_MINUS)
    for section in found:
        parts += _format_section(section)
    return document(*parts, missing, origin)


def summary(found: Sequence[Section]) -> str:
    """How many rows of each table have each verdict; not of bases, and what no paper has."""
    lines = []
    for section in found:
        kinds = Counter(verdicts.kind(line.verdict) for line in section.lines)
        counts = ", ".join(
            f"{kinds[kind]} {kind}" for kind in reversed(verdicts.WORST) if kinds[kind]
        )
        name = f"[{section.name}](#{_anchor(section.table.title)})"
        lines.append([name, "the paper", section.lines[0].scale, counts])
    return markdown_table(["table", "beside", "scale", "rows"], lines)


def _anchor(title: str) -> str:
    """The link to a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def csv_text(found: Sequence[Section]) -> str:
    """The lines of all tables as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in dataclasses.fields(Line)])
    writer.writeheader()
    writer.writerows(dataclasses.asdict(line) for section in found for line in section.lines)
    return text.getvalue()


def figures(found: Sequence[Section]) -> dict[str, Any]:
    """The figures by the name of their table; None where there is nothing to draw."""
    return {section.name: section.figure for section in found}


def _compare(revisions: Sequence[str]) -> str:
    """Whether what lies between revisions could matter to a training."""
    if any(alike >= set(revisions) for alike in TRAIN_ALIKE):
        return (
            "No commit between them changes a training: the losses of a model's first 20 steps are"
            " the same, to the last bit."
        )
    later = [revision for revision in revisions if revision not in _NORMALIZED_SUBWORDS]
    if 0 < len(later) < len(revisions):
        return (
            f"Since dffa1694, as in {', '.join(later)}, subwords are made of a text as it is:"
            " before, its Unicode and its blanks were normalized. Vocabularies may differ by it."
        )
    return "They are not known to train alike."


def _format_section(section: Section) -> list[str]:
    table, lines = section.table, section.lines
    columns = table.columns(section.paper, section.found)
    if table.trains:
        columns["seeds"] = {line.row: line.seeds for line in lines}
    header = ["row", "paper", "ours", "verdict", *columns]
    cells = [
        [line.row, line.paper, line.ours, line.verdict]
        + [column.get(line.row, "") for column in columns.values()]
        for line in lines
    ]
    parts = [f"## {table.title}", markdown_table(header, cells)]
    parts += table.remarks(section.found)
    revisions = list(dict.fromkeys(" ".join(line.revision for line in lines).split()))
    if len(revisions) > 1:
        said = f"Rows are of several revisions: {', '.join(revisions)}."
        parts.append(f"{said} {_compare(revisions)}")
    if section.figure is not None:
        parts.append(f"![{table.title}: {table.caption}]({section.name}.svg)")
    if table.note:
        parts.append(table.note)
    last = lines[-1]
    parts.append(f"Paper: {section.source}")
    if len({line.command for line in lines}) > 1:
        parts.append(f"The row *{last.row}* alone:")
    return [*parts, f"    {last.command.replace(' && ', _NEXT_LINE)}"]
