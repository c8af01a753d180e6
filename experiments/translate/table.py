"""The report of a translation experiment: what was reached, beside what the papers print."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from attnlab.runs.markdown import markdown_table
from attnlab.training.bleu import Bleu, Bucket

__all__ = ["Published", "Row", "markdown", "results"]


@dataclasses.dataclass(frozen=True)
class Row:
    """What one model reached. None where it was not measured.

    Attributes:
      model: its name.
      parameters: how many numbers it learns.
      steps: of training.
      seconds: of training, with compilation and validation.
      tokens_per_second: of training, target tokens.
      perplexity: of the validation split, exp of nats a token.
      bleu: of the test split.
      exact_match: of the test split, a share of 1.
      alignment_error_rate: of the test split, a share of 1.
      buckets: the score by the length of the source.
    """

    model: str
    parameters: int
    steps: int
    seconds: float
    tokens_per_second: float | None = None
    perplexity: float | None = None
    bleu: Bleu | None = None
    exact_match: float | None = None
    alignment_error_rate: float | None = None
    buckets: tuple[Bucket, ...] = ()

    def line(self) -> str:
        """For a terminal."""
        found = (
            f"BLEU {self.bleu.score:.1f}" if self.bleu else f"exact match {self.exact_match:.1%}"
        )
        if self.alignment_error_rate is not None:
            found += f", alignment error rate {self.alignment_error_rate:.3f}"
        return f"{self.model}: {found} on the test split, {self.seconds / 60:.1f} minutes"


@dataclasses.dataclass(frozen=True)
class Published:
    """A model's number in a paper.

    Attributes:
      model: the `Row.model` it stands beside.
      value: as printed; None where the paper prints none.
      measure: what it is; "BLEU", "AER" and the other columns of the report are set beside it.
      data: what it was measured on.
      source: paper and table.
    """

    model: str
    value: str | None
    measure: str
    data: str
    source: str


def markdown(
    rows: Sequence[Row],
    *,
    title: str,
    task: str,
    published: Sequence[Published] = (),
    command: str,
    where: str,
    figures: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The whole report.

    Args:
      rows: the models.
      title: of the report.
      task: a sentence or two: data, direction, split, how the search was done.
      published: the papers' numbers.
      command: what to type to get this report again.
      where: the table of where the rows were measured.
      figures: what is said of each, by its file.
      notes: paragraphs to end the results with.

    Raises:
      ValueError: no rows.
    """
    if not rows:
        raise ValueError("there is nothing to report; give at least one row")
    parts = [f"# {title}", f"**{answer(rows)}**", task, results(rows)]
    signatures = dict.fromkeys(row.bleu.signature for row in rows if row.bleu)
    if signatures:
        parts.append("BLEU is sacrebleu's: " + ", ".join(f"`{name}`" for name in signatures) + ".")
    parts += notes
    for file, said in (figures or {}).items():
        parts.append(f"![{said}]({file})\n\n{said}")
    if published:
        parts += ["## Beside the papers", _PAPERS, _beside(rows, published)]
    parts += ["## Where", f"    {command}", where]
    return "\n\n".join(parts) + "\n"


def answer(rows: Sequence[Row]) -> str:
    """Every model's test score, BLEU where there is one, the best first."""
    bleu = any(row.bleu for row in rows)
    found = {row.model: _bleu(row) if bleu else row.exact_match for row in rows}
    scores = {model: x for model, x in found.items() if x is not None}
    if not scores:
        return "No test score was measured."
    measure, form = ("BLEU", ".1f") if bleu else ("exact match", ".1%")
    best, *others = sorted(scores, key=lambda model: -scores[model])
    said = [f"{best} reaches {scores[best]:{form}} {measure}"]
    return ", ".join(said + [f"{model} {scores[model]:{form}}" for model in others]) + "."


def _bleu(row: Row) -> float | None:
    return None if row.bleu is None else row.bleu.score


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("model", lambda row: row.model),
    ("parameters", lambda row: f"{row.parameters:,}"),
    ("steps", lambda row: f"{row.steps:,}"),
    ("minutes", lambda row: f"{row.seconds / 60:.1f}"),
    ("tokens/s", lambda row: _number(row.tokens_per_second, ",.0f")),
    ("validation perplexity", lambda row: _number(row.perplexity, ".2f")),
    ("BLEU", lambda row: _number(_bleu(row), ".1f")),
    ("brevity penalty", lambda row: f"{row.bleu.brevity_penalty:.3f}" if row.bleu else ""),
    ("exact match", lambda row: _number(row.exact_match, ".1%")),
    ("AER", lambda row: _number(row.alignment_error_rate, ".3f")),
)


def _number(x: float | None, form: str) -> str:
    return "" if x is None else format(x, form)


def results(rows: Sequence[Row]) -> str:
    """A line a model; columns that no row fills are left out."""
    cells = {name: [write(row) for row in rows] for name, write in _COLUMNS}
    filled = {name: some for name, some in cells.items() if any(some)}
    return markdown_table(list(filled), list(zip(*filled.values(), strict=True)))


def _beside(rows: Sequence[Row], published: Sequence[Published]) -> str:
    """A line a published number, and one for each model without: its paper column stays blank."""
    here = {row.model: row for row in rows}
    without = [
        Published(model, None, "", "", "")
        for model in here
        if model not in {entry.model for entry in published}
    ]
    cells = [
        [
            entry.model,
            _reached(here.get(entry.model), entry.measure),
            entry.value or "",
            entry.measure,
            entry.data,
            entry.source,
        ]
        for entry in (*published, *without)
    ]
    return markdown_table(["model", "here", "paper", "measure", "paper's data", "source"], cells)


def _reached(row: Row | None, measure: str) -> str:
    writers = dict(_COLUMNS)
    return writers[measure](row) if row is not None and measure in writers else ""


_PAPERS = (
    "The papers' numbers are of their own data, vocabularies and machines; they are here for the"
    " order of the models and the distances between them. Blank: the paper prints no number."
)
