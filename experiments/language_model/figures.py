"""The figures of `language_model`: frontier, rounds at evaluation, what rounds see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from attnlab.bench.panels import thousands
from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, MECHANISMS, MUTED, of_attention
from attnlab.runs.units import duration, human
from attnlab.training.study import Row
from experiments.language_model.models import is_lsh, rounds_of
from experiments.language_model.report import Point, points

__all__ = ["draw"]

_MARKERS = {1: "*", 2: "s", 4: "^", 8: "D"}  # of LSH by rounds; others are "v"
_DASHES = {1: (0, (1, 1.5)), 2: (0, (3, 1.5)), 4: "-", 8: (0, (6, 1.5))}


def draw(rows: Sequence[Row]) -> dict[str, Figure | None]:
    """Each figure that there are points for."""
    with figure_files.style():
        return {
            "frontier": _frontier(rows),
            "rounds": _rounds(rows),
            "mass": _mass(rows),
        }


def _look(model: str) -> dict[str, Any]:
    rounds = rounds_of(model)
    if rounds is None or not is_lsh(model):
        color, marker = of_attention(model)
        return {"color": color, "marker": marker, "linestyle": "-", "markersize": 5.5}
    marker, dash = _MARKERS.get(rounds, "v"), _DASHES.get(rounds, "-.")
    size = 8 if marker == "*" else 5
    return {"color": MECHANISMS["lsh"][0], "marker": marker, "linestyle": dash, "markersize": size}


def _panels(count: int, **options: Any) -> tuple[Figure, list[Any]]:
    """Panels in one row, or in rows of two where they are more than three."""
    columns = count if count <= 3 else 2
    rows = -(-count // columns)
    figure = Figure(figsize=(1.3 + 3.5 * columns, 3.4 * rows), layout="constrained")
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
    figure.legend(found.values(), found.keys(), loc="outside right upper", edgecolor="none")
    return figure


def _frontier(rows: Sequence[Row]) -> Figure | None:
    """Bits per byte against what a token costs: left and low is good."""
    kinds: list[tuple[str, Callable[[Point], Any], Any]] = [
        ("time of a step, per token", lambda point: point.seconds, duration),
        ("memory of a step, per token", lambda point: point.memory, human),
    ]
    found = [point for key, point in points(rows).items() if key[1] == key[2]]
    known = [point for point in found if all(of(point) is not None for _, of, _ in kinds)]
    if not known:
        return None
    figure, panels = _panels(2, sharey=True)
    for axes, (name, of, form) in zip(panels, kinds, strict=True):
        for model in dict.fromkeys(point.model for point in known):
            some = [point for point in known if point.model == model]
            xs = [of(point) for point in some]
            ys = [point.mean for point in some]
            axes.plot(xs, ys, label=model, linewidth=1.3, **_look(model))
            spans = [(min(point.bits.values()), max(point.bits.values())) for point in some]
            axes.vlines(xs, *zip(*spans, strict=True), color=_look(model)["color"], linewidth=1)
            for x, point in zip(xs, some, strict=True):
                axes.annotate(
                    thousands(point.length), (x, point.mean), xytext=(4, 4),
                    textcoords="offset points", fontsize=7, color=MUTED,
                )  # fmt: skip
        axes.set_xscale("log")
        _ticks(axes.xaxis, form)
        axes.set_xlabel(name)
    panels[0].set_ylabel("bits per byte, test")
    figure.suptitle("Bits per byte against cost; beside a mark, the length", fontsize=10)
    return _legend(figure, panels)


def _ticks(axis: Any, form: Callable[[float], str]) -> None:
    """Logarithmic ticks at round numbers with their units: powers of 2 of bytes."""
    first, last = axis.get_view_interval()
    if last < 4 * first:  # a small difference looks small, and there are two ticks at least
        middle = (first * last) ** 0.5
        axis.set_view_interval(middle / 2, middle * 2, ignore=True)
    binary = form is human
    axis.set_major_locator(LogLocator(2.0) if binary else LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: _short(form(x))))


def _short(text: str) -> str:
    """`10.0 ms` as `10 ms`."""
    number, unit = text.split(" ")
    return f"{float(number):g} {unit}"


def _rounds(rows: Sequence[Row]) -> Figure | None:
    """Bits per byte over the rounds at evaluation, a line for each trained model."""
    found = points(rows)
    hashing = [key for key in found if rounds_of(key[1]) and rounds_of(key[2])]
    lengths = list(dict.fromkeys(length for length, *_ in hashing))
    if not hashing:
        return None
    figure, panels = _panels(len(lengths), sharey=True)
    for axes, length in zip(panels, lengths, strict=True):
        for model in dict.fromkeys(key[1] for key in hashing):
            some = sorted(
                (rounds_of(key[2]) or 0, found[key].mean)
                for key in hashing
                if key[:2] == (length, model)
            )
            if some:
                label = f"trained as {model}"
                axes.plot(*zip(*some, strict=True), label=label, linewidth=1.3, **_look(model))
        for model in dict.fromkeys(key[1] for key in found):
            if (length, model, model) in found and rounds_of(model) is None:
                look = _look(model)
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
    """What the rounds see while training goes on, of the first seed."""
    found = [row for row in rows if "masses" in row.details]
    found = [row for row in found if row.cell.seed == found[0].cell.seed]
    lengths = sorted({row.cell["length"] for row in found})
    if not found:
        return None
    figure, panels = _panels(len(lengths), sharey=True)
    for axes, length in zip(panels, lengths, strict=True):
        for row in found:
            if row.cell["length"] == length:
                name, seen = row.cell["model"], row.details
                axes.plot(seen["steps"], seen["masses"], label=name, linewidth=1.3, **_look(name))
        axes.set_title(f"{length:,} tokens")
        axes.set_xlabel("step of training")
        axes.set_ylim(0, 1)
    panels[0].set_ylabel("share of the attention mass seen")
    return _legend(figure, panels)
