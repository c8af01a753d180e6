"""Quality against cost: a mark for each model, with the interval of its seeds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from attnlab.runs.intervals import FEWEST, half_width
from attnlab.runs.palette import MUTED


@dataclasses.dataclass(frozen=True)
class Mark:
    """A model of the figure.

    Attributes:
      look: color and marker.
      scores: scores of the seeds, in the unit of the figure.
      costs: number on each of the axes of costs.
    """

    look: tuple[str, str]
    scores: Sequence[float]
    costs: Sequence[float]


def frontier_figure(
    marks: Mapping[str, Mark], *, score: str, costs: Sequence[str], note: str = ""
) -> Figure:
    """The scores against each cost, a panel each.

    Args:
      marks: models by their names in the legend; one at least.
      score: name and unit of the scores.
      costs: name and unit of each cost.
      note: text behind what the marks are.
    """
    figure = Figure(figsize=(1.6 + 3.3 * len(costs), 3.2), layout="constrained")
    panels = list(figure.subplots(1, len(costs), squeeze=False, sharey=True).ravel())
    for i, (axes, cost) in enumerate(zip(panels, costs, strict=True)):
        for name, mark in marks.items():
            color, marker = mark.look
            size = 7 if marker == "*" else 5
            x = [mark.costs[i]]
            y = [statistics.fmean(mark.scores)]
            axes.plot(x, y, marker, color=color, markersize=size, label=name)
            axes.vlines(x, *interval(mark.scores), color=color, linewidth=1)
        axes.set_xlabel(cost)
        axes.set_xlim(0, 1.06 * max(mark.costs[i] for mark in marks.values()))
        axes.grid()
    panels[0].set_ylabel(score)
    columns = 4 if max(map(len, marks)) < 16 else len(costs)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=columns, frameon=False)
    text = f"Mean over seeds, 95 % interval.{note}"
    figure.supxlabel(text, x=0.01, ha="left", fontsize=7.5, color=MUTED)
    return figure


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """Both ends of the 95 % interval of a mean; the mean twice where seeds are too few."""
    mean = statistics.fmean(scores)
    width = half_width(scores) if len(scores) >= FEWEST else 0.0
    return mean - width, mean + width
