"""Two log-log figures, time and memory over length: pure functions of a run's rows."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from attnlab.bench import trends
from attnlab.bench.case import PASSES, Result
from attnlab.bench.memory import human
from attnlab.bench.report import PASS_TITLES, duration
from attnlab.records import figure_files

# Okabe and Ito's colours, told apart by all common forms of colour vision, and two more; one a
# mechanism, so that it looks the same in every run.
STYLES = {
    "additive": ("#0072B2", "o"),
    "dot": ("#D55E00", "s"),
    "general": ("#009E73", "^"),
    "cosine": ("#CC79A7", "v"),
    "concat": ("#56B4E9", "D"),
    "location": ("#8C6D31", "P"),
    "multi_head": ("#E69F00", "X"),
    "window": ("#000000", "<"),
    "lsh": ("#7B3294", "*"),
}
_DASHES = {
    "": "-",
    "dense": (0, (5, 2)),
    "blockwise": "-.",
    "cudnn": ":",
    "splash": (0, (3, 1, 1, 1)),
    "tokamax": (0, (1, 1)),
    "pallas": (0, (8, 1)),
}
_GREY = "#8a8a8a"
_GAP = 0.062  # between two labels, in heights of a panel


def save(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes time.svg, time.png, memory.svg and memory.png; nothing where no case ran or compiled.

    Returns:
      The files written.
    """
    return figure_files.save({name: draw(results, name) for name in ("time", "memory")}, folder)


def draw(results: Sequence[Result], quantity: str) -> Figure | None:
    """One figure, a panel a pass, or None where there is nothing to draw."""
    value = trends.seconds if quantity == "time" else trends.memory
    shown = [p for p in PASSES if any(trends.lines(results, p, value).values())]
    if not shown:
        return None
    with figure_files.style():
        figure = Figure(figsize=(5.6 * len(shown) + 0.2, 4.6))
        left, right = 0.62 / figure.get_figwidth(), 0.05 / figure.get_figwidth()
        names = 1.35 / figure.get_figwidth()  # where the labels stand
        width = (1 - len(shown) * (left + names) - right) / len(shown)
        panels: list[Any] = []
        for i, passes in enumerate(shown):
            box = (left + i * (width + names + left), 0.12, width, 0.76)
            axes = figure.add_axes(box, sharey=panels[0] if panels else None)
            panels.append(axes)
            axes.set_title(PASS_TITLES[passes])
            scales(axes, results, quantity)
        limits = _limits(results, shown, quantity, value)
        for axes, passes in zip(panels, shown, strict=True):
            axes.set_ylim(*limits)
            fill(axes, [r for r in results if r.case.passes == passes], quantity)
        case = results[0].case
        figure.text(
            left,
            0.965,
            f"{'Time of one call' if quantity == 'time' else 'Memory'} over length n — "
            f"batch {case.batch}, {case.num_heads} heads × {case.head_dim}, {case.dtype}"
            f"{', causal' if case.causal else ''}{_where(results)}",
            fontsize=9.5,
            va="center",
        )
    return figure


def fill(axes: Any, results: Sequence[Result], quantity: str) -> None:
    """A panel that has its scales and limits: the rows of one pass."""
    value = trends.seconds if quantity == "time" else trends.memory
    found = trends.lines(results, results[0].case.passes, value)
    _guides(axes, found)
    if quantity == "memory":
        _available(axes, results)
    _marks(axes, results, quantity)
    _curves(axes, results, found, quantity)


def _where(results: Sequence[Result]) -> str:
    devices = {str(r.environment["device"]) for r in results if r.environment.get("device")}
    return f" — {' / '.join(sorted(devices))}" if devices else ""


def _style(label: str) -> dict[str, Any]:
    name, _, way = label.partition(" ")
    colour, marker = STYLES[name]
    way = way.strip("()")
    face = "white" if way == "dense" else colour
    return dict(color=colour, marker=marker, linestyle=_DASHES[way], markerfacecolor=face)


def scales(axes: Any, results: Sequence[Result], quantity: str) -> None:
    """Log-log axes with the run's lengths as ticks."""
    lengths = sorted({r.case.length for r in results})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10 if quantity == "time" else 2)
    step = math.ceil(len(lengths) / 9)
    axes.set_xticks(lengths[::step], [_thousands(n) for n in lengths[::step]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(lengths[0] / 1.12, lengths[-1] * 1.12)
    axes.set_xlabel("length n (tokens)")
    if quantity == "time":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _plain(duration(y))))
    else:
        axes.yaxis.set_major_locator(LogLocator(base=4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _plain(human(y))))
        axes.yaxis.set_minor_locator(LogLocator(base=2))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="major", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)


def _limits(
    results: Sequence[Result],
    shown: Sequence[str],
    quantity: str,
    value: Callable[[Result], float | None],
) -> tuple[float, float]:
    numbers = [
        y for p in shown for line in trends.lines(results, p, value).values() for y in line.values()
    ]
    if quantity == "memory":
        numbers += [float(r.memory_bytes) for r in results if r.memory_bytes]
    else:
        numbers += [s for r in results if r.status == "ok" for s in r.seconds]
    low, high = min(numbers), max(numbers)
    room = max((high / low) ** 0.06, 1.15)
    marked = any(_mark_height(r, quantity) is None for r in results if r.status != "ok")
    return low / max((high / low) ** 0.1, 1.25), high * room * (
        (high / low) ** 0.14 if marked else 1
    )


def _guides(axes: Any, found: dict[str, trends.Line]) -> None:
    """Grey lines of slope 1 and 2 from the bottom left corner of the data."""
    low, high = axes.get_ylim()
    points = [(n, y) for line in found.values() for n, y in line.items()]
    if not points:
        return
    first, last = min(n for n, _ in points), max(n for n, _ in points)
    start = low * (high / low) ** 0.02
    for power, name in ((1, "∝ n"), (2, "∝ n²")):
        end = min(last, first * (0.8 * high / start) ** (1 / power))
        if end <= first:
            continue
        ys = [start, start * (end / first) ** power]
        axes.plot([first, end], ys, color="#bdbdbd", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        axes.annotate(
            name,
            (end, ys[1]),
            xytext=(-3, -3),
            textcoords="offset points",
            ha="right" if power == 2 else "center",
            va="top" if power == 1 else "bottom",
            color=_GREY,
            fontsize=8,
        )


def _available(axes: Any, results: Sequence[Result]) -> None:
    """The memory that was free, or that the target has, where the panel reaches that far."""
    free = [r.available_bytes for r in results if r.available_bytes]
    if not free or not axes.get_ylim()[0] < min(free) < axes.get_ylim()[1]:
        return
    target = results[0].case.target
    axes.axhline(min(free), color=_GREY, linewidth=0.9)
    axes.annotate(
        f"{human(min(free))} {'free' if target is None else f'of {target}'}",
        (0.01, min(free)),
        xycoords=("axes fraction", "data"),
        xytext=(0, -3),
        textcoords="offset points",
        va="top",
        color=_GREY,
        fontsize=8,
    )


def _mark_height(result: Result, quantity: str) -> float | None:
    """Where a case without a result stands: at its known memory, or None for the panel's top."""
    return float(result.memory_bytes) if quantity == "memory" and result.memory_bytes else None


def _marks(axes: Any, results: Sequence[Result], quantity: str) -> None:
    """A cross for each case without a result, and why at the first of each mechanism."""
    told: set[str] = set()
    words: list[tuple[int, float]] = []  # where they stand: length, height in the panel
    at_top: dict[int, int] = {}
    low, high = axes.get_ylim()
    for result in sorted((r for r in results if r.status != "ok"), key=lambda r: r.case.length):
        label, n = result.case.label, result.case.length
        colour = _style(label)["color"]
        y = known = _mark_height(result, quantity)
        if y is None:
            row = at_top[n] = at_top.get(n, -1) + 1
            y = high / (high / low) ** (0.03 + 0.045 * row)
        hollow = result.status == "too_slow"
        axes.plot(
            [n], [y], marker="o" if hollow else "x", color=colour, markersize=6, linestyle="none",
            markerfacecolor="none", markeredgewidth=1.6, clip_on=False, zorder=5,
        )  # fmt: skip
        height = math.log(y / low) / math.log(high / low)
        free = all(n != at or abs(height - other) > _GAP / 2 for at, other in words)
        # A hollow mark on the line needs no words, and two that are one cross have one place.
        if label not in told and not (hollow and known):
            told.add(label)
            if not free:
                continue
            words.append((n, height))
            axes.annotate(
                _reason(result), (n, y), xytext=(-7, 3 if known else 0), textcoords="offset points",
                ha="right", va="bottom" if known else "center", fontsize=7.5, color=colour,
            )  # fmt: skip


def _reason(result: Result) -> str:
    if result.message.startswith("needs "):
        return f"{result.case.label} {result.message}"
    return f"{result.case.label} {result.status.replace('_', ' ')}"


def _curves(
    axes: Any, results: Sequence[Result], found: dict[str, trends.Line], quantity: str
) -> None:
    ends = {}
    for label, line in found.items():
        if not line:
            continue
        style = _style(label)
        size = 7.5 if style["marker"] == "*" else 5
        axes.plot(
            *zip(*line.items(), strict=True), **style, markersize=size, linewidth=1.5, zorder=4
        )
        if quantity == "time":
            rows = {
                r.case.length: r.seconds for r in results if r.case.label == label and r.seconds
            }
            lengths = [n for n in line if n in rows]
            axes.fill_between(
                lengths, [min(rows[n]) for n in lengths], [max(rows[n]) for n in lengths],
                color=style["color"], alpha=0.18, linewidth=0, zorder=3,
            )  # fmt: skip
        points = list(line.items())[-1:] + sorted(
            (r.case.length, y)
            for r in results
            if r.case.label == label and r.status != "ok" and (y := _mark_height(r, quantity))
        )
        dots = dict(color=style["color"], linewidth=1, linestyle=":", zorder=3)
        axes.plot(
            *zip(*points, strict=True), **dots
        )  # on to what is known of cases that did not run
        ends[label] = points[-1]
    _labels(axes, found, ends)


def _labels(axes: Any, found: dict[str, trends.Line], ends: dict[str, tuple[int, float]]) -> None:
    """Each line's name and exponent to the right of it, moved apart where they would touch."""
    low, high = axes.get_ylim()
    heights = {label: math.log(y / low) / math.log(high / low) for label, (_, y) in ends.items()}
    order = sorted(heights, key=lambda label: heights[label])
    places = spread_out([heights[label] for label in order], _GAP)
    for i in reversed(range(len(places))):  # none above the panel
        places[i] = min(places[i], 1.0 - (len(places) - 1 - i) * _GAP)
    to_axes = axes.transAxes.inverted()
    for label, place in zip(order, places, strict=True):
        power = trends.exponent(found[label])
        text = label if power is None else f"{label}  $n^{{{power:.2f}}}$"
        colour = _style(label)["color"]
        x, y = to_axes.transform(axes.transData.transform(ends[label]))
        axes.plot(
            [x + 0.012, 1.035, 1.06], [y, place, place], color=colour, linewidth=0.7, alpha=0.7,
            transform=axes.transAxes, clip_on=False, zorder=2,
        )  # fmt: skip
        axes.text(1.07, place, text, color=colour, va="center", transform=axes.transAxes)


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights moved as little as need be so that neighbours are `gap` apart.

    >>> [round(y, 2) for y in spread_out([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    groups: list[list[float]] = []  # [sum of wanted centres, count]: blocks that touch
    for height in heights:
        groups.append([height, 1])
        while len(groups) > 1 and _top(groups[-2], gap) > _bottom(groups[-1], gap) - gap:
            total, count = groups.pop()
            groups[-1] = [groups[-1][0] + total, groups[-1][1] + count]
    return [_bottom(group, gap) + i * gap for group in groups for i in range(int(group[1]))]


def _bottom(group: Sequence[float], gap: float) -> float:
    total, count = group
    return total / count - (count - 1) * gap / 2


def _top(group: Sequence[float], gap: float) -> float:
    total, count = group
    return total / count + (count - 1) * gap / 2


def _plain(text: str) -> str:
    """`10.0 ms` as a tick: `10 ms`."""
    number, unit = text.split(" ")
    return f"{float(number):g} {unit}"


def _thousands(n: int) -> str:
    """4096 as `4k`, 1000 as `1000`."""
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)
