"""Drawings of a translation model: where it looks, and how it fares as sentences grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike

from attnlab.runs import figure_files
from attnlab.runs.palette import KNOWN, MUTED, of_lines
from attnlab.training.alignment import Link
from attnlab.training.bleu import RESAMPLINGS, Bucket

_SIZE = 8  # points, of the largest token
# Inches: what a README shows, the largest cell, around a panel, from a token to its cell, the words
# source and target, and the color bar, which is at the top.
_WIDTH, _CELL, _MARGIN, _GAP, _NAME, _BAR = 8.2, 0.17, 0.2, 0.08, 0.2, 1.2
_PIXELS = 8  # of a cell's side: viewers blur the edges of an image's pixels
_FEW = 10  # sentences: a measure of fewer is noise


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The weights of one sentence.

    Attributes:
      source: tokens of the source, S of them, as the tokenizer's pieces or single characters.
      target: tokens of the target, T of them.
      weights: attention weights [T, S], rows of the step that predicts each target token.
      title: title above the panel.
      known: links to mark, where they are known.
    """

    source: Sequence[str]
    target: Sequence[str]
    weights: ArrayLike
    title: str = ""
    known: AbstractSet[Link] = frozenset()


def alignment_figure(
    alignments: Sequence[Alignment], *, columns: int | None = None, title: str = ""
) -> Figure:
    """A panel a sentence: source to the right, target downwards, black 0 and white 1.

    The look is Bahdanau 2014's, Figure 3. All cells have one size.

    Args:
      alignments: sentences.
      columns: number of panels side by side, whose cells become as small as need be; None = as
        many as fit a README.
      title: title above the figure.

    Raises:
      ValueError: weights that are not [T, S].
    """
    for i, alignment in enumerate(alignments):
        wanted = len(alignment.target), len(alignment.source)
        if np.shape(alignment.weights) != wanted:
            raise ValueError(
                f"alignment {i}: weights must be [T, S] = {list(wanted)}, got"
                f" {list(np.shape(alignment.weights))}; give the rows and columns of its tokens"
            )
    panels = [_Panel.of(x, first=i % (columns or 1) == 0) for i, x in enumerate(alignments)]
    if columns is None:
        rows = _rows(panels)
    else:
        rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    with figure_files.style():
        return _draw(rows, title)


@dataclasses.dataclass(frozen=True)
class _Panel:
    """A sentence, and the inches around its cells that labels and title take."""

    alignment: Alignment
    down: list[str]
    across: list[str]
    left: float
    above: float

    @classmethod
    def of(cls, alignment: Alignment, *, first: bool) -> _Panel:
        """Args are a sentence, and whether its target is not beside the panel to the left."""
        down = readable(alignment.target) if first else [""] * len(alignment.target)
        across = readable(alignment.source)
        left = _NAME + max(map(_inches, down)) + _GAP if first else 0.0
        above = _NAME + max(map(_inches, across)) + _GAP + 0.25 * bool(alignment.title)
        return cls(alignment, down, across, left, above)

    def width(self, cell: float) -> float:
        cells = max(cell * len(self.across), 1.2 * _inches(self.alignment.title))
        return self.left + cells + _MARGIN


def _rows(panels: Sequence[_Panel]) -> list[list[_Panel]]:
    """As many panels in a row as fit."""
    rows: list[list[_Panel]] = [[]]
    for panel in panels:
        width = sum(one.width(_CELL) for one in [*rows[-1], panel])
        if rows[-1] and width > _WIDTH:
            rows.append([])
        rows[-1].append(panel)
    return rows


def _draw(rows: Sequence[Sequence[_Panel]], title: str) -> Figure:
    cell = min(_CELL, *map(_cell, rows))
    top = 0.55
    heights = [max(x.above + cell * len(x.down) for x in row) + _MARGIN for row in rows]
    widths = [sum(panel.width(cell) for panel in row) for row in rows]
    width = max(*widths, 2 * _MARGIN + 1.15 * _inches(title) + 2 * _BAR)
    height = top + sum(heights)
    figure = Figure(figsize=(width, height))

    def place(left: float, above: float, wide: float, tall: float) -> Any:
        """Axes whose top left corner is that many inches from the figure's."""
        return figure.add_axes(
            (left / width, 1 - (above + tall) / height, wide / width, tall / height)
        )

    start = top
    for row, tall in zip(rows, heights, strict=True):
        left, above = 0.0, max(panel.above for panel in row)
        for panel in row:
            cells = cell * len(panel.across), cell * len(panel.down)
            _fill(place(left + panel.left, start + above, *cells), panel, cell)
            left += panel.width(cell)
        start += tall
    bar = place(width - _BAR - _MARGIN, 0.2, _BAR, 0.08)
    scale = figure.colorbar(
        figure.axes[0].images[0], cax=bar, orientation="horizontal", ticks=[0, 0.5, 1]
    )
    bar.set_title("attention weight", fontsize=_SIZE, fontweight="normal", pad=2)
    bar.tick_params(labelsize=_SIZE)
    scale.outline.set(edgecolor=MUTED, linewidth=0.5)
    if title:
        figure.text(_MARGIN / width, 1 - 0.2 / height, title, va="center", parse_math=False)
    return figure


def _cell(row: Sequence[_Panel]) -> float:
    """The size of a cell with which a row fits."""
    room = _WIDTH - sum(panel.left + _MARGIN for panel in row)
    return room / sum(len(panel.across) for panel in row)


def _inches(text: str) -> float:
    """How long a label is."""
    font = FontProperties(size=_SIZE)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def _fill(axes: Any, panel: _Panel, cell: float) -> None:
    weights = np.asarray(panel.alignment.weights, float)
    size = min(_SIZE, 0.85 * 72 * cell)
    axes.imshow(
        np.kron(weights, np.ones((_PIXELS, _PIXELS))), cmap="gray", vmin=0, vmax=1, aspect="auto",
        interpolation="none", extent=(-0.5, len(panel.across) - 0.5, len(panel.down) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_xticks(range(len(panel.across)), panel.across)
    axes.set_yticks(range(len(panel.down)), panel.down)
    axes.tick_params(
        length=0, pad=3, labelsize=size, top=True, labeltop=True, bottom=False, labelbottom=False
    )
    for label in axes.get_xticklabels():
        label.set_rotation(90 if len(label.get_text()) > 1 else 0)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a $ is a $
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("source", color=MUTED, fontsize=_SIZE, loc="left", labelpad=3)
    if panel.left:
        axes.set_ylabel("target", color=MUTED, fontsize=_SIZE, loc="top", labelpad=3)
    axes.spines[:].set(visible=True, color=MUTED, linewidth=0.5)  # white cells end at the page
    axes.set_title(panel.alignment.title, fontsize=_SIZE + 1, parse_math=False)
    for t, s in sorted(panel.alignment.known):
        axes.add_patch(
            Rectangle((s - 0.5, t - 0.5), 1, 1, fill=False, edgecolor=KNOWN, linewidth=1)
        )


def readable(tokens: Sequence[str]) -> list[str]:
    """Tokens as labels.

    Of sentencepiece's pieces, those that begin a word lose their mark and the others that begin
    with a letter or digit get a dot. White space is drawn.

    >>> readable(["▁Ein", "▁Karate", "anzug", ".", "</s>"])
    ['Ein', 'Karate', '·anzug', '.', '</s>']
    >>> readable(list("3 May"))
    ['3', '␣', 'M', 'a', 'y']
    """
    pieces = any(token.startswith("▁") for token in tokens)
    shown = []
    for token in tokens:
        text = token.removeprefix("▁").replace(" ", "␣").replace("\n", "⏎") or "␣"
        inside = pieces and not token.startswith("▁") and text[0].isalnum()
        shown.append(f"·{text}" if inside else text)
    return shown


def length_figure(
    lines: Mapping[str, Sequence[Bucket]],
    *,
    measure: str = "BLEU",
    unit: str = "words",
    percent: bool = False,
) -> Figure:
    """A measure over the source's length, a line a model (Bahdanau 2014, Figure 2).

    Bars are the buckets' intervals. Below each bucket stands how many sentences it has; scores of
    fewer than 10 are hollow and have no bar.

    Args:
      lines: buckets of each model by its name, from `bleu.by_length`.
      measure: name of the scores.
      unit: unit of the length.
      percent: whether the scores are shares of 1.

    Raises:
      ValueError: models whose buckets differ.
    """
    groups = {name: [(b.title, b.count) for b in some] for name, some in lines.items()}
    first, *others = groups
    for name in others:
        if groups[name] != groups[first]:
            raise ValueError(
                f"{name} and {first} were measured on other sentences; give buckets of the same"
            )
    with figure_files.style():
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        looks = of_lines(list(lines))
        for i, (name, some) in enumerate(lines.items()):
            beside = 0.07 * (i - (len(lines) - 1) / 2)  # so that bars do not hide each other
            _scores(axes, beside, some, *looks[name], name)
        ticks = [f"{title}\nn = {count:,}" for title, count in groups[first]]
        axes.set_xticks(range(len(ticks)), ticks)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.5, len(ticks) - 0.5)
        shown = [b for some in lines.values() for b in some]
        ends = [(b.score, b.low, b.high)[: 3 if b.count >= _FEW else 1] for b in shown]
        axes.set_ylim(figure_files.limits([y for some in ends for y in some]))
        if percent:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))
        axes.set_xlabel(f"length of the source ({unit}); n sentences")
        axes.set_ylabel(measure)
        axes.grid(axis="y")
        handles, _ = axes.get_legend_handles_labels()
        if any(count >= _FEW for _, count in groups[first]):
            said = f"95 % of {RESAMPLINGS:,} resamplings"
            handles.append(Line2D([], [], linestyle="none", marker="|", markersize=11, color=MUTED,
                                  label=said))  # fmt: skip
        if any(count < _FEW for _, count in groups[first]):
            handles.append(
                Line2D(
                    [], [], linestyle="none", marker="o", markersize=5, color=MUTED,
                    markerfacecolor="white", label=f"n < {_FEW}",
                )
            )  # fmt: skip
        figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False)
    return figure


def _scores(axes: Any, beside: float, some: Sequence[Bucket], color: str, marker: str, name: str):
    """Draws one model: its line, and marks, hollow where sentences are few, else with a bar."""
    xs, scores = [i + beside for i in range(len(some))], [b.score for b in some]
    axes.plot(xs, scores, color=color, linewidth=1.6, label=name, marker=marker, markersize=5)
    for x, b in zip(xs, some, strict=True):
        if b.count < _FEW:
            axes.plot(
                x, b.score, linestyle="none", marker=marker, markersize=5, color=color,
                markerfacecolor="white", zorder=3,
            )  # fmt: skip
        else:
            axes.vlines(x, b.low, b.high, color=color, linewidth=1.0, alpha=0.8)
