"""Claims that the papers are cited for, each decided by rows that are kept.

`experiments/published/claims.toml` says which: rows of a table of `mapping`, lines of the
results.jsonl of another experiment, or numbers that are counted, which tests/papers keeps true. Of
several comparisons the worst verdict counts.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.runs.errors import Invalid
from experiments.tables import report, verdicts
from experiments.tables.mapping import PUBLISHED, SCALES, all_tables, parse_toml
from experiments.tables.report import Line, Section, numbers
from experiments.tables.trained import ScoreTable
from experiments.tables.verdicts import Gap

CLAIMS, RESULTS = PUBLISHED / "claims.toml", PUBLISHED.parent / "results"
COUNTED = RESULTS / "tables" / "results.csv"
_UNITS = {"median_seconds": "time", "f1": "F1, of 1", "symbols right": "symbols right, of 1"}


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper is cited for.

    Attributes:
      name: name of the claim in the file.
      paper: paper, by its authors and year.
      where: table, figure or section of the paper.
      says: claim, in our words.
      rule: rule that decides it, one of `verdicts.RULES`.
      table: table of `mapping` or of `COUNTED` that has its rows; "" = they are of `folder`.
      folder: folder of kept results, such as "cpu/duplication".
      rows: names of rows of the table, () = all; or what lines of the folder have, by field.
      against: rows that each of them is compared with; () = as the table compares them.
      word: side of the rows in the paper where it prints no gap: less, level or more.
      remark: remark that a reader of the verdict needs; "" = none.
      score: number that is compared; of a table its own.
      tie: gap below which two rows count as equal; of a table its own.
    """

    name: str
    paper: str
    where: str
    says: str
    rule: str
    table: str = ""
    folder: str = ""
    rows: Sequence[Any] = ()
    against: Sequence[Any] = ()
    word: str = ""
    remark: str = ""
    score: str = ""
    tie: float = 0

    @property
    def unit(self) -> str:
        """What is compared: a score, a time, memory, or a count."""
        if self.score:
            return _UNITS.get(self.score, self.score)
        return all_tables()[self.table].unit if self.table in all_tables() else "count"


@dataclasses.dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim.

    Attributes:
      claim: claim.
      line: row that decides, with the verdict.
      where: folder that has it, in that of the results; "" = it was not run.
      agree: number of rows, or of pairs of rows, that are on the paper's side, of all.
      gap: gap that decides; None = there is none, or its rows were not run.
      p_value: largest of those of the gaps that it needs; 1 where there is none.
      origin: way in which the paper's number was checked.
    """

    claim: Claim
    line: Line
    where: str
    agree: str
    gap: Gap | None
    p_value: float
    origin: str


@functools.cache
def all_claims(path: Path = CLAIMS) -> dict[str, Claim]:
    """The claims of a file, by name."""
    return {name: _read_claim(name, keys) for name, keys in parse_toml(path).items()}


def _read_claim(name: str, keys: dict[str, Any]) -> Claim:
    implied: dict[str, Any] = {"rule": "gap"}
    if keys.get("table") in read_counted():
        implied = {"rule": "exact"}
    elif "table" in keys:
        table = all_tables()[keys["table"]]
        implied = {"rule": table.rule, "tie": getattr(table, "tie", 0)}
    claim = Claim(name, **implied | keys)
    if claim.word not in ("less", "level", "more") and (claim.word or claim.folder):
        raise Invalid(f"claim {name}: got word = {claim.word!r}; give less, level or more")
    return claim


@functools.cache
def read_counted() -> dict[str, dict[str, Line]]:
    """The numbers that are counted, by table and row."""
    tables: dict[str, dict[str, Line]] = {}
    with COUNTED.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            table, row = cells["table"], cells["row"]
            line = Line(table, row, cells["paper"], cells["ours"], cells["verdict"], "exact")
            tables.setdefault(table, {})[row] = line
    return tables


def judge_claims(claims: Sequence[Claim], results: Path = RESULTS) -> Iterator[ClaimVerdict]:
    """The verdicts on claims; of tables that were run at several scales, at the largest.

    Args:
      claims: claims.
      results: folder of the folders of runs.

    Raises:
      Invalid: lines of a folder that a claim names are not there.
    """
    kept = [
        (section, folder.name)
        for folder in sorted(results.glob("tables_*"))
        for section in report.read_sections(folder)
    ]
    kept.sort(key=lambda found: SCALES.index(found[0].lines[0].scale))
    tables = {section.name: (section, folder) for section, folder in kept}
    for claim in claims:
        if claim.folder:
            folder, lines = claim.folder, list(_compare_lines(claim, results))
        elif claim.rule == "exact":
            folder, counted = COUNTED.parent.name, read_counted()[claim.table]
            lines = [(counted[row], None) for row in claim.rows or counted]
        elif claim.table in tables:
            section, folder = tables[claim.table]
            lines = list(_compare_rows(claim, section))
        else:
            folder, lines = "", [(_make_line_not_run(claim.table), None)]
        line, gap = min(lines, key=lambda one: _rank(one[0], one[1], claim.tie))
        agreeing = [one for one, _ in lines if verdicts.is_agreement(one.verdict)]
        worst = verdicts.kind(line.verdict)
        needed = [  # a claim that holds needs all of its rows
            of_row
            for one, of_row in lines
            if of_row and (line in agreeing or verdicts.kind(one.verdict) == worst)
        ]
        yield ClaimVerdict(
            claim,
            line,
            where=folder,
            agree=f"{len(agreeing)} of {len(lines)}",
            gap=gap,
            p_value=max((verdicts.p_value(one, claim.tie) for one in needed), default=1.0),
            origin=_describe_origin(claim),
        )


def _rank(line: Line, gap: Gap | None, tie: float) -> tuple[int, float, float]:
    """The key of `min` for the line that decides a claim: the worst verdict, then the farthest."""
    ratios = [float(x.removesuffix("×")) for x in (line.paper, line.ours) if x.endswith("×")]
    far = 0.0
    if gap is not None:
        far = verdicts.distance(gap, tie)
    elif len(ratios) == 2 and verdicts.kind(line.verdict) != verdicts.UNDECIDED:  # 0 or infinite
        far = abs(math.log(ratios[1] / ratios[0]))
    return (*verdicts.severity(line.verdict), -far)


def _describe_origin(claim: Claim) -> str:
    """How the paper's number was checked: as its file says, or the claim has a word for it."""
    if claim.word:
        return "words"
    table = all_tables().get(claim.table)
    return "" if table is None else report.read_published([claim.table])[claim.table].status


def _make_line_not_run(name: str) -> Line:
    table = all_tables()[name]
    scale = table.scales[0]
    command = f"launch/local tables --scale={scale} --only={name}"
    data = table.data(scale)
    if data is not None:
        command += f" --{data}=PATH"
    return Line(name, "", "", "", verdicts.NOT_RUN, scale, command=command)


def _compare_rows(claim: Claim, section: Section) -> Iterator[tuple[Line, Gap | None]]:
    table, found = section.table, section.found
    lines = {line.row: line for line in section.lines}
    if not isinstance(table, ScoreTable):
        judged = {gap.row: gap for gap in table.gaps(section.paper, found)}
        yield from ((lines[row], judged.get(row)) for row in claim.rows or table.rows)
        return
    scores, base = table.scores(found), table.against()
    pairs = [(row, base.get(row, row)) for row in claim.rows or base]
    for row, other in itertools.product(claim.rows, claim.against) if claim.against else pairs:
        theirs = claim.word or verdicts.printed_gap(table.printed(section.paper), row, other)
        if theirs is None or row == other:
            raise Invalid(
                f"claim {claim.name}: its gaps are printed, or it has a word; got none of {row!r} "
                f"from {other!r}; give other rows, or word"
            )
        if not {row, other} <= scores.keys():
            yield lines[other if row in scores else row], None
            continue
        gap = Gap(row, other, theirs, (scores[row], scores[other]))
        verdict = table.judge(gap, found, claim.tie)
        yield dataclasses.replace(lines[row], verdict=verdict, **numbers(scores[row], gap)), gap


def _compare_lines(claim: Claim, results: Path) -> Iterator[tuple[Line, Gap | None]]:
    path = results / claim.folder / "results.jsonl"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    kept = [json.loads(line) for line in text.splitlines()]
    scale = claim.folder.partition("/")[0]
    for fields, other in itertools.product(claim.rows, claim.against):
        row = ", ".join(map(str, fields.values()))
        ours, theirs = _values(claim, fields, kept), _values(claim, other, kept)
        if claim.rule == "ratio":
            gap, ratio = None, ours[-1] / theirs[-1]
            shown, verdict = f"{ratio:#.3g}×", verdicts.judge_ratio(claim.word, ratio)
        else:
            gap = Gap(row, "", claim.word, (ours, theirs))
            shown, verdict = "", verdicts.judge_gap(gap, tie=claim.tie)
        line = Line(claim.folder, row, claim.word, shown, verdict, scale, n=len(ours))
        yield dataclasses.replace(line, **numbers(ours, gap)), gap


def _values(
    claim: Claim, fields: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> list[float]:
    """The score of the lines that have some values, of all seeds; "" is no value."""
    found: dict[int | None, float] = {}
    of_seed: dict[int | None, Any] = {}
    for line in lines:
        cell = line.get("cell", {})
        values = {**line, **line.get("case", {}), **cell.get("axes", {})}
        has = {name: "" if value is None else value for name, value in values.items()}
        score = {**line, **line.get("scores", {})}.get(claim.score)
        if score is not None and fields.items() <= has.items():
            seed, item = cell.get("seed"), (line.get("case"), cell, line.get("evaluated"))
            if of_seed.setdefault(seed, item) != item:
                raise Invalid(
                    f"claim {claim.name}: a row is of one case, or training; got two of "
                    f"{claim.folder} with {dict(fields)}; give more of its values"
                )
            found[seed] = score  # of a line that was measured again the last
    if not found:
        raise Invalid(
            f"claim {claim.name}: {claim.folder} has no row with {claim.score!r} and "
            f"{dict(fields)}; give a score and values of its results.jsonl"
        )
    return list(found.values())
