"""The report of `length_effect`: where each model begins to fail, the figure and the table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from attnlab.runs import figure_files
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import FILL, GRID, MODEL_TITLES, MODELS, MUTED
from attnlab.runs.report import SoFar, document, grouped
from experiments.length_effect.measure import Row
from experiments.length_effect.settings import Settings

__all__ = ["answer", "figure", "markdown"]

ENOUGH = 0.9  # the share of words without an error that counts as enough
MEASURES = (("exact_match", "words without an error"), ("symbols_right", "symbols right"))
_LOOKS = {MODEL_TITLES[name]: look for name, look in MODELS.items()}


def by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each model."""
    return grouped(rows, lambda row: row.model)


def answer(rows: Sequence[Row]) -> str:
    """How long words may be for a model to write `ENOUGH` of them without an error."""
    said = []
    for model, some in by_model(rows).items():
        enough = list(itertools.takewhile(lambda row: row.exact_match >= ENOUGH, some))
        until = f"up to {enough[-1].length} symbols" if enough else "of no length"
        if len(enough) == len(some):
            until += ", the longest that were tested"
        said.append(f"{model} writes {ENOUGH:.0%} of words without an error {until}")
    return "; ".join(said) + "."


def figure(rows: Sequence[Row], *, longest: int) -> Figure:
    """Both measures over length, a line per model; shaded: longer than any word in training."""
    with figure_files.style():
        found = Figure(figsize=(9.0, 3.6), layout="constrained")
        panels = found.subplots(1, len(MEASURES), sharex=True, sharey=True)
        last = max(row.length for row in rows)
        for axes, (name, title) in zip(panels, MEASURES, strict=True):
            for model, some in by_model(rows).items():
                color, marker = _LOOKS[model]
                axes.plot(
                    [row.length for row in some],
                    [getattr(row, name) for row in some],
                    color=color,
                    marker=marker,
                    markersize=5,
                    linewidth=1.6,
                    label=model,
                    clip_on=False,
                )
            if last > longest:
                axes.axvspan(longest + 0.5, last + 1, color=FILL, linewidth=0, zorder=0)
                axes.text(longest + 0.8, 0.03, "longer than\nin training", color=MUTED, fontsize=8)
            axes.set_title(title)
            axes.set_xlabel("length of the source (symbols)")
            axes.grid(axis="y", color=GRID, linewidth=0.7)
            axes.set_axisbelow(True)
        panels[0].set_xlim(0, last + 1)
        panels[0].set_ylim(0, 1.03)
        panels[0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))
        handles, labels = panels[0].get_legend_handles_labels()
        found.legend(handles, labels, loc="outside upper right", ncols=2, edgecolor="none")
    return found


def markdown(told: SoFar[Row], settings: Settings) -> str:
    """The whole report."""
    rows = told.rows
    asks = {"copy": "to be written again", "reversal": "to be written backwards"}[settings.task]
    return document(
        "# A fixed vector against attention, by length",
        f"**{answer(rows)}**",
        f"Random words over {settings.num_symbols} symbols are {asks}. Both models have states of"
        f" {settings.hidden_features} numbers and saw the same {settings.steps:,} batches of"
        f" {settings.batch_size} words, of 1 to {settings.max_length} symbols each. RNNencdec has"
        f" the {settings.hidden_features} numbers of its encoder's last state to write a word"
        " from, however long it is; RNNsearch looks at the source again for every symbol."
        f" The test words ({settings.examples:,} of each length) are new, and are written by"
        " greedy search.",
        "![Both measures over the length of the source](by_length.svg)",
        _by_length(rows),
        told.missing,
        "Symbols right: 1 − edit distance / length. The last column is the paper's: it is blank"
        " because Figure 2 of Bahdanau et al. (2014) prints no numbers. It shows BLEU over sentence"
        " length, English to French: RNNenc falls dramatically as sentences grow, RNNsearch-50"
        " shows no deterioration even at 50 words or more. Here the task is synthetic, so the"
        " shapes of the curves compare, not their values.",
        "## Training",
        _training(rows),
        told.origin,
    )


def _by_length(rows: Sequence[Row]) -> str:
    models = by_model(rows)
    header = ["symbols", *(f"{model}: {said}" for _, said in MEASURES for model in models)]
    by_key = {(row.model, row.length): row for row in rows}
    cells = []
    for length in sorted({row.length for row in rows}):
        found = [by_key.get((model, length)) for model in models]
        shares = [getattr(row, name, None) for name, _ in MEASURES for row in found]
        cells.append([str(length), *("" if x is None else f"{x:.1%}" for x in shares), ""])
    return markdown_table([*header, "paper"], cells)


def _training(rows: Sequence[Row]) -> str:
    cells = [
        [model, f"{some[0].parameters:,}", f"{some[0].step:,}", f"{some[0].seconds / 60:.1f}"]
        for model, some in by_model(rows).items()
    ]
    return markdown_table(["model", "parameters", "best at step", "minutes"], cells)
