"""The figure of a trained table: how far each row is from its base, in the paper and here."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, INK, MUTED, SERIES
from experiments.tables.verdicts import Gap

__all__ = ["gaps_figure"]


def gaps_figure(gaps: Sequence[Gap], *, title: str, score: str) -> Figure:
    """A line for each row: the paper's gap, hollow, and ours with its spread.

    Args:
      gaps: gaps of the rows.
      title: title of the figure.
      score: name of the score.
    """
    color, marker = SERIES[2]
    with figure_files.style():
        figure = Figure(figsize=(6.4, 1.3 + 0.28 * len(gaps)), layout="constrained")
        axes = figure.subplots()
        heights = range(len(gaps))
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.errorbar(
            [gap.ours for gap in gaps], heights, xerr=[gap.spread for gap in gaps],
            fmt=marker, color=color, capsize=2, linewidth=1.4, label="ours, and its spread",
        )  # fmt: skip
        axes.plot(
            [gap.paper for gap in gaps], heights, "o", markerfacecolor="none",
            markeredgecolor=INK, markersize=7, label="the paper",
        )  # fmt: skip
        bases = {gap.against for gap in gaps}
        several = len(bases) > 1
        axes.set_yticks(
            heights, [f"{gap.row} (from {gap.against})" if several else gap.row for gap in gaps]
        )
        axes.invert_yaxis()
        axes.set_xlabel(f"{score}, gap" + f" from {bases.pop()}" * (not several), color=MUTED)
        axes.set_title(title)
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower right", ncols=2, edgecolor="none", fontsize=8)
    return figure
