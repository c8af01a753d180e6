"""A figure of log-log panels, time or memory over length, with one legend for each row of panels.

A case without a height stands in a band above the scale, whose rows are named like ticks.
"""

import dataclasses
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from attnlab.bench import targets, trends
from attnlab.bench.case import AXES, SHORT, Result, axis_of, size_of
from attnlab.runs import figure_files
from attnlab.runs.palette import FILL, INK, MUTED, of_attention
from attnlab.runs.units import duration, human

_DASHES: dict[str, Any] = {
    "": "-",
    "dense": (0, (5, 2)),
    "blockwise": "-.",
    "cudnn": ":",
    "splash": (0, (3, 1, 1, 1)),
    "tokamax": (0, (1, 1)),
    "sorted": (0, (4, 1, 1, 1, 1, 1)),
    "pallas": (0, (8, 1)),
}
_FURTHER = "s^Dvp"  # markers of a kind's second line and others: lsh-8 beside lsh-4
_WIDE, _TALL, _LINE = 2.5, 2.9, 0.175  # inches: a panel, the least one, a line of the legend
_SIDE = 2.4  # inches: the ticks and the legend
_TITLE = 29  # letters in a line of a panel's title, where another is beside it
_BAND = 0.085  # of a panel: a row of the band above the scale
_MOST_TICKS = 10
_DECIMAL: tuple[tuple[float, ...], ...] = ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))
_GUIDES = ((1, "∝ n"), (2, "∝ n²"))
_GUIDES_OF_DEVICES = ((-1, "∝ 1/d"),)
_FEWEST = 3  # points of a line that shows how it grows
_LIMIT: dict[str, Any] = {"color": MUTED, "linewidth": 0.9}  # of the memory that there is
_AXIS = {"time": "time of one call", "memory": "memory of one device"}


@dataclasses.dataclass(frozen=True)
class Panel:
    """The rows of one panel: of one pass, and of one target."""

    title: str
    results: Sequence[Result]


def draw(grid: Sequence[Sequence[Panel]], quantity: str, title: str) -> Figure | None:
    """The figure, rows of panels with the same scales; None where there is no point to draw."""
    results = [r for row in grid for panel in row for r in panel.results]
    if not any(_value(quantity)(r) for r in results):
        return None
    ticks, reasons = round_steps(*_range(results, quantity), quantity), _reasons(results, quantity)
    columns = max(map(len, grid))
    wide = _SIDE + (columns * (_WIDE + 0.6) - 0.6 if columns > 1 else 1.3 * _WIDE)
    tall = [
        max(_TALL, 0.9 + _LINE * len({r.case.label for panel in row for r in panel.results}))
        for row in grid
    ]
    first = trends.describe_busy(results) if quantity == "time" else ""
    letters = int(wide / 0.078)
    head = [*textwrap.wrap(first, letters), *textwrap.wrap(title, letters)]
    foot = textwrap.wrap(_foot(results, quantity), int(wide / 0.066))
    with figure_files.style():
        figure = Figure(
            figsize=(wide, sum(tall) + 0.2 * (len(head) + len(foot))), layout="constrained"
        )
        subplots = figure.subplots(
            len(grid), columns, sharex=True, sharey=True, squeeze=False,
            gridspec_kw={"height_ratios": tall},
        )  # fmt: skip
        for row, panels in zip(grid, subplots, strict=True):
            for axes, panel in zip(panels, row, strict=False):
                axes.set_title(textwrap.fill(panel.title, letters if columns == 1 else _TITLE))
                _scales(axes, results, quantity, ticks, reasons)
                _guides(axes, panel.results, quantity)
                _curves(axes, panel.results, quantity)
                _lost(axes, panel.results, quantity, reasons)
                limit = _available(panel.results) if quantity == "memory" else None
                if limit and ticks[0] < limit[1] < ticks[-1]:
                    axes.axhline(limit[1], **_LIMIT)
            for axes in panels[len(row) :]:
                axes.remove()
            panels[0].set_ylabel(_AXIS[quantity])
            _legend(panels[len(row) - 1], row, quantity)
        for axes in subplots[-1]:
            axes.set_xlabel(AXES[axis_of(results)].title)
        figure.suptitle("\n".join(head), x=0.01, ha="left", fontsize=9.5, color=INK)
        figure.supxlabel("\n".join(foot), x=0.01, ha="left", fontsize=7.5, color=MUTED)
    return figure


def _value(quantity: str) -> Any:
    return trends.seconds if quantity == "time" else trends.memory


def _lines(results: Sequence[Result], quantity: str) -> dict[str, trends.Line]:
    return trends.lines(results, results[0].case.passes, _value(quantity))


def _known_need(result: Result, quantity: str) -> float | None:
    """What a case without a result is known to need."""
    return trends.needs(result) if quantity == "memory" and result.status != "ok" else None


def _reasons(results: Iterable[Result], quantity: str) -> list[str]:
    """Why cases have no height: the rows of the band."""
    lost = (r for r in results if r.status != "ok" and not _known_need(r, quantity))
    return sorted({SHORT[r.status] for r in lost})


def _legend(axes: Any, row: Sequence[Panel], quantity: str) -> None:
    """The names of a row's lines beside its last panel, in the order of their ends there."""
    every = [r for panel in row for r in panel.results]
    ends = {r.case.label: 0.0 for r in every}
    for r in row[-1].results:
        height = _value(quantity)(r) or _known_need(r, quantity) or 0.0
        ends[r.case.label] = max(ends[r.case.label], height)
    labels = sorted(ends, key=lambda label: -ends[label])
    handles = [Line2D([], [], **_style(label, every), label=label) for label in labels]
    limit = _available(every) if quantity == "memory" else None
    if limit and limit[1] < axes.get_ylim()[1]:
        handles.append(Line2D([], [], **_LIMIT, label=limit[0]))
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8,
        handlelength=3,
    )  # fmt: skip


def _range(results: Sequence[Result], quantity: str) -> tuple[float, float]:
    """From below the points, where there is room for the guides, to above them."""
    numbers = [y for r in results if (y := _value(quantity)(r) or _known_need(r, quantity))]
    if quantity == "time":
        numbers += [s for r in results if r.status == "ok" for s in r.seconds]
    elif results[0].case.target is not None:
        numbers += [float(r.available_bytes) for r in results if r.available_bytes]
    low, high = min(numbers), max(numbers)
    return low / max(2.5, (high / low) ** 0.12), high * 1.05


def round_steps(low: float, high: float, quantity: str) -> list[float]:
    """The finest round steps from below `low` to above `high` that are no more than ten.

    >>> round_steps(0.003, 4.0, "time")
    [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    >>> [human(y) for y in round_steps(5e6, 2**33, "memory")]
    ['4.00 MiB', '16.0 MiB', '64.0 MiB', '256 MiB', '1.00 GiB', '4.00 GiB', '16.0 GiB']
    """
    parts: tuple[float, ...]
    for step in itertools.count():
        if quantity == "memory":
            parts, base = (1.0,), 2.0 ** (step + 1)
        else:
            parts, base = _DECIMAL[min(step, 2)], 10.0 ** max(1, step - 1)
        first = math.floor(math.log(low, base))
        last = math.floor(math.log(high, base))
        every = [p * base**k for k in range(first - 1, last + 2) for p in parts]
        start = max(i for i, y in enumerate(every) if y <= low * (1 + 1e-6))
        end = next(i for i, y in enumerate(every) if y >= high * (1 - 1e-6) and i > start)
        if end - start < _MOST_TICKS:
            return [float(f"{y:.15g}") for y in every[start : end + 1]]
    raise AssertionError


def _scales(
    axes: Any,
    results: Sequence[Result],
    quantity: str,
    ticks: Sequence[float],
    reasons: Sequence[str],
) -> None:
    axis_name = axis_of(results)
    sizes = sorted({size_of(r, axis_name) for r in results})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    step = math.ceil(len(sizes) / 7)
    shown = sorted(sizes[::-1][::step])
    axes.set_xticks(shown, [thousands(n) for n in shown])
    axes.set_xlim(sizes[0] / 1.2, sizes[-1] * 1.2)
    form = duration if quantity == "time" else human
    rows = [_height(ticks, i) for i in range(len(reasons))]
    axes.set_yticks([*ticks, *rows], [*(_plain(form(y)) for y in ticks), *reasons])
    axes.set_ylim(ticks[0], _height(ticks, len(rows) - 0.4) if rows else ticks[-1])
    if rows:
        axes.axhspan(ticks[-1], axes.get_ylim()[1], color=FILL, linewidth=0, zorder=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid()


def _height(ticks: Sequence[float], row: float) -> float:
    """Where a row of the band above the scale is."""
    return ticks[-1] * (ticks[-1] / ticks[0]) ** (_BAND * (row + 0.8))


def _guides(axes: Any, results: Sequence[Result], quantity: str) -> None:
    """Lines of slope 1 and 2 below all points, over a range that shows the difference."""
    lines = _lines(results, quantity).values()
    points = [(n, y) for line in lines for n, y in line.items()]
    first = min((n for n, _ in points), default=1)
    last = max((n for n, _ in points), default=1)
    over_devices = axis_of(results) == "devices"
    guides = _GUIDES_OF_DEVICES if over_devices else _GUIDES
    if over_devices and len({r.case.batch for r in results}) > 1:
        return  # as much work a device
    few = max(map(len, lines)) < _FEWEST or last < 4 * first
    if not points or (few and not over_devices):
        return
    for power, name in guides:
        scale = 0.75 * min(y / n**power for n, y in points)
        start = first if power < 0 else max(first, (axes.get_ylim()[0] / scale) ** (1 / power))
        if start > last / 2:
            continue
        ends = start, last
        at = start * (last / start) ** (0.15 if power == 1 else 0.5)  # apart from each other
        dots = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (1, 2)), "zorder": 1}
        axes.plot(ends, [scale * n**power for n in ends], **dots)
        axes.annotate(
            name, (at, scale * at**power), xytext=(3, -3), textcoords="offset points",
            va="top", color=MUTED, fontsize=8,
        )  # fmt: skip


def _available(results: Sequence[Result]) -> tuple[str, float] | None:
    """The memory that was free, or that the target has, and its name."""
    free = min((float(r.available_bytes) for r in results if r.available_bytes), default=None)
    target = results[0].case.target
    if free is None:
        return None
    if target is None:
        return f"{human(free)} available", free
    device = targets.parse(target).device
    if device.kind != "cuda":
        return f"{human(free)} of {target}", free
    return f"{human(free)} ({targets.GPU_SHARE:.0%} of {target})", free


def _curves(axes: Any, results: Sequence[Result], quantity: str) -> None:
    """The lines, each a little thinner than the one before, so that equal ones show both."""
    axis = axis_of(results)
    lines = _lines(results, quantity)
    for i, (label, line) in enumerate(lines.items()):
        share = i / max(1, len(lines) - 1)
        style = _style(label, results)
        style["markersize"] *= 1.4 - 0.5 * share
        opened = style | {"linestyle": "", "markerfacecolor": "white"}
        mine = [r for r in results if r.case.label == label]
        axes.plot(*_points(line), **style, linewidth=2.8 - 1.6 * share, zorder=4)
        if quantity == "time":
            busy = {n: line[n] for r in mine if r.busy and (n := size_of(r, axis)) in line}
            axes.plot(*_points(busy), **opened, zorder=5)
            ends = [(size_of(r, axis), min(r.seconds), max(r.seconds)) for r in mine if r.seconds]
            axes.fill_between(
                *np.reshape(sorted(ends), (-1, 3)).T, color=style["color"], alpha=0.16,
                linewidth=0, zorder=3,
            )  # fmt: skip
        needs = {size_of(r, axis): y for r in mine if (y := _known_need(r, quantity))}
        dotted = dict([*list(line.items())[-1:], *sorted(needs.items())])
        axes.plot(*_points(dotted), color=style["color"], linewidth=1, linestyle=":", zorder=3)
        axes.plot(*_points(needs), **opened, zorder=5)


def _points(line: trends.Line) -> tuple[list[int], list[float]]:
    return list(line), list(line.values())


def _lost(axes: Any, results: Sequence[Result], quantity: str, reasons: Sequence[str]) -> None:
    """A tick in the band above the scale for each case without a height, side by side."""
    axis, ticks = axis_of(results), axes.get_yticks()
    places: dict[tuple[int, int], list[str]] = {}
    for r in results:
        if r.status != "ok" and not _known_need(r, quantity):
            place = size_of(r, axis), reasons.index(SHORT[r.status])
            places.setdefault(place, []).append(r.case.label)
    for (n, row), labels in places.items():
        for i, label in enumerate(labels):
            beside = 1.06 ** (i - (len(labels) - 1) / 2)
            axes.plot(
                [n * beside], [ticks[row - len(reasons)]], marker="|", markersize=7, zorder=5,
                markeredgewidth=2, color=_style(label, results)["color"],
            )  # fmt: skip


def _foot(results: Sequence[Result], quantity: str) -> str:
    """How the figure is to be read; of open marks only where there are any."""
    words = []
    if quantity == "time":
        words.append("Points are medians; a band goes from the fastest to the slowest repeat.")
        if any(r.busy for r in results):
            words.append("Open: measured beside other work.")
    if any(_known_need(r, quantity) for r in results):
        words.append("Open, dotted: what the compiled program needs; it did not run.")
    if reasons := _reasons(results, quantity):
        words.append(f"Above the scale, without a number: {', '.join(reasons)}.")
    return " ".join(words)


def _style(label: str, results: Sequence[Result]) -> dict[str, Any]:
    cases = {r.case.label: r.case for r in results}
    names = list(dict.fromkeys(case.mechanism for case in cases.values()))
    name, way = cases[label].mechanism, cases[label].implementation or ""
    color, marker = of_attention(name, names)
    rank = [x for x in names if of_attention(x, names)[0] == color].index(name)
    marker = _FURTHER[(rank - 1) % len(_FURTHER)] if rank else marker
    size = 8 if marker == "*" else 5.5
    return {
        "color": color, "marker": marker, "markersize": size, "linestyle": _DASHES[way],
    }  # fmt: skip


def _plain(text: str) -> str:
    """`10.0 ms` as a tick: `10 ms`."""
    number, unit = text.split(" ")
    return f"{float(number):g} {unit}"


def thousands(n: int) -> str:
    """A length in units of 1024.

    >>> thousands(1000), thousands(4096), thousands(2**20)
    ('1000', '4k', '1M')
    """
    units = ((2**20, "M"), (2**10, "k"), (1, ""))
    size, unit = next(pair for pair in units if n % pair[0] == 0)
    return f"{n // size}{unit}"
