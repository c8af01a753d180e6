"""The figure of `duplication`: accuracy over the rounds of evaluation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from matplotlib.figure import Figure

from attnlab.runs import figure_files
from attnlab.runs.intervals import half_width
from attnlab.runs.palette import GRID, SERIES
from experiments.duplication.cells import Cells
from experiments.duplication.verdict import HASHED

__all__ = ["figure"]


def figure(tables: Mapping[int, Cells]) -> Figure:
    """A panel a task, a line for each model of the table.

    Args:
      tables: accuracies by the number of symbols in a word.
    """
    with figure_files.style():
        found = Figure(figsize=(1.5 + 3.9 * len(tables), 3.9), layout="constrained")
        panels = found.subplots(1, len(tables), sharey=True, squeeze=False)[0]
        for axes, (word, cells) in zip(panels, tables.items(), strict=True):
            columns = cells.evaluated()[::-1]
            for (color, marker), name in zip(SERIES, ("shared", *HASHED), strict=False):
                values = [cells.of(name, column) for column in columns]
                known = [(i, x) for i, x in enumerate(values) if x]
                if not known:
                    continue
                at = [i for i, _ in known]
                means = [statistics.fmean(x) for _, x in known]
                widths = [half_width(x) if len(x) > 1 else 0.0 for _, x in known]
                axes.errorbar(
                    at, means, widths, color=color, marker=marker, markersize=5, linewidth=1.6,
                    capsize=2, label=f"trained with {name}", clip_on=False,
                )  # fmt: skip
            axes.set_xticks(range(len(columns)), columns)
            axes.set_xlabel("evaluated with")
            axes.set_title(f"Words of {word} symbols")
            axes.grid(axis="y", color=GRID, linewidth=0.7)
            axes.set_axisbelow(True)
        panels[0].set_ylim(0, 103)
        panels[0].set_ylabel("accuracy, second half (%)")
        handles, labels = panels[0].get_legend_handles_labels()
        found.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=min(4, 2 * len(tables)),
            edgecolor="none",
        )
    return found
