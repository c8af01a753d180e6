"""The row of a training, and the report: our tables, and Long Range Arena's beside them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnlab.attentions import parse
from attnlab.runs import published
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document, grouped
from attnlab.runs.units import human, spread
from experiments.long_range.settings import PRESETS, Settings

__all__ = ["Row", "answer", "markdown"]

PUBLISHED = Path(__file__).parents[1] / "published"
_COLUMN = {"listops": "ListOps", "text": "Text", "retrieval": "Retrieval"}
# The row of the paper that is nearest to an attention, by the first part of its name.
_PAPER = {"exact": "Transformer", "window": "Local Attention", "lsh": "Reformer"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One training.

    Attributes:
      task: name of the task.
      mechanism: name of the attention.
      seed: seed of the training.
      parameters: number of parameters that are trained.
      step: number of the step with the smallest validation loss, whose parameters are tested.
      seconds: time of the training, with compilation and validation.
      steps_per_second: median rate between rows of the curve.
      memory: bytes that a step needs.
      accuracy: share of the test split that is classified right, 0 to 1.
      majority: share of the test split's most frequent class.
      validation: means of the validation split, by name.
    """

    task: str
    mechanism: str
    seed: int
    parameters: int
    step: int
    seconds: float
    steps_per_second: float
    memory: int
    accuracy: float
    majority: float
    validation: dict[str, Any]

    def line(self) -> str:
        """The row as a line for the terminal."""
        return (
            f"{self.accuracy:.1%} right ({self.majority:.1%} by the most frequent class), "
            f"{self.steps_per_second:.2f} steps/s"
        )


def _groups(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each task and mechanism, one per seed."""
    return grouped(rows, lambda row: (row.task, row.mechanism))


def answer(rows: Sequence[Row]) -> str:
    """The accuracy of every mechanism by task, the best first."""
    found = _groups(rows)
    said = []
    for task in dict.fromkeys(row.task for row in rows):
        means = {
            mechanism: [row.accuracy for row in some]
            for (of, mechanism), some in found.items()
            if of == task
        }
        best = sorted(means, key=lambda name: -statistics.fmean(means[name]))
        listed = ", ".join(f"{name} {spread(means[name], '.1%')}" for name in best)
        said.append(f"{task}: {listed}")
    return "; ".join(said) + "."


def markdown(told: SoFar[Row], settings: Settings) -> str:
    """The whole report."""
    rows = told.rows
    return document(
        "# Classification over long inputs",
        f"**{answer(rows)}**",
        f"Inputs of at most {settings.length} tokens; {settings.num_layers} layers, "
        f"{settings.width} wide, with {settings.num_heads} heads; {settings.steps:,} steps of "
        f"{settings.batch_size}; the {'mean' if settings.pooling == 'mean' else 'first'} state is"
        " classified. The most frequent class would have the share *majority*. Memory is that of a"
        " training step, by the compiler; ± is the standard deviation over seeds.",
        _results(rows),
        "![Loss over steps](curve.svg)",
        told.missing,
        "## Beside Long Range Arena",
        "Tay et al. 2020, Tables 1 and 2: accuracy in percent, and speed over that of exact"
        " attention, which in the paper is of byte texts of 1K to 4K tokens on 4 × 4 TPUs v3."
        f" {_sizes(settings)} The examples are others, so the order of the rows can be compared,"
        " not the numbers. Its *Reformer* is another function than LSH attention:"
        " logits multiplied by √d, no masks, keys that are not normalized, a constant hash key, and"
        " heads reshaped without a transpose. Its local attention sees blocks of 20 to 50 tokens.",
        _beside(rows),
        told.origin,
    )


def _sizes(settings: Settings) -> str:
    """What the paper's models of ListOps are, beside these."""
    names = ("length", "num_layers", "width")
    paper, ours = [PRESETS["gpu"][x] for x in names], [getattr(settings, x) for x in names]
    words = "{:,} tokens and {} layers, {} wide"
    here = ", as here" if ours == paper else f", here {words.format(*ours)}"
    return f"On ListOps it has {words.format(*paper)}{here}."


def _results(rows: Sequence[Row]) -> str:
    header = ["task", "attention", "seeds", "accuracy", "majority", "steps/s", "memory of a step"]
    header += ["parameters", "minutes"]
    cells = [
        [
            task,
            mechanism,
            f"{len(some)}",
            spread([row.accuracy for row in some], ".1%"),
            f"{some[0].majority:.1%}",
            f"{statistics.median(row.steps_per_second for row in some):.2f}",
            human(some[0].memory),
            f"{some[0].parameters:,}",
            f"{statistics.fmean(row.seconds for row in some) / 60:.1f}",
        ]
        for (task, mechanism), some in _groups(rows).items()
    ]
    return markdown_table(header, cells)


def _beside(rows: Sequence[Row]) -> str:
    scores = published.read(PUBLISHED / "lra2020_table1.csv")
    speeds = published.read(PUBLISHED / "lra2020_table2.csv")
    found = _groups(rows)
    cells = []
    for (task, mechanism), some in found.items():
        layer, *others = parse(mechanism)
        name = None if others else _PAPER.get(layer.kind)
        printed = scores.cells[name].get(_COLUMN[task]) if name else None
        ratios = [
            speeds.ratio(name, "Transformer", f"steps_per_s_{length}")
            for length in ("1K", "4K")
            if name
        ]
        exact = found.get((task, "exact"))
        rate = statistics.median(row.steps_per_second for row in some)
        ours = rate / statistics.median(row.steps_per_second for row in exact) if exact else None
        cells.append(
            [
                task,
                mechanism,
                spread([100 * row.accuracy for row in some], ".1f"),
                name or "",
                "" if printed is None else f"{printed:.2f}",
                "" if ours is None else f"{ours:.2f}",
                " to ".join(f"{ratio:.2f}" for ratio in ratios if ratio is not None),
            ]
        )
    header = ["task", "attention", "ours", "paper's row", "paper", "our speed", "paper's speed"]
    return markdown_table(header, cells)
