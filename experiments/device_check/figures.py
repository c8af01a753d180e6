"""Time and memory over length as log-log figures, a panel a pass: functions of the timed rows."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from attnlab.bench import trends
from attnlab.bench.case import PASSES, Result
from attnlab.bench.margins import spread_out
from attnlab.runs.units import human
from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, MECHANISMS, MUTED
from attnlab.runs.units import duration
from attnlab.bench.case import PASS_TITLES
from experiments.device_check.report import over_lengths

_STYLES = MECHANISMS | {"flash": (MUTED, "d")}  # the platform's own, beside ours
_DASHES = {"": "-", "pallas": "--", "sorted": (0, (1, 1)), "blockwise": "-."}


def save(timed: Sequence[Result], folder: Path) -> list[Path]:
    """Writes time and memory as SVG and PNG; nothing where no program ran."""
    return figure_files.save({name: draw(timed, name) for name in ("time", "memory")}, folder)


def draw(timed: Sequence[Result], quantity: str) -> Figure | None:
    """One figure, or None where there is nothing to draw."""
    rows = over_lengths(timed)
    value = trends.seconds if quantity == "time" else trends.memory
    panels = {p: trends.lines(rows, p, value) for p in PASSES}
    panels = {p: lines for p, lines in panels.items() if any(lines.values())}
    if not panels:
        return None
    with figure_files.style():
        panel, left, names = 3.9, 0.75, 1.75  # inches: a panel, its ticks, the names of its lines
        width, height = len(panels) * (left + panel + names), 4.4
        figure = Figure(figsize=(width, height))
        every: list[Any] = []
        for i in range(len(panels)):
            x = (i * (left + panel + names) + left) / width
            box = (x, 0.12, panel / width, 0.74)
            every.append(figure.add_axes(box, sharey=every[0] if every else None))
        for axes, (passes, lines) in zip(every, panels.items(), strict=True):
            axes.set_title(PASS_TITLES[passes])
            _scales(axes, sorted({n for line in lines.values() for n in line}), quantity)
            for label, line in lines.items():
                if line:
                    axes.plot(*zip(*line.items(), strict=True), **_style(label), linewidth=1.5)
        for axes, lines in zip(every, panels.values(), strict=True):
            _labels(axes, lines)
        case = rows[0].case
        device = rows[0].environment.get("device", "")
        what = "Time of one call" if quantity == "time" else "Memory by the compiler"
        figure.suptitle(
            f"{what} over length — {case.batch * case.length} tokens or one sequence, "
            f"{case.num_heads} heads × {case.head_dim}, {case.dtype}, causal — {device}",
            fontsize=9,
            x=0.01,
            ha="left",
        )
    return figure


def _style(label: str) -> dict[str, Any]:
    name, _, way = label.partition(" ")
    color, marker = _STYLES[name]
    size = 8 if marker == "*" else 5
    dashes = _DASHES.get(way.strip("()"), ":")
    return {"color": color, "marker": marker, "markersize": size, "linestyle": dashes}


def _scales(axes: Any, lengths: Sequence[int], quantity: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10 if quantity == "time" else 2)
    axes.set_xticks(lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("length n (tokens)")
    form = duration if quantity == "time" else human
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _plain(form(y))))
    if quantity == "memory":
        axes.yaxis.set_major_locator(LogLocator(base=2))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_tick_params(labelleft=True)
    axes.grid(which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _labels(axes: Any, lines: dict[str, trends.Line]) -> None:
    """Each line's name to the right of the panel, joined to its last point."""
    low, high = axes.get_ylim()
    ends = {label: list(line.items())[-1] for label, line in lines.items() if line}
    height = {label: math.log(y / low) / math.log(high / low) for label, (_, y) in ends.items()}
    order = sorted(ends, key=lambda label: height[label])
    places = spread_out([height[label] for label in order], 0.06)
    to_axes = axes.transAxes.inverted()
    for label, place in zip(order, places, strict=True):
        color = _style(label)["color"]
        x, y = to_axes.transform(axes.transData.transform(ends[label]))
        axes.plot(
            [x + 0.012, 1.02, 1.05], [y, place, place], color=color, linewidth=0.7, alpha=0.7,
            transform=axes.transAxes, clip_on=False,
        )  # fmt: skip
        axes.text(1.06, place, label, color=color, va="center", transform=axes.transAxes)


def _plain(text: str) -> str:
    """`10.0 ms` as a tick: `10 ms`."""
    number, unit = text.split(" ")
    return f"{float(number):g} {unit}"
