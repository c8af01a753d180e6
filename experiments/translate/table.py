"""The tables of a report: scores of the models."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document, grouped
from attnlab.runs.units import PLUS_MINUS, spread
from attnlab.training.bleu import Bleu, Bucket

__all__ = ["Row", "markdown", "results"]


@dataclasses.dataclass(frozen=True)
class Row:
    """The results of one training. None where a score was not measured.

    Attributes:
      model: title of the model.
      parameters: number of parameters that are trained.
      steps: number of training steps.
      seconds: time of the training, with compilation and validation.
      tokens_per_second: speed of the training, in target tokens.
      perplexity: perplexity on the validation split, exp of nats per token.
      bleu: BLEU on the test split.
      exact_match: share of the test split that is translated exactly, 0 to 1.
      alignment_error_rate: alignment error rate on the test split, 0 to 1.
      attention_entropy: mean entropy of the attention weights on the test split, in nats.
      gradient_variance: variance of the gradient over batches, the median of the validations.
      buckets: scores by the length of the source.
      seed: seed of the training.
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
    attention_entropy: float | None = None
    gradient_variance: float | None = None
    buckets: tuple[Bucket, ...] = ()
    seed: int = 0

    def line(self) -> str:
        """The row as a line for the terminal."""
        found = (
            f"BLEU {self.bleu.score:.1f}" if self.bleu else f"exact match {self.exact_match:.1%}"
        )
        if self.alignment_error_rate is not None:
            found += f", alignment error rate {self.alignment_error_rate:.3f}"
        return f"{self.model}: {found} on the test split, {self.seconds / 60:.1f} minutes"


def markdown(
    told: SoFar[Row],
    *,
    task: str,
    figures: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The whole report.

    Args:
      told: run as far as it is done.
      task: a sentence or two on data, direction, split and search.
      figures: caption of each figure, by the name of its file.
      notes: paragraphs to end the results with.

    Raises:
      ValueError: there are no rows.
    """
    rows = told.rows
    if not rows:
        raise ValueError("there is nothing to report; give at least one row")
    parts = ["# Translation", f"**{answer(rows)}**", task, results(rows)]
    signatures = dict.fromkeys(row.bleu.signature for row in rows if row.bleu)
    if signatures:
        parts.append("BLEU is sacrebleu's: " + ", ".join(f"`{name}`" for name in signatures) + ".")
    parts += notes
    for file, said in (figures or {}).items():
        parts.append(f"![{said}]({file})\n\n{said}")
    return document(*parts, told.origin)


def answer(rows: Sequence[Row]) -> str:
    """The test score of every model, BLEU if there is any, the best first."""
    measure = "BLEU" if any(row.bleu for row in rows) else "exact match"
    read, form = _SCORES[measure]
    scores = {model: _values(some, read) for model, some in by_model(rows).items()}
    scores = {model: values for model, values in scores.items() if values}
    if not scores:
        return "No test score was measured."
    best, *others = sorted(scores, key=lambda model: -statistics.fmean(scores[model]))
    said = [f"{best} reaches {spread(scores[best], form)} {measure}"]
    said += [f"{model} {spread(scores[model], form)}" for model in others]
    return ", ".join(said) + "."


def by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each model, one per seed."""
    return grouped(rows, lambda row: row.model)


def _bleu(row: Row) -> float | None:
    return None if row.bleu is None else row.bleu.score


_Score = Callable[[Row], float | None]
_SCORES: dict[str, tuple[_Score, str]] = {
    "validation perplexity": (lambda row: row.perplexity, ".2f"),
    "BLEU": (_bleu, ".1f"),
    "exact match": (lambda row: row.exact_match, ".1%"),
    "AER": (lambda row: row.alignment_error_rate, ".3f"),
    "entropy of the weights": (lambda row: row.attention_entropy, ".2f"),
    "variance of the gradient": (lambda row: row.gradient_variance, ".2g"),
}


def _values(rows: Sequence[Row], read: _Score) -> list[float]:
    return [x for row in rows if (x := read(row)) is not None]


def _score(name: str, rows: Sequence[Row]) -> str:
    """One cell of a table: blank if no row has the score."""
    read, form = _SCORES[name]
    values = _values(rows, read)
    return spread(values, form) if values else ""


def results(rows: Sequence[Row]) -> str:
    """A line per training and, with several seeds, one per model; blank columns are left out."""

    def each(name: str) -> list[str]:
        return [_score(name, [row]) for row in rows]

    cells = {
        "model": [row.model for row in rows],
        "seed": [str(row.seed) for row in rows] if len({row.seed for row in rows}) > 1 else [],
        "parameters": [f"{row.parameters:,}" for row in rows],
        "steps": [f"{row.steps:,}" for row in rows],
        "minutes": [f"{row.seconds / 60:.1f}" for row in rows],
        "tokens/s": [
            "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}" for row in rows
        ],
        "validation perplexity": each("validation perplexity"),
        "BLEU": each("BLEU"),
        "brevity penalty": [f"{row.bleu.brevity_penalty:.3f}" if row.bleu else "" for row in rows],
        **{name: each(name) for name in list(_SCORES)[2:]},
    }
    models = by_model(rows)
    if max(map(len, models.values())) == 1:
        return _filled(cells)
    means = {
        "model": list(models),
        "seeds": [str(len(some)) for some in models.values()],
        **{name: [_score(name, some) for some in models.values()] for name in _SCORES},
    }
    return "\n\n".join([_filled(cells), f"Means over the seeds. {PLUS_MINUS}", _filled(means)])


def _filled(cells: Mapping[str, Sequence[str]]) -> str:
    filled = {name: some for name, some in cells.items() if any(some)}
    return markdown_table(list(filled), list(zip(*filled.values(), strict=True)))
