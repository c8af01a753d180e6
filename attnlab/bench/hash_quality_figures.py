"""Figures of `hash_quality`: what is captured over rounds, and the sizes of buckets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from attnlab.bench.hash_quality import Line, Row, by_line
from attnlab.records import figure_files

# The base is black everywhere; what differs from it, Okabe and Ito's colours.
_BASE = "#000000"
_OTHERS = (("#D55E00", "s"), ("#0072B2", "^"), ("#009E73", "v"), ("#CC79A7", "D"), ("#E69F00", "P"))
_TITLES = {
    "chunk_size": "Chunk size",
    "num_buckets": "Buckets",
    "window": "Window",
    "centring": "Centring",
    "merge": "Merge",
}


def save(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Writes quality.svg, quality.png, buckets.svg and buckets.png; returns their paths."""
    with figure_files.style():
        figures = {"quality": _quality(rows), "buckets": _buckets(rows)}
    return figure_files.save(figures, folder)


def varied(rows: Sequence[Row]) -> dict[str, list[Line]]:
    """The lines that differ from the base in each thing, the base first; only things that vary.

    Chunk size takes the default buckets and window along, so it is told first.
    """
    base, *others = by_line(rows)
    found: dict[str, list[Line]] = {}
    for line in others:
        names = [f.name for f in dataclasses.fields(Line)]
        first = next(name for name in names if getattr(line, name) != getattr(base, name))
        found.setdefault(first, [base]).append(line)
    return found


def _quality(rows: Sequence[Row]) -> Figure:
    lines, columns = by_line(rows), varied(rows)
    base = next(iter(lines))
    columns = columns or {"merge": [base]}
    flags = rows[0].flags
    figure = Figure(figsize=(2.75 * len(columns) + 0.6, 5.6), layout="constrained")
    panels = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    for column, (name, some) in enumerate(columns.items()):
        mass, error = panels[:, column]
        for axes, measure in ((mass, "captured_mass"), (error, "relative_error")):
            _rounds(axes, flags["rounds"])
            for i, line in enumerate(some):
                colour, marker = (_BASE, "o") if line == base else _OTHERS[(i - 1) % len(_OTHERS)]
                points = [(row.num_hashes, row.means[measure]) for row in lines[line]]
                axes.plot(
                    *zip(*points, strict=True), color=colour, marker=marker, markersize=4.5,
                    linewidth=1.5, label=_label(line, name, line == base), zorder=3 - i * 0.1,
                )  # fmt: skip
        mass.set_title(_TITLES[name])
        _chance(mass, lines[base])
        mass.axhline(flags["target_mass"], color="#8a8a8a", linewidth=0.9, zorder=1)
        handles, labels = mass.get_legend_handles_labels()
        error.legend(
            handles, labels, frameon=False, fontsize=8, loc="upper right", handlelength=1.4
        )
        error.set_xlabel("rounds")
    top, bottom = panels[:, 0]
    target = f"target {flags['target_mass']:.0%}"
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    top.annotate(
        target, (0.02, flags["target_mass"]), xytext=(0, 2), fontsize=8, color="#6a6a6a", **place
    )
    top.set_ylim(0, 1.02)
    top.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    top.set_ylabel("captured attention mass")
    bottom.set_ylim(0, None)
    bottom.set_ylabel("relative error of the context")
    figure.suptitle(
        f"LSH attention beside full attention over hash rounds — {_model(rows)}", x=0.01, ha="left",
        fontsize=9.5,
    )  # fmt: skip
    return figure


def _buckets(rows: Sequence[Row]) -> Figure:
    """A panel a layer, a group of bars a bin, a bar a way of centring."""
    base, *_ = by_line(rows)
    shown = [base, *varied(rows).get("centring", [base])[1:]]
    most = {line: some[-1] for line, some in by_line(rows).items() if line in shown}
    layers = len(most[base].layer_sizes)
    bins = max(
        b + 1
        for row in most.values()
        for layer in row.layer_sizes
        for b, n in enumerate(layer)
        if n
    )
    figure = Figure(figsize=(3.6 * layers + 0.6, 3.3), layout="constrained")
    panels = figure.subplots(1, layers, sharey=True, squeeze=False)[0]
    width = 0.8 / len(shown)
    for layer, axes in enumerate(panels):
        for i, line in enumerate(shown):
            colour = "#7a7a7a" if i == 0 else _OTHERS[(i - 1) % len(_OTHERS)][0]
            xs = [b + (i + 0.5) * width - 0.4 for b in range(bins)]
            axes.bar(
                xs, most[line].layer_sizes[layer][:bins], width * 0.94, color=colour,
                label=_centre(line), zorder=3,
            )  # fmt: skip
        edge = _bin_edge(base.window)
        if edge < bins - 0.5:
            axes.axvline(edge, color="#8a8a8a", linestyle=(0, (1, 2)), linewidth=1.2)
            axes.annotate(
                f"window {base.window}", (edge, 1.0), xycoords=("data", "axes fraction"),
                xytext=(3, 0), textcoords="offset points", va="top", fontsize=8, color="#6a6a6a",
            )  # fmt: skip
        names = ["1", *(f"{2**b}–{2 ** (b + 1) - 1}" for b in range(1, bins))]
        axes.set_xticks(range(bins), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.tick_params(axis="x", length=0)
        axes.set_title(f"Layer {layer}")
        axes.set_xlabel("tokens in a bucket")
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
    panels[0].yaxis.set_major_locator(MaxNLocator(6, integer=True))
    panels[0].set_ylabel(f"buckets, of {base.num_buckets}")
    panels[0].set_ylim(0, 1.15 * panels[0].get_ylim()[1])  # room for the words at the top
    panels[-1].legend(
        title="centring", frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.92)
    )
    figure.suptitle(f"Sizes of buckets — {_model(rows)}", x=0.01, ha="left", fontsize=9.5)
    return figure


def _bin_edge(window: int) -> float:
    """Where a size stands on an axis whose unit is a doubling, between the bars of its bins."""
    return window.bit_length() - 1 - 0.5


def _rounds(axes: Any, rounds: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(rounds), [str(r) for r in sorted(rounds)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)


def _chance(axes: Any, rows: Sequence[Row]) -> None:
    """What the base would capture if its keys were chosen at random."""
    points = [(row.num_hashes, row.means["visible_pairs"]) for row in rows]
    axes.plot(
        *zip(*points, strict=True), color="#8a8a8a", linestyle=(0, (1, 1.5)), linewidth=1.2,
        label="as many keys at random", zorder=2,
    )  # fmt: skip


def _label(line: Line, name: str, is_base: bool) -> str:
    text = _centre(line) if name == "centring" else str(getattr(line, name))
    if name == "chunk_size":
        text += f" ({line.num_buckets} buckets)"
    return text + (" (base)" if is_base else "")


def _centre(line: Line) -> str:
    return {"none": "none", "running": "running mean"}[line.centring]


def _model(rows: Sequence[Row]) -> str:
    flags, bits = rows[0].flags, rows[0].bits
    trained = "untrained" if bits is None else f"{bits:.2f} bits a byte"
    return (
        f"{flags['length']} bytes, {flags['num_layers']} layers × {flags['num_heads']} heads,"
        f" {trained}"
    )
