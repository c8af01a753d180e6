"""The row of a training, and the report: scores over seeds, and what decides between two models."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from attnlab.runs import figure_files, intervals
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import GRID, SERIES
from attnlab.runs.report import SoFar, document, grouped
from attnlab.runs.units import spread

__all__ = ["Row", "answer", "figure", "markdown"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One training.

    Attributes:
      start: "tuned", "frozen" or "scratch".
      pretraining: title of the pre-training; "" of a model from scratch.
      seed: seed of the training.
      parameters: number of parameters of the model.
      step: number of the step with the smallest loss of the dev examples, whose parameters are
        tested.
      seconds: time of the training, with compilation and validation.
      scores: shares of the test examples by measure; the first is the task's own.
    """

    start: str
    pretraining: str
    seed: int
    parameters: int
    step: int
    seconds: float
    scores: dict[str, Any]

    @property
    def title(self) -> str:
        """The name in reports."""
        return f"{self.start}: {self.pretraining}" if self.pretraining else self.start

    def line(self) -> str:
        """The row as a line for the terminal."""
        return ", ".join(f"{name} {x:.1%}" for name, x in self.scores.items())


def by_title(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each model, one per seed."""
    return grouped(rows, lambda row: row.title)


def measure_of(rows: Sequence[Row]) -> str:
    """The name of the task's own measure."""
    return next(iter(rows[0].scores))


def scores_of(rows: Sequence[Row], measure: str | None = None) -> list[float]:
    """The scores of some rows by one measure; None = the task's own."""
    name = measure or measure_of(rows)
    return [row.scores[name] for row in rows]


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far one model is above another, by the seeds that both have.

    Attributes:
      gaps: difference of the scores, by seed.
      comparisons: number of gaps that are looked at together.
    """

    gaps: tuple[float, ...]
    comparisons: int

    @property
    def mean(self) -> float:
        """The mean gap."""
        return statistics.fmean(self.gaps)

    @property
    def few(self) -> bool:
        """Whether there are too few seeds to decide anything."""
        return len(self.gaps) < intervals.FEWEST

    @property
    def sign(self) -> int:
        """1 or −1 where the seeds decide which model is better, else 0."""
        return intervals.sign(self.gaps, self.comparisons)

    def __str__(self) -> str:
        mean = f"{100 * self.mean:+.1f}"
        if self.few:
            return f"{mean} points (fewer than {intervals.FEWEST} seeds decide nothing)"
        return f"{mean} ± {100 * intervals.half_width(self.gaps, self.comparisons):.1f} points"


def gaps_of(rows: Sequence[Row]) -> dict[tuple[str, str], Gap]:
    """The gaps of any two models that have a seed in common, either way around."""
    scores = {
        title: dict(zip([row.seed for row in some], scores_of(some), strict=True))
        for title, some in by_title(rows).items()
    }
    found = {}
    for a, b in itertools.permutations(scores, 2):
        if both := sorted(scores[a].keys() & scores[b].keys()):
            found[a, b] = tuple(scores[a][seed] - scores[b][seed] for seed in both)
    return {pair: Gap(gaps, len(found) // 2) for pair, gaps in found.items()}


def answer(rows: Sequence[Row]) -> str:
    """Whether pre-training helps, and which one."""
    models, measure, gaps = by_title(rows), measure_of(rows), gaps_of(rows)
    tuned = [title for title in models if title.startswith("tuned")]
    beside = {title: gaps[title, "scratch"] for title in tuned if (title, "scratch") in gaps}
    if beside:
        best = max(beside, key=lambda title: beside[title].mean)
        found = beside[best]
        verdict = {1: "Pre-training helps", -1: "Pre-training harms"}.get(found.sign)
        verdict = verdict or ("Not decided" if found.few else "No difference is seen")
        said = [f"{verdict}: {_name(best)} is {found} of {measure} from scratch"]
    else:
        said = ["; ".join(f"{t}: {_written(some)} {measure}" for t, some in models.items())]
    pairs = {(a, b): gaps[a, b] for a, b in itertools.combinations(tuned, 2) if (a, b) in gaps}
    decided = {pair: found for pair, found in pairs.items() if found.sign}
    said += [f"{_name(a)} is {found} from {_name(b)}" for (a, b), found in decided.items()]
    if pairs and not decided:
        few = f": fewer than {intervals.FEWEST} seeds decide nothing"
        few *= all(found.few for found in pairs.values())
        said.append(f"between the pre-trainings no difference is decided{few}")
    return "; ".join(said) + "."


def figure(rows: Sequence[Row]) -> Figure:
    """The score of every training, a line a model: a mark a seed, a bar at the mean."""
    models = by_title(rows)
    with figure_files.style():
        found = Figure(figsize=(7.2, 0.8 + 0.42 * len(models)), layout="constrained")
        axes = found.subplots()
        for i, some in enumerate(models.values()):
            color, marker = SERIES[("tuned", "frozen", "scratch").index(some[0].start)]
            scores = [100 * score for score in scores_of(some)]
            axes.plot(scores, [i] * len(some), marker, color=color, markersize=5, alpha=0.7)
            axes.plot([statistics.fmean(scores)] * 2, [i - 0.3, i + 0.3], color=color)
        axes.set_yticks(range(len(models)), list(models))
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_xlabel(f"{measure_of(rows)}, test (%)")
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    return found


def markdown(told: SoFar[Row], text: str) -> str:
    """The whole report.

    Args:
      told: run as far as it is done.
      text: words for the examples and the steps.
    """
    rows = told.rows
    return document(
        "# Fine-tuning of BERT",
        f"**{answer(rows)}**",
        f"{text} The parameters with the smallest loss of the dev examples are tested. `tuned`"
        " trains all of a pre-trained model, `frozen` a classifier on its states, `scratch` a model"
        " of the same sizes that was not pre-trained. Scores are mean ± standard deviation over"
        " seeds. A gap is that of the scores of the same seeds, ± half of its 95 % interval"
        " (Student's t; of several gaps all at once); it is *decided* where it is more than that.",
        _results(rows),
        "![Scores of all seeds](scores.svg)",
        told.missing,
        *_gaps(rows),
        told.origin,
    )


def _name(title: str) -> str:
    return title.partition(": ")[2] or title


def _written(rows: Sequence[Row], measure: str | None = None) -> str:
    return spread(scores_of(rows, measure), ".1%")


def _results(rows: Sequence[Row]) -> str:
    names = list(rows[0].scores)
    cells = [
        [
            title,
            f"{len(some)}",
            *(_written(some, name) for name in names),
            f"{statistics.fmean(row.step for row in some):.0f}",
            f"{statistics.fmean(row.seconds for row in some) / 60:.1f}",
        ]
        for title, some in by_title(rows).items()
    ]
    return markdown_table(["model", "seeds", *names, "best at step", "minutes"], cells)


def _gaps(rows: Sequence[Row]) -> Iterator[str]:
    gaps = gaps_of(rows)
    cells = []
    for a, b in itertools.combinations(by_title(rows), 2):
        if (found := gaps.get((a, b))) is not None:
            decided = "decided" if found.sign else "not decided"
            cells.append([f"{a} − {b}", str(len(found.gaps)), str(found), decided])
    if cells:
        yield "## Between two models"
        yield markdown_table(["gap", "seeds", measure_of(rows), ""], cells)
