"""The results of `length_effect` by length: where each model begins to fail, table and figure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from attnlab.runs import figure_files
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import FILL, GRID, MODEL_TITLES, MODELS, MUTED
from attnlab.runs.report import grouped
from attnlab.runs.units import spread
from attnlab.training.study import Row

__all__ = ["answer", "by_length", "figure"]

ENOUGH = 0.9  # the share of words without an error that counts as enough
MEASURES = ("words right", "symbols right")


def _scores(rows: Sequence[Row], measure: str) -> dict[str, dict[int, list[float]]]:
    """The scores of all seeds, by model and length; lengths rise."""
    ordered = sorted(rows, key=lambda row: int(row.evaluated))
    return {
        model: {
            length: [row.scores[measure] for row in seeds]
            for length, seeds in grouped(some, lambda row: int(row.evaluated)).items()
        }
        for model, some in grouped(ordered, lambda row: row.cell["model"]).items()
    }


def answer(rows: Sequence[Row]) -> str:
    """The longest words of which, and of all shorter ones, each model has `ENOUGH` right."""
    said = []
    for model, by_length in _scores(rows, "words right").items():
        means = ((length, statistics.fmean(some)) for length, some in by_length.items())
        enough = list(itertools.takewhile(lambda pair: pair[1] >= ENOUGH, means))
        longest = enough[-1][0] if enough else 0
        tested = ", the longest" if len(enough) == len(by_length) else ""
        said.append(f"{longest} ({MODEL_TITLES[model]}{tested})")
    return f"longest words of which {ENOUGH:.0%} are right, in symbols: {', '.join(said)}"


def by_length(rows: Sequence[Row]) -> str:
    """A line for each length, a column for each measure of each model."""
    columns = {
        f"{MODEL_TITLES[model]}: {measure}": scores
        for measure in MEASURES
        for model, scores in _scores(rows, measure).items()
    }
    lengths = sorted({int(row.evaluated) for row in rows})
    lines = [
        [str(n), *(spread(x[n], ".1%") if n in x else "" for x in columns.values()), ""]
        for n in lengths
    ]
    return markdown_table(["symbols", *columns, "paper"], lines)


def figure(rows: Sequence[Row], *, longest: int) -> Figure:
    """Both measures over length, a line per model; shaded: longer than any word in training."""
    with figure_files.style():
        found = Figure(figsize=(8.2, 3.4), layout="constrained")
        panels = found.subplots(1, len(MEASURES), sharex=True, sharey=True)
        last = max(int(row.evaluated) for row in rows)
        for axes, measure in zip(panels, MEASURES, strict=True):
            for model, scores in _scores(rows, measure).items():
                (color, marker), seeds = MODELS[model], scores.values()
                axes.plot(
                    list(scores), [*map(statistics.fmean, seeds)], color=color, marker=marker,
                    markersize=5, linewidth=1.6, label=MODEL_TITLES[model], clip_on=False,
                )  # fmt: skip
                axes.vlines(list(scores), [*map(min, seeds)], [*map(max, seeds)], color=color)
            if last > longest:
                axes.axvspan(longest + 0.5, last + 1, color=FILL, linewidth=0, zorder=0)
                axes.text(longest + 0.8, 0.45, "longer than\nin training", color=MUTED, fontsize=8)
            axes.set_title(measure)
            axes.set_xlabel("length of the source (symbols)")
            axes.grid(axis="y", color=GRID, linewidth=0.7)
            axes.set_axisbelow(True)
        panels[0].set_xlim(0, last + 1)
        panels[0].set_ylim(0, 1.03)
        panels[0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))
        handles, labels = panels[0].get_legend_handles_labels()
        found.legend(handles, labels, loc="outside upper right", ncols=2, edgecolor="none")
    return found
