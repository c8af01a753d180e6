"""Figures of `hash_quality`: what is captured over rounds, and the sizes of buckets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, MUTED, SERIES
from experiments.hash_quality.lines import Line, Row, by_line
from experiments.hash_quality.settings import Settings

_TITLES = {
    "chunk_size": "Chunk size",
    "num_buckets": "Buckets",
    "window": "Window",
    "centering": "Centering",
    "merge": "Merge",
}


def draw(rows: Sequence[Row], settings: Settings) -> dict[str, Figure]:
    """The figures "quality" and "buckets"."""
    with figure_files.style():
        return {"quality": _quality(rows, settings), "buckets": _buckets(rows, settings)}


def varied(rows: Sequence[Row]) -> dict[str, list[Line]]:
    """The lines by the field in which they differ from the base; each list begins with the base.

    Another chunk size changes the buckets and the window as well: such a line counts as chunk size.
    """
    base, *others = by_line(rows)
    found: dict[str, list[Line]] = {}
    for line in others:
        names = [f.name for f in dataclasses.fields(Line)]
        first = next(name for name in names if getattr(line, name) != getattr(base, name))
        found.setdefault(first, [base]).append(line)
    return found


def _quality(rows: Sequence[Row], settings: Settings) -> Figure:
    """A column for each field that varies: its legend, then a panel for each measure."""
    lines, columns = by_line(rows), varied(rows)
    base = next(iter(lines))
    columns = columns or {"merge": [base]}
    measures = {
        "captured_mass": "attention mass captured",
        "top_k_recall": f"recall of the {settings.top_k} largest",
        "relative_error": "error of the context",
    }
    figure = Figure(figsize=(2.5 * len(columns) + 0.8, 7.4), layout="constrained")
    grid = figure.add_gridspec(4, len(columns), height_ratios=(0.35, 1, 1, 1))
    first: dict[str, Any] = {}
    for column, (name, some) in enumerate(columns.items()):
        shown = [
            (line, _label(line, name, line == base), *SERIES[i % len(SERIES)])
            for i, line in enumerate(some)
        ]
        for place, measure in enumerate(measures, 1):
            axes = figure.add_subplot(grid[place, column], sharey=first.get(measure))
            first.setdefault(measure, axes)
            axes.tick_params(labelleft=column == 0, labelbottom=place == len(measures))
            _rounds(axes, settings.rounds)
            if measure != "relative_error":
                axes.axhline(settings.target_mass, color=MUTED, linewidth=0.9, linestyle="--")
            for i, (line, label, color, marker) in enumerate(shown):
                beside = 2 ** (0.12 * (i - (len(shown) - 1) / 2))  # side by side, on a log₂ axis
                _over_rounds(axes, lines[line], measure, beside, color, marker, label)
        axes.set_xlabel("rounds")
        legend = figure.add_subplot(grid[0, column])
        legend.set_axis_off()
        legend.set_title(_TITLES[name])
        legend.legend(
            *axes.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(-0.03, 1.1),
            frameon=False, fontsize=8, handlelength=1.6, borderaxespad=0,
        )  # fmt: skip
    for measure, title in measures.items():
        first[measure].set_ylabel(title)
        first[measure].set_ylim(0, None)
        if measure != "relative_error":
            first[measure].set_ylim(0, 1.04)
            first[measure].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            _target(first[measure], settings.target_mass)
    _chance(first["captured_mass"], lines[base])
    figure.suptitle(
        f"LSH attention beside full attention over hash rounds — {_model(rows, settings)}\n"
        "Marks: mean over heads; bars: from the lowest head to the highest",
        x=0.01, ha="left", fontsize=9.5,
    )  # fmt: skip
    return figure


def _over_rounds(
    axes: Any,
    rows: Sequence[Row],
    measure: str,
    beside: float,
    color: str,
    marker: str,
    label: str,
) -> None:
    """A line's means over rounds, with bars from the lowest head to the highest."""
    xs = [row.num_hashes * beside for row in rows]
    heads = [sum(row.per_head[measure], []) for row in rows]
    axes.vlines(xs, [*map(min, heads)], [*map(max, heads)], color=color, linewidth=0.9, alpha=0.7)
    means = [row.means[measure] for row in rows]
    axes.plot(xs, means, color=color, marker=marker, markersize=4.5, linewidth=1.4, label=label)


def _buckets(rows: Sequence[Row], settings: Settings) -> Figure:
    """Bars: a panel per layer, a group per bin of sizes (first: empty), a bar per centering."""
    base, *_ = by_line(rows)
    shown = [base, *varied(rows).get("centering", [base])[1:]]
    most = {line: some[-1] for line, some in by_line(rows).items() if line in shown}
    sizes = {line: [_with_empty(line, layer) for layer in most[line].layer_sizes] for line in shown}
    layers = len(sizes[base])
    bins = max(b + 1 for some in sizes.values() for layer in some for b, n in enumerate(layer) if n)
    figure = Figure(figsize=(3.6 * layers + 1.4, 3.3), layout="constrained")
    panels = figure.subplots(1, layers, sharey=True, squeeze=False)[0]
    width = 0.8 / len(shown)
    for layer, axes in enumerate(panels):
        for i, line in enumerate(shown):
            xs = [b + (i + 0.5) * width - 0.4 for b in range(bins)]
            axes.bar(
                xs, sizes[line][layer][:bins], width * 0.94, color=SERIES[i % len(SERIES)][0],
                label=_center(line), zorder=3,
            )  # fmt: skip
        edge = _bin_edge(base.window)
        if edge < bins - 0.5:
            axes.axvline(edge, color=MUTED, linestyle=(0, (1, 2)), linewidth=1.2)
            axes.annotate(
                f"window {base.window}", (edge, 1.0), xycoords=("data", "axes fraction"),
                xytext=(3, 0), textcoords="offset points", va="top", fontsize=8, color=MUTED,
            )  # fmt: skip
        names = ["0", "1", *(f"{2**b}–{2 ** (b + 1) - 1}" for b in range(1, bins - 1))]
        axes.set_xticks(range(bins), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.tick_params(axis="x", length=0)
        axes.set_title(f"Layer {layer}")
        axes.set_xlabel("tokens in a bucket")
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    panels[0].yaxis.set_major_locator(MaxNLocator(6, integer=True))
    panels[0].set_ylabel(f"buckets, of {base.num_buckets}")
    panels[0].set_ylim(0, 1.15 * panels[0].get_ylim()[1])  # room for the words at the top
    figure.legend(
        *panels[0].get_legend_handles_labels(), title="centering", frameon=False, fontsize=8,
        loc="outside right upper",
    )  # fmt: skip
    figure.suptitle(f"Sizes of buckets — {_model(rows, settings)}", x=0.01, ha="left", fontsize=9.5)
    return figure


def _with_empty(line: Line, sizes: Sequence[float]) -> list[float]:
    """The number of buckets in each bin of sizes; the first is that of empty buckets."""
    return [line.num_buckets - sum(sizes), *sizes]


def _bin_edge(window: int) -> float:
    """The place of a size on the axis of bins, which double, between two groups of bars."""
    return window.bit_length() - 0.5


def _rounds(axes: Any, rounds: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(rounds), [str(r) for r in sorted(rounds)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _target(axes: Any, share: float) -> None:
    axes.annotate(
        f"target {share:.0%}", (0.02, share), xycoords=("axes fraction", "data"), xytext=(0, -2),
        textcoords="offset points", va="top", fontsize=8, color=MUTED,
    )  # fmt: skip


def _chance(axes: Any, rows: Sequence[Row]) -> None:
    """Draws the mass that the base would capture if its keys were chosen at random."""
    points = [(row.num_hashes, row.means["visible_pairs"]) for row in rows]
    axes.plot(
        *zip(*points, strict=True), color=MUTED, linestyle=(0, (1, 1.5)), linewidth=1.2, zorder=2
    )
    axes.annotate(
        "as many keys at random", (1.0, 0.02), xycoords="axes fraction", ha="right", fontsize=8,
        color=MUTED,
    )  # fmt: skip


def _label(line: Line, name: str, is_base: bool) -> str:
    text = _center(line) if name == "centering" else str(getattr(line, name))
    if name == "chunk_size":
        text += f" ({line.num_buckets} buckets)"
    return text + (" (base)" if is_base else "")


def _center(line: Line) -> str:
    return {"none": "none", "running": "running mean"}[line.centering]


def _model(rows: Sequence[Row], settings: Settings) -> str:
    bits = rows[0].bits
    trained = "untrained" if bits is None else f"{bits:.2f} bits a byte"
    return (
        f"{settings.length} bytes, {settings.num_layers} layers × {settings.num_heads} heads,"
        f" {trained}"
    )
