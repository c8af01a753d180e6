"""The figures of `language_model`: frontier, rounds at evaluation, what rounds see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attnlab.bench.panels import thousands
from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, MUTED, by_rounds
from attnlab.runs.report import grouped
from attnlab.training.study import Row
from experiments.language_model.models import rounds_of
from experiments.language_model.report import Point, points

__all__ = ["draw"]


def draw(rows: Sequence[Row]) -> dict[str, Figure | None]:
    """Each figure that there are points for."""
    with figure_files.style():
        return {
            "frontier": _frontier(rows),
            "rounds": _rounds(rows),
            "mass": _mass(rows),
        }


def _look(model: str, models: Collection[str]) -> dict[str, Any]:
    color, marker = by_rounds(model, list(models))
    return {"color": color, "marker": marker, "markersize": 7 if marker == "*" else 5}


def _panels(count: int, **options: Any) -> tuple[Figure, list[Any]]:
    """Panels in one row, or in rows of two where they are more than three."""
    columns = count if count <= 3 else 2
    rows = -(-count // columns)
    figure = Figure(figsize=(min(1.6 + 3.3 * columns, 8.2), 3.2 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **options).ravel())
    for axes in panels[count:]:
        axes.remove()
    for axes in panels[:count]:
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, panels[:count]


def _legend(figure: Figure, panels: Sequence[Any]) -> Figure:
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside upper left", ncols=4, frameon=False)
    return figure


def _frontier(rows: Sequence[Row]) -> Figure | None:
    """Bits per byte against what a token costs: left and low is good."""
    kinds: list[tuple[str, Callable[[Point], float | None]]] = [
        ("time of a step, µs a token", lambda point: point.seconds and 1e6 * point.seconds),
        ("memory of a step, KiB a token", lambda point: point.memory and point.memory / 1024),
    ]
    found = [point for key, point in points(rows).items() if key[1] == key[2]]
    known = [point for point in found if all(of(point) is not None for _, of in kinds)]
    if not known:
        return None
    lengths = sorted({point.length for point in known})
    models = dict.fromkeys(point.model for point in known)
    figure, panels = _panels(2, sharey=True)
    for axes, (name, of) in zip(panels, kinds, strict=True):
        for model in models:
            some = [point for point in known if point.model == model]
            xs, ys = [of(point) for point in some], [x.mean for x in some]
            look = _look(model, models)
            axes.plot(xs, ys, label=model, linewidth=1.3, **look)
            axes.vlines(xs, *_range(some), color=look["color"], linewidth=1)
            for x, point in zip(xs, some, strict=True):
                look["markersize"] = 4 + 3 * lengths.index(point.length) / max(1, len(lengths) - 1)
                axes.plot([x], [point.mean], **look)
        axes.set_xlabel(name)
    panels[0].set_ylabel("bits per byte, test")
    named = ", ".join(thousands(length) for length in lengths)
    shared = " shared: exact attention whose keys are its queries."
    figure.supxlabel(
        f"Mean over seeds, from the least to the greatest. Small to large mark: {named} tokens."
        + shared * any(point.model == "shared" for point in known),
        x=0.01, ha="left", fontsize=7.5, color=MUTED,
    )  # fmt: skip
    return _legend(figure, panels)


def _range(some: Sequence[Point]) -> tuple[list[float], list[float]]:
    """The least and the greatest bits over the seeds."""
    bits = [point.bits.values() for point in some]
    return [*map(min, bits)], [*map(max, bits)]


def _rounds(rows: Sequence[Row]) -> Figure | None:
    """Bits per byte over the rounds at evaluation, a line for each trained model."""
    found = points(rows)
    hashing = [key for key in found if rounds_of(key[1]) and rounds_of(key[2])]
    lengths = list(dict.fromkeys(length for length, *_ in hashing))
    models = dict.fromkeys(key[1] for key in found)
    if not hashing:
        return None
    figure, panels = _panels(len(lengths), sharey=True)
    for axes, length in zip(panels, lengths, strict=True):
        for model in dict.fromkeys(key[1] for key in hashing):
            keys = [key for key in hashing if key[:2] == (length, model)]
            some = sorted((rounds_of(key[2]) or 0, found[key].mean, found[key]) for key in keys)
            if some:
                xs, ys, of_seeds = zip(*some, strict=True)
                look = _look(model, models)
                axes.plot(xs, ys, label=f"trained as {model}", linewidth=1.3, **look)
                axes.vlines(xs, *_range(of_seeds), color=look["color"], linewidth=1)
        for model in models:
            if (length, model, model) in found and rounds_of(model) is None:
                look = _look(model, models)
                axes.axhline(
                    found[length, model, model].mean, color=look["color"], label=model, linewidth=1
                )
        axes.set_title(f"{length:,} tokens")
        axes.set_xlabel("rounds at evaluation")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    panels[0].set_ylabel("bits per byte, test")
    return _legend(figure, panels)


def _mass(rows: Sequence[Row]) -> Figure | None:
    """What the rounds see while training goes on: the mean over seeds, and their range."""
    watched = grouped(
        [row for row in rows if "masses" in row.details],
        lambda row: (row.cell["length"], row.cell["model"]),
    )
    lengths = sorted({length for length, _ in watched})
    if not watched:
        return None
    figure, panels = _panels(len(lengths), sharey=True)
    for axes, length in zip(panels, lengths, strict=True):
        for (its, name), some in watched.items():
            if its == length:
                masses = np.array([row.details["masses"] for row in some])
                steps, look = some[0].details["steps"], _look(name, [x for _, x in watched])
                axes.plot(steps, masses.mean(0), label=name, linewidth=1.3, **look)
                low, high = masses.min(0), masses.max(0)
                axes.fill_between(steps, low, high, color=look["color"], alpha=0.16, linewidth=0)
        axes.set_title(f"{length:,} tokens")
        axes.set_xlabel("step of training")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_ylim(0, 1)
    panels[0].set_ylabel("share of the attention mass seen")
    return _legend(figure, panels)
