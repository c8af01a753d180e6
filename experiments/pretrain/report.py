"""The row of a training, and the report: accuracies, what was masked, the curve."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document, grouped
from attnlab.runs.units import spread
from experiments.pretrain.settings import Settings

__all__ = ["Row", "answer", "by_title", "markdown"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One training.

    Attributes:
      objective: name of the objective.
      masking: percents of masked, same and random words.
      seed: seed of the training.
      parameters: number of parameters that are trained.
      step: number of the step with the smallest validation loss, whose parameters are kept.
      seconds: time of the training, with compilation and validation.
      validation: means of the held-out documents by name, all masked 80/10/10.
      shares: parts of the training's tokens that were predicted, masked, kept and replaced; part
        of the pairs whose segments follow each other.
    """

    objective: str
    masking: str
    seed: int
    parameters: int
    step: int
    seconds: float
    validation: dict[str, Any]
    shares: dict[str, Any]

    @property
    def title(self) -> str:
        """The name in reports."""
        return f"{self.objective}, {self.masking}"

    def line(self) -> str:
        """The row as a line for the terminal."""
        found = f"{self.validation['masked_accuracy']:.1%} of masked tokens right"
        if self.objective == "mlm_nsp":
            found += f", {self.validation['next_accuracy']:.1%} of pairs"
        return found


def by_title(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each objective and masking, one per seed."""
    return grouped(rows, lambda row: row.title)


def answer(rows: Sequence[Row]) -> str:
    """What each model learnt, in one sentence."""
    said = []
    for title, some in by_title(rows).items():
        words = f"{title}: {_mean(some, 'masked_accuracy', '.1%')} of masked tokens right"
        if some[0].objective == "mlm_nsp":
            words += f" and {_mean(some, 'next_accuracy', '.1%')} of pairs"
        said.append(words)
    return "; ".join(said) + "."


def markdown(told: SoFar[Row], settings: Settings, text: str) -> str:
    """The whole report.

    Args:
      told: run as far as it is done.
      settings: settings of the run.
      text: words for the text, its documents and its tokens.
    """
    rows = told.rows
    return document(
        "# BERT's pre-training",
        f"**{answer(rows)}**",
        f"{text} Pairs have {settings.length} tokens. Each training makes {settings.steps:,} steps"
        f" of {settings.batch_size} pairs. Accuracy is that of the held-out documents, which all"
        " have the same pairs and masks, 80/10/10; ± is the standard deviation over seeds. `mlm`"
        " reads the same pairs, and leaves the second loss out.",
        _results(rows),
        "![Loss over steps](curve.svg)",
        told.missing,
        "## What was masked",
        "Of the first batches: the share of tokens that is predicted, and what became of those. A"
        " random word that is the same one by chance counts as that. Rows are short, so that 15 %"
        " in whole tokens is seldom 15 %.",
        _masked(rows),
        told.origin,
    )


def _mean(rows: Sequence[Row], name: str, form: str) -> str:
    return spread([row.validation[name] for row in rows], form)


def _results(rows: Sequence[Row]) -> str:
    header = ["objective, masking", "seeds", "masked tokens right", "−log p", "pairs right"]
    header += ["parameters", "minutes"]
    cells = [
        [
            title,
            f"{len(some)}",
            _mean(some, "masked_accuracy", ".1%"),
            _mean(some, "masked_nll", ".3f"),
            _mean(some, "next_accuracy", ".1%") if some[0].objective == "mlm_nsp" else "",
            f"{some[0].parameters:,}",
            f"{statistics.fmean(row.seconds for row in some) / 60:.1f}",
        ]
        for title, some in by_title(rows).items()
    ]
    return markdown_table(header, cells)


def _masked(rows: Sequence[Row]) -> str:
    names = ("predicted", "mask", "same", "random", "next")
    header = ["masking", "predicted", "[MASK]", "same", "random", "second segment follows"]
    first = {row.masking: row for row in reversed(rows)}
    cells = [
        [masking, *(f"{row.shares[name]:.1%}" for name in names)]
        for masking, row in reversed(first.items())
    ]
    return markdown_table(header, cells)
