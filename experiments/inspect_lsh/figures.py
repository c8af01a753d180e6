"""Figures of `inspect_lsh`: what rounds see, and what pairs are worth."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from attnlab.mechanisms import own
from attnlab.mechanisms.attentions import parse
from attnlab.runs import figure_files, palette
from attnlab.runs.palette import MUTED, SERIES
from experiments.inspect_lsh.beside import Beside
from experiments.inspect_lsh.quality import Line, Quality, by_line
from experiments.inspect_lsh.report import MeasuredRows, of_beside, of_quality
from experiments.inspect_lsh.settings import Settings

_TITLES = {
    "chunk_size": "Chunk size",
    "num_buckets": "Buckets",
    "window": "Window",
    "centering": "Centering",
    "merge": "Merge",
}


def draw(rows: MeasuredRows, settings: Settings) -> dict[str, Figure | None]:
    """The figures "quality" and "pairs", those that have rows."""
    quality, beside = of_quality(rows), of_beside(rows)
    with figure_files.style():
        return {
            "quality": _quality(quality, settings) if quality else None,
            "pairs": _pairs(quality, beside, settings) if quality and beside else None,
        }


def group_by_change(rows: Sequence[Quality]) -> dict[str, list[Line]]:
    """The lines by the field in which they differ from the base; each list begins with the base.

    Another chunk size changes the buckets and the window as well: such a line counts as chunk size.
    """
    base, *others = by_line(rows)
    of_field: dict[str, list[Line]] = {}
    for line in others:
        names = [f.name for f in dataclasses.fields(Line)]
        first = next(name for name in names if getattr(line, name) != getattr(base, name))
        of_field.setdefault(first, [base]).append(line)
    return of_field


def _quality(rows: Sequence[Quality], settings: Settings) -> Figure:
    """A row for each field that varies, a column for each measure; marks are means over heads."""
    lines = by_line(rows)
    base = next(iter(lines))
    columns = group_by_change(rows) or {"merge": [base]}
    measures = {
        "captured_mass": "attention mass captured",
        "top_k_recall": f"recall of the {settings.top_k} largest",
        "relative_error": "error of the context",
    }
    figure = Figure(figsize=(8.2, 1.6 * len(columns) + 0.8), layout="constrained")
    grid = figure.subplots(len(columns), 3, sharex=True, sharey="col", squeeze=False)
    for of_field, (name, some) in zip(grid, columns.items(), strict=True):
        for axes, measure in zip(of_field, measures, strict=True):
            axes.grid()
            for i, line in enumerate(some):
                beside = 2 ** (0.12 * (i - (len(some) - 1) / 2))  # side by side, on a log₂ axis
                xs = [row.num_hashes * beside for row in lines[line]]
                heads = [sum(row.per_head[measure], []) for row in lines[line]]
                means = [row.means[measure] for row in lines[line]]
                color, marker = SERIES[i % len(SERIES)]
                low, high = [*map(min, heads)], [*map(max, heads)]
                axes.vlines(xs, low, high, color=color, linewidth=0.9, alpha=0.7)
                axes.plot(
                    xs, means, color=color, marker=marker, markersize=4.5, linewidth=1.4,
                    label=_label(line, name, line == base),
                )  # fmt: skip
        of_field[-1].legend(
            title=_TITLES[name], loc="upper left", bbox_to_anchor=(1.0, 1.0), alignment="left",
            frameon=False, fontsize=8, handlelength=1.6,
        )  # fmt: skip
    grid[0, 0].set_xscale("log", base=2)
    grid[0, 0].set_xticks(sorted(settings.rounds), [str(r) for r in sorted(settings.rounds)])
    grid[0, 0].xaxis.set_minor_locator(NullLocator())
    for of_measure, title in zip(grid.T, measures.values(), strict=True):
        of_measure[0].set_title(title, fontsize=9)
        of_measure[0].set_ylim(0, None)
        of_measure[-1].set_xlabel("rounds")
    for axes in grid[:, :2].flat:
        axes.axhline(settings.target_mass, color=MUTED, linewidth=0.9, linestyle="--")
    for axes in grid[0, :2]:
        axes.set_ylim(0, 1.04)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    chance = [(row.num_hashes, row.means["visible_pairs"]) for row in lines[base]]
    grid[0, 0].plot(*zip(*chance, strict=True), color=MUTED, linestyle=(0, (1, 1.5)), linewidth=1.2)
    figure.suptitle(
        f"LSH attention beside full attention over hash rounds — {_model(rows, settings)}\n"
        "Marks: mean over heads; bars: lowest to highest head. Dashed: the target,"
        f" {settings.target_mass:.0%}; dotted: as many keys at random",
        x=0.01, ha="left", fontsize=9, wrap=True,
    )  # fmt: skip
    return figure


def _pairs(rows: Sequence[Quality], beside: Sequence[Beside], settings: Settings) -> Figure:
    """Mass over the share of pairs: the rounds of the base line, and a mark for each other."""
    measures = ("visible_pairs", "captured_mass")
    of_base = next(iter(by_line(rows).values()))
    lines: dict[str, Sequence[Quality | Beside]] = {"LSH": of_base}
    lines |= {row.mechanism: [row] for row in beside}
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.grid()
    for name, some in lines.items():
        color, marker = palette.of_attention("lsh" if name == "LSH" else name, [*lines])
        heads = [sum(row.per_head["captured_mass"], []) for row in some]
        xs = [row.means[measures[0]] for row in some]
        means = [row.means[measures[1]] for row in some]
        axes.vlines(xs, [*map(min, heads)], [*map(max, heads)], color=color, linewidth=0.9)
        label = name.rpartition("/")[2]
        axes.plot(xs, means, color=color, marker=marker, linewidth=1.4, label=label)
        size = _size_of(name)
        if size is not None:  # windows of several sizes have one color
            _note(axes, f"{size}", (xs[0], means[0]), (4, 4))
    for row in of_base:
        at = row.means[measures[0]], row.means[measures[1]]
        _note(axes, f"{row.num_hashes}", at, (3, -10))
    axes.set(xlim=(0, None), ylim=(0, 1.04), xlabel="share of all pairs that is seen")
    most = axes.get_xlim()[1]
    axes.plot([0, most], [0, most], color=MUTED, linestyle=(0, (1, 1.5)), linewidth=1.2)
    axes.set_ylabel("attention mass captured")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.legend(frameon=False, fontsize=8, loc="outside right center")
    figure.suptitle(
        f"What pairs are worth — {_model(rows, settings)}\nMarks: mean over heads, of LSH by its"
        " rounds; bars: lowest to highest head. Dotted: as many keys at random",
        x=0.01, ha="left", fontsize=9, wrap=True,
    )  # fmt: skip
    return figure


def _note(axes: Any, text: str, at: tuple[float, float], offset: tuple[float, float]) -> None:
    axes.annotate(
        text, at, xytext=offset, textcoords="offset points", fontsize=8, color=MUTED,
        annotation_clip=False,
    )  # fmt: skip


def _size_of(name: str) -> int | None:
    """The number in the name of an attention; None = it has none, as a user's own."""
    if name == "LSH" or own.is_own(name):
        return None
    return parse(name)[0].number


def _label(line: Line, name: str, is_base: bool) -> str:
    text = str(getattr(line, name))
    if text == "running":
        text = "running mean"
    if name == "chunk_size":
        text += f" ({line.num_buckets} buckets)"
    return text + (" (base)" if is_base else "")


def _model(rows: Sequence[Quality], settings: Settings) -> str:
    bits = rows[0].bits
    trained = "untrained" if bits is None else f"{bits:.2f} bits a byte"
    sizes = f"{settings.num_layers} layers × {settings.num_heads} heads"
    return f"{settings.length} bytes, {sizes}, {trained}"
