"""The figure of a trained table: how far each row is from its base, in the paper and here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, INK, MUTED
from experiments.tables.verdicts import Gap

LOOKS = {  # color and marker by outcome; others are not drawn
    "holds": ("#009E73", "o"),
    "direction alone": ("#0072B2", "^"),
    "does not hold": ("#D55E00", "X"),
    "undecided": (MUTED, "s"),
}
_LETTER = 0.065  # inches, of a row's name; the title is larger


def gaps_figure(gaps: Sequence[tuple[Gap, str]], *, title: str, score: str) -> Figure:
    """A line for each row: the paper's gap, hollow, and ours ± half of its 95 % interval.

    Where all rows have the same gap in the paper, it is a dashed line.

    Args:
      gaps: gaps of the rows and their outcomes, of `LOOKS`, in the paper's order.
      title: title of the figure.
      score: words for the gaps, of which score and from which row.
    """
    names = [gap.row.splitlines() for gap, _ in gaps]
    longest, tallest = max(len(line) for name in names for line in name), max(map(len, names))
    with figure_files.style():
        width = min(8.2, max(4.6 + _LETTER * longest, 1.4 * _LETTER * len(title)))
        height = 1.6 + (0.06 + 0.16 * tallest) * len(gaps)
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=0.8)
        for name, (color, marker) in LOOKS.items():
            some = [(place, gap) for place, (gap, outcome) in enumerate(gaps) if outcome == name]
            if not some:
                continue
            # A single seed has no interval.
            widths = [gap.half_width if math.isfinite(gap.half_width) else 0 for _, gap in some]
            axes.errorbar(
                [gap.ours for _, gap in some], [place for place, _ in some], xerr=widths,
                fmt=marker, color=color, capsize=2, linewidth=1.4, label=f"ours: {name}",
            )  # fmt: skip
        papers = [float(gap.paper) for gap, _ in gaps]
        if len(papers) > 1 and len(set(papers)) == 1:
            axes.axvline(papers[0], color=INK, linewidth=0.8, linestyle="--", label="the paper")
        else:
            axes.plot(
                papers, range(len(gaps)), "o", markerfacecolor="none", markeredgecolor=INK,
                markersize=7, label="the paper",
            )  # fmt: skip
        axes.set_yticks(range(len(gaps)), [gap.row for gap, _ in gaps])
        axes.set_ylim(len(gaps) - 0.5, -0.5)
        axes.set_xlabel(score, color=MUTED, loc="right")
        figure.suptitle(title, x=0.01, ha="left", fontsize="large", fontweight="bold")
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=8)
    return figure
