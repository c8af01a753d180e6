"""The figure of a trained table: how far each row is from its base, in the paper and here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, INK, MUTED, SERIES
from experiments.tables.verdicts import Gap

__all__ = ["gaps_figure"]

_LETTER = 0.065  # inches, of a row's name; the title is larger


def gaps_figure(gaps: Sequence[Gap], *, title: str, score: str) -> Figure:
    """A line for each row: the paper's gap, hollow, and ours ± half of its 95 % interval.

    Args:
      gaps: gaps of the rows, in the paper's order.
      title: title of the figure.
      score: words for the gaps, of which score and from which row.
    """
    color, marker = SERIES[2]
    names = [gap.row.splitlines() for gap in gaps]
    longest, tallest = max(len(line) for name in names for line in name), max(map(len, names))
    with figure_files.style():
        width = min(8.2, max(4.6 + _LETTER * longest, 1.4 * _LETTER * len(title)))
        height = 1.4 + (0.06 + 0.16 * tallest) * len(gaps)
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        heights = range(len(gaps))
        axes.axvline(0, color=INK, linewidth=0.8)
        several = [i for i in heights if math.isfinite(gaps[i].half_width)]
        single = [i for i in heights if i not in several]
        axes.errorbar(
            [gaps[i].ours for i in several], several, xerr=[gaps[i].half_width for i in several],
            fmt=marker, color=color, capsize=2, linewidth=1.4,
            label="ours, with the 95 % interval over seeds",
        )  # fmt: skip
        if single:
            axes.plot(
                [gaps[i].ours for i in single], single, marker, color=color,
                markerfacecolor="none", label="ours, of one seed, without an interval",
            )  # fmt: skip
        axes.plot(
            [gap.paper for gap in gaps], heights, "o", markerfacecolor="none",
            markeredgecolor=INK, markersize=7, label="the paper",
        )  # fmt: skip
        axes.set_yticks(heights, [gap.row for gap in gaps])
        axes.set_ylim(len(gaps) - 0.5, -0.5)
        axes.set_xlabel(score, color=MUTED, loc="right")
        figure.suptitle(title, x=0.01, ha="left", fontsize="large", fontweight="bold")
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)
    return figure
