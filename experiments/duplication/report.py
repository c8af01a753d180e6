"""The report of `duplication`: the verdict, the table, and the grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnlab.runs import loop
from attnlab.runs.markdown import markdown_table
from attnlab.runs.published import read
from attnlab.runs.report import SoFar, document
from attnlab.runs.units import PLUS_MINUS
from experiments.duplication import verdict
from experiments.duplication.attention import EXACT, rounds_of
from experiments.duplication.cells import Cells, written
from experiments.duplication.figure import figure
from experiments.duplication.measure import DRAW, Row
from experiments.duplication.plan import LONGER
from experiments.duplication.settings import PRESETS, Settings, Size
from experiments.duplication.verdict import HASHED, Paper

__all__ = ["load", "report"]

PUBLISHED = Path(__file__).parents[1] / "published" / "reformer2020_table2.csv"


def load(path: Path = PUBLISHED) -> tuple[Paper, str]:
    """The paper's table, in percent by training and evaluation, and where it stands."""
    table = read(path)

    def name(cell: str) -> str:
        cell = cell.removeprefix("eval_").removesuffix("_pct")
        return "shared" if cell.lower() == "full" else f"lsh-{cell.removeprefix('LSH').strip('-')}"

    cells = {
        name(row): {name(column): x for column, x in of_row.items()}
        for row, of_row in table.cells.items()
    }
    return cells, table.source


def report(told: SoFar[Row], settings: Settings) -> loop.Report:
    """Everything that a run writes about its rows, of which there is one at least."""
    rows = told.rows
    paper, source = load()
    symbols = settings.recipe().num_symbols
    tables = {
        size: Cells([row for row in rows if row.word == size.word], settings.hashing())
        for size in settings.sizes()
    }
    tables = {size: cells for size, cells in tables.items() if cells.by_cell}
    first = next(iter(tables.values()))
    answers = [
        f"Words of {size.word} symbols: {verdict.verdict(verdict.claims(cells, symbols))}"
        for size, cells in tables.items()
    ]
    why = verdict.explained(first, symbols, paper)
    said = "\n\n".join([*answers, *filter(None, why)])
    parts = ["# Reformer, Table 2: what hashing costs on the duplication task"]
    parts += [f"**{answer}**" for answer in answers]
    parts += [*why, _to_come(told.to_come), told.losses]
    parts += [_setting(rows[0], settings), "![Accuracy over rounds at evaluation](rounds.svg)"]
    for size, cells in tables.items():
        parts += [f"## Words of {size.word} symbols", _of_size(size, rows, settings)]
        parts += [_table(cells), _claims(cells, symbols)]
    parts.append("Beside the paper's numbers: `launch/local tables --scale=cpu --only=reformer2`.")
    if settings.recipe().grid:
        parts += _grid(first, paper, source)
    text = document(*parts, "## Trainings", _trainings(rows), told.origin)
    drawn = {"rounds": figure({size.word: cells for size, cells in tables.items()})}
    return loop.Report(text, drawn, said=said)


def _setting(row: Row, settings: Settings) -> str:
    return (
        f"`0w0w`, {settings.recipe().num_symbols} symbols; accuracy in percent, of the second"
        f" w alone. One layer, width 256, 4 heads of 64, queries and keys one projection, learned"
        f" positions that begin as sinusoids: {row.parameters:,} parameters. Recipe"
        f" `{settings.preset}`: {PRESETS[settings.preset].about}. The table's setting:"
        f" {settings.hashing().words()}; borders of chunks decide what is visible, as in the paper,"
        " and each round looks back one chunk. Rotations are drawn anew in every step, and in"
        f" evaluation for every {DRAW} of the {settings.examples} examples. *shared* = "
        f"{EXACT['shared']}: LSH attention with one bucket."
    )


def _to_come(titles: Sequence[str]) -> str:
    """What a run that was cut short lacks, the seeds of a training together; "" = nothing."""
    seeds: dict[str, list[str]] = {}
    for title in titles:
        name, _, seed = title.rpartition(", seed ")
        seeds.setdefault(name, []).append(seed)
    names = "; ".join(f"{name}, seeds {', '.join(x)}" for name, x in seeds.items())
    return f"{len(titles)} models are not done yet: {names}." * bool(titles)


def _of_size(size: Size, rows: Sequence[Row], settings: Settings) -> str:
    optimizer = settings.optimizer(size.steps)
    some = [row for row in rows if row.word == size.word]
    seeds = sorted({row.seed for row in some})
    trained = {row.attention for row in some}
    longer = [f"*{name}* {x} times as long" for name, x in LONGER.items() if name in trained]
    return (
        f"{size.length} tokens, chunks of {size.chunk_size}; {size.steps:,} steps of"
        f" {size.batch_size} examples, {optimizer.optimizer} {optimizer.learning_rate:g}"
        f" ({optimizer.schedule}, warm-up {optimizer.warmup_steps}); seeds"
        f" {', '.join(map(str, seeds))}. {PLUS_MINUS}"
        + f" What learns later is trained longer: {', '.join(longer)}."
        * bool(longer)
    )


def _table(cells: Cells) -> str:
    columns = cells.evaluated()
    every = [[name, *(written(cells.of(name, x)) for x in columns)] for name in ("shared", *HASHED)]
    lines = [line for line in every if any(line[1:])]
    return markdown_table(["trained with", *columns], lines) if lines else ""


def _claims(cells: Cells, symbols: int) -> str:
    lines = [[claim.words, claim.answer, claim.numbers] for claim in verdict.claims(cells, symbols)]
    return markdown_table(["the paper's table says", "here", "numbers"], lines) if lines else ""


def _grid(cells: Cells, paper: Paper, source: str) -> list[str]:
    """The tables of what the literature leaves open."""
    return [
        '## What "shared" is',
        "Every model, evaluated with attention over all pairs in four senses: "
        + "; ".join(f"*{name}*: {words}" for name, words in EXACT.items())
        + ".",
        _exact(cells),
        "## Trained with attention over all pairs, evaluated with each hashing",
        _hashed(cells),
        "## Trained with each hashing",
        _trained(cells),
        "## Which setting is nearest to the paper's numbers",
        f"Mean distance of a row's LSH columns to the paper's, in points ({source}).",
        _nearest(cells, paper),
    ]


def _exact(cells: Cells) -> str:
    lines = [
        [_name(name, hashing, cells), *(written(cells.of(name, kind, hashing)) for kind in EXACT)]
        for name, hashing in cells.trained()
    ]
    return markdown_table(["trained with", *EXACT], lines)


def _hashed(cells: Cells) -> str:
    columns = cells.evaluated()[1:]
    lines = []
    for name, hashing in cells.trained():
        if rounds_of(name):
            continue
        for other in cells.hashings():
            found = [written(cells.of(name, column, hashing, other)) for column in columns]
            if any(found):
                lines.append([_name(name, hashing, cells), other.words(), *found])
    return markdown_table(["trained with", "evaluated with", *columns], lines) if lines else ""


def _trained(cells: Cells) -> str:
    columns = cells.evaluated()
    lines = [
        [f"{name}, {hashing.words()}", *(written(cells.of(name, c, hashing)) for c in columns)]
        for name, hashing in cells.trained()
        if rounds_of(name)
    ]
    return markdown_table(["trained with", *columns], lines) if lines else ""


def _nearest(cells: Cells, paper: Paper) -> str:
    lines = []
    for row, found in verdict.nearest(cells, paper).items():
        for gap, name, hashing, other in found[:3]:
            trained = (
                f"{name}, {hashing.words()}" if rounds_of(name) else _name(name, hashing, cells)
            )
            lines.append([row, f"{gap:.1f}", trained, other.words()])
    header = ["paper's row", "distance", "trained with", "evaluated with"]
    return markdown_table(header, lines) if lines else ""


def _name(name: str, hashing, cells: Cells) -> str:
    """A training beside the table's: what is not said is as there."""
    if rounds_of(name):
        differs = hashing.beside(cells.base)
        return f"{name}, {differs}" if differs else name
    return f"{name}, {hashing.words().split(',')[0]}"


def _trainings(rows: Sequence[Row]) -> str:
    found = {(row.word, row.trained, row.hashing, row.seed): row for row in rows}
    lines = [
        [str(row.word), row.trained, row.hashing.words(), str(row.seed), f"{row.step:,}",
         f"{row.seconds / 60:.1f}"]
        for row in found.values()
    ]  # fmt: skip
    header = ["symbols", "trained with", "setting", "seed", "best at step", "minutes"]
    return markdown_table(header, lines)
