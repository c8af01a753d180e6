"""A figure of log-log panels, time or memory over length, with the names of lines to their right.

Names, exponents and reasons stand in the margin, where they are moved apart; what stands inside of
a panel is below all of its points.
"""

import dataclasses
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from attnlab.bench import margins, targets, trends
from attnlab.bench.case import AXES, SHORT, Result, axis_of, size_of
from attnlab.bench.margins import Name
from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, INK, MUTED, of_attention
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
_LEFT, _WIDE, _TALL = 0.95, 3.7, 3.3  # inches: the ticks of a panel, and the least panel
_TEXT, _BETWEEN = 0.175, 0.85  # inches: a line of names, what is between two rows of panels
_MARKS = {"too_large": "x", "too_slow": "o"}  # a case without a result
_OTHER_MARK = "+"
_LIMIT = {"color": MUTED, "linestyle": "-", "marker": ""}  # of the memory that there is
_MOST_TICKS = 10
_DECIMAL: tuple[tuple[float, ...], ...] = ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))
_GUIDES = ((1, "∝ n"), (2, "∝ n²"))
_GUIDES_OF_DEVICES = ((-1, "∝ 1/d"),)
_AXIS = {"time": "time of one call", "memory": "memory of one device"}
_FOOT = {
    "time": "Points are medians; a band goes from the fastest to the slowest repeat.",
    "memory": "Dotted: to what a program needs that did not run.",
}


@dataclasses.dataclass(frozen=True)
class Panel:
    """The rows of one panel: of one pass, and of one target."""

    title: str
    results: Sequence[Result]


def draw(grid: Sequence[Sequence[Panel]], quantity: str, title: str) -> Figure | None:
    """The figure, its panels with the same scales; None where there is no point to draw.

    Args:
      grid: rows of panels.
      quantity: "time" or "memory".
      title: heading of the whole figure.
    """
    panels = [panel for row in grid for panel in row]
    results = [r for panel in panels for r in panel.results]
    if not any(_value(quantity)(r) for r in results):
        return None
    ticks = _ticks(*_range(results, quantity), quantity)
    names = [[_names(panel.results, quantity, ticks) for panel in row] for row in grid]
    every = [name for row in names for of_panel in row for name in of_panel]
    margin = 0.5 + max(name.inches for name in every)
    wide = max(map(len, grid)) * (_LEFT + _WIDE + margin)
    tall = [max(_TALL, *(_TEXT * sum(n.texts for n in panel) for panel in row)) for row in names]
    first = trends.disturbed(results) if quantity == "time" else ""
    head = [*textwrap.wrap(first, int(wide / 0.084)), *textwrap.wrap(title, int(wide / 0.084))]
    fitted = any(name.growth for name in every)
    foot = textwrap.wrap(_foot(results, quantity, fitted=fitted), int(wide / 0.064))
    top, bottom = 0.15 + 0.18 * len(head), 0.1 + 0.14 * len(foot)
    height = top + sum(tall) + _BETWEEN * len(grid) + bottom
    with figure_files.style():
        figure = Figure(figsize=(wide, height))
        y = height - top
        for i, row in enumerate(grid):
            y -= tall[i] + _BETWEEN
            for j, panel in enumerate(row):
                x = j * (_LEFT + _WIDE + margin) + _LEFT
                box = (x / wide, (y + 0.5) / height, _WIDE / wide, tall[i] / height)
                axes = figure.add_axes(box)
                axes.set_title(panel.title)
                _scales(axes, results, quantity, ticks)
                _fill(axes, panel.results, quantity)
                for name in names[i][j]:
                    if name.style is _LIMIT and name.height is not None:
                        axes.axhline(name.height, color=MUTED, linewidth=0.9)
                margins.write(axes, names[i][j], _TEXT / tall[i])
        at = 0.1 / wide
        figure.text(at, 1 - 0.1 / height, "\n".join(head), fontsize=9.5, va="top", color=INK)
        figure.text(at, 0.08 / height, "\n".join(foot), fontsize=7.5, va="bottom", color=MUTED)
    return figure


def _fill(axes: Any, results: Sequence[Result], quantity: str) -> None:
    _guides(axes, results, quantity)
    _curves(axes, results, quantity)
    _marks(axes, results, quantity)


def _value(quantity: str) -> Any:
    return trends.seconds if quantity == "time" else trends.memory


def _lines(results: Sequence[Result], quantity: str) -> dict[str, trends.Line]:
    return trends.lines(results, results[0].case.passes, _value(quantity))


def _unmeasured(results: Iterable[Result], quantity: str) -> list[tuple[Result, float | None]]:
    """Cases without a result, small ones first, and at which height they are known to stand."""
    lost = [r for r in results if r.status != "ok"]
    lost.sort(key=lambda r: (r.case.length, r.case.num_layers or 0, r.case.batch))
    return [(r, trends.needs(r) if quantity == "memory" else None) for r in lost]


def _names(results: Sequence[Result], quantity: str, ticks: Sequence[float]) -> list[Name]:
    passes, axis = results[0].case.passes, axis_of(results)
    value = trends.needs if quantity == "memory" else trends.undisturbed
    fitted = trends.lines(results, passes, value)
    spreads = trends.spreads(results, passes) if quantity == "time" else {}
    one_batch = len({r.case.batch for r in results}) == 1  # else longer is not all that changes
    names = []
    for label, line in _lines(results, quantity).items():
        growth = trends.growth(fitted[label], spreads.get(label)) if one_batch else None
        points: list[tuple[int, float | None]] = [*line.items()]
        lost = _unmeasured((r for r in results if r.case.label == label), quantity)
        points += [(size_of(r, axis), y) for r, y in lost if y or not line]
        first = f"at {thousands(size_of(lost[0][0], axis))}" if lost else ""
        reason = f"{first} {_reason(lost[0][0])}" if lost else ""
        names.append(Name(label, growth, reason, _style(label, results), *points[-1]))
    limit = _available(results) if quantity == "memory" else None
    if limit is not None and ticks[0] < limit[1] < ticks[-1]:
        last = max(size_of(r, axis) for r in results)
        names.append(Name(limit[0], None, "", _LIMIT, last, limit[1]))
    return names


def _reason(result: Result) -> str:
    """As `needs 24.0 GiB of 17.0 GiB free` or `not run: about 40 s a call`."""
    first = result.message.partition(",")[0]
    complete = first.startswith(("needs ", "not run", "stopped"))
    return first if complete else SHORT[result.status]


def _range(results: Sequence[Result], quantity: str) -> tuple[float, float]:
    """From below the points, where there is room for the guides, to above them."""
    numbers = [y for r in results if (y := _value(quantity)(r))]
    lost = _unmeasured(results, quantity)
    numbers += [y for _, y in lost if y]
    if quantity == "time":
        numbers += [s for r in results if r.status == "ok" for s in r.seconds]
    elif results[0].case.target is not None:
        numbers += [float(r.available_bytes) for r in results if r.available_bytes]
    low, high = min(numbers), max(numbers)
    low /= max(2.5, (high / low) ** 0.12)
    return low, high * ((high / low) ** 0.12 if any(y is None for _, y in lost) else 1.0)


def _ticks(low: float, high: float, quantity: str) -> list[float]:
    """The finest round steps from below `low` to above `high` that are no more than ten.

    >>> _ticks(0.003, 4.0, "time")
    [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    >>> [human(y) for y in _ticks(5e6, 2**33, "memory")]
    ['4.00 MiB', '16.0 MiB', '64.0 MiB', '256 MiB', '1.00 GiB', '4.00 GiB', '16.0 GiB']
    """
    parts: tuple[float, ...]
    for step in itertools.count():
        if quantity == "memory":
            parts, base = (1.0,), 2.0 ** (step + 1)
        else:
            parts, base = _DECIMAL[min(step, 2)], 10.0 ** max(1, step - 1)
        first, last = (math.floor(math.log(y, base)) for y in (low, high))
        every = [p * base**k for k in range(first - 1, last + 2) for p in parts]
        start = max(i for i, y in enumerate(every) if y <= low * (1 + 1e-6))
        end = next(i for i, y in enumerate(every) if y >= high * (1 - 1e-6) and i > start)
        if end - start < _MOST_TICKS:
            return [float(f"{y:.15g}") for y in every[start : end + 1]]
    raise AssertionError


def _scales(axes: Any, results: Sequence[Result], quantity: str, ticks: Sequence[float]) -> None:
    axis_name = axis_of(results)
    sizes = sorted({size_of(r, axis_name) for r in results})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    step = math.ceil(len(sizes) / 9)
    axes.set_xticks(sizes[::step], [thousands(n) for n in sizes[::step]])
    axes.set_xlim(sizes[0] / 1.12, sizes[-1] * 1.12)
    axes.set_xlabel(AXES[axis_name].title)
    form = duration if quantity == "time" else human
    axes.set_yticks(ticks, [_plain(form(y)) for y in ticks])
    axes.set_ylim(ticks[0], ticks[-1])
    axes.set_ylabel(_AXIS[quantity])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _guides(axes: Any, results: Sequence[Result], quantity: str) -> None:
    """Lines of slope 1 and 2 below all points, over a range that shows the difference."""
    points = [(n, y) for line in _lines(results, quantity).values() for n, y in line.items()]
    first, last = (f((n for n, _ in points), default=1) for f in (min, max))
    over_devices = axis_of(results) == "devices"
    guides = _GUIDES_OF_DEVICES if over_devices else _GUIDES
    if over_devices and len({r.case.batch for r in results}) > 1:
        return  # as much work a device
    if last < 4 * first and not over_devices:
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
    whole = human(device.gpu["device_memory_size"])
    return f"{human(free)} ({targets.GPU_SHARE:.0%} of {target}'s {whole})", free


def _curves(axes: Any, results: Sequence[Result], quantity: str) -> None:
    """The lines, each a little thinner than the one before, so that equal ones show both."""
    axis = axis_of(results)
    curves = {label: line for label, line in _lines(results, quantity).items() if line}
    for i, (label, line) in enumerate(curves.items()):
        share = i / max(1, len(curves) - 1)
        style = _style(label, results)
        style["markersize"] *= 1.5 - 0.6 * share
        axes.plot(*zip(*line.items(), strict=True), **style, linewidth=2.8 - 1.6 * share, zorder=4)
        mine = [r for r in results if r.case.label == label]
        busy = [n for r in mine if r.busy and (n := size_of(r, axis)) in line]
        if quantity == "time" and busy:
            opened = style | {"linestyle": "", "markerfacecolor": "white"}
            axes.plot(busy, [line[n] for n in busy], **opened, zorder=5)
        spans = [(size_of(r, axis), min(r.seconds), max(r.seconds)) for r in mine if r.seconds]
        if quantity == "time":
            axes.fill_between(
                *zip(*sorted(spans), strict=True), color=style["color"], alpha=0.16, linewidth=0,
                zorder=3,
            )  # fmt: skip
        known = [(size_of(r, axis), y) for r, y in _unmeasured(mine, quantity) if y]
        points = [*list(line.items())[-1:], *known]
        dots = {"color": style["color"], "linewidth": 1, "linestyle": ":", "zorder": 3}
        axes.plot(*zip(*points, strict=True), **dots)


def _marks(axes: Any, results: Sequence[Result], quantity: str) -> None:
    """Of each case without a result: at its known height, or under the panel's top."""
    at_top: dict[int, int] = {}
    for result, y in _unmeasured(results, quantity):
        n = size_of(result, axis_of(results))
        row = at_top[n] = at_top.get(n, -1) + (y is None)
        axes.plot(
            [n], [0.975 - 0.045 * row if y is None else y], linestyle="none", clip_on=False,
            color=of_attention(result.case.label)[0], marker=_MARKS.get(result.status, _OTHER_MARK),
            markersize=6, markerfacecolor="none", markeredgewidth=1.6, zorder=5,
            transform=axes.get_xaxis_transform() if y is None else axes.transData,
        )  # fmt: skip


def _foot(results: Sequence[Result], quantity: str, *, fitted: bool) -> str:
    """How the figure is to be read; of marks and dotted lines only where there are any."""
    lost = {r.status for r in results} - {"ok"}
    words = [_FOOT["time"]] if quantity == "time" else []
    if fitted:
        words.append("n to the power p ± its standard error: the growth over the larger n.")
    if lost:
        signs = {"too_large": "× does not fit", "too_slow": "○ too slow"}
        words.append("; ".join(dict.fromkeys(signs.get(s, "+ failed") for s in sorted(lost))) + ".")
    if quantity == "memory" and lost:
        words.append(_FOOT["memory"])
    return " ".join(words)


def _style(label: str, results: Sequence[Result]) -> dict[str, Any]:
    labels = [r.case.label for r in results]
    name, _, way = label.partition(":")
    color, marker = of_attention(name)
    alike = [x.partition(":")[0] for x in labels if of_attention(x)[0] == color]
    rank = list(dict.fromkeys(alike)).index(name)
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
    """4096 as `4k`, 1000 as `1000`."""
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)
