"""The loss of one or several runs over steps: a pure function of their metrics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attnlab.runs import figure_files
from attnlab.runs.palette import MUTED, of_lines

__all__ = ["curve", "training_curve"]

Row = Mapping[str, Any]


def curve(rows: Iterable[Row], kind: str, name: str) -> tuple[list[int], list[float]]:
    """Steps, rising, and the values of `name` in the rows of that kind.

    Where a step comes twice, as after a resume, the later row holds.

    >>> rows = [{"kind": "training", "step": step, "nll": x} for step, x in ((2, 9.0), (1, 3.0))]
    >>> curve([*rows, {"kind": "training", "step": 2, "nll": 2.0}], "training", "nll")
    ([1, 2], [3.0, 2.0])
    """
    values = {row["step"]: row[name] for row in rows if row["kind"] == kind and name in row}
    return sorted(values), [values[step] for step in sorted(values)]


def training_curve(
    runs: Mapping[str, Mapping[int, Sequence[Row]]],
    *,
    quantity: str = "nll",
    label: str = "−log p (nats a token)",
) -> Figure:
    """Loss over steps, a color a model: training thin, validation with marks and its least named.

    Of several seeds training has a line each; validation is their mean, from the least to the
    greatest. Where the largest value is more than 100 times the least the axis is logarithmic.

    Args:
      runs: rows of each model's trainings by its name and their seed, from `curve.read_metrics`.
      quantity: name of a number in the rows. `nll` is comparable between training and validation,
        and between models; `loss` has label smoothing in it.
      label: name of that number for a reader, with its unit.
    """
    values = [
        row[quantity] for seeds in runs.values() for rows in seeds.values() for row in rows
        if quantity in row and math.isfinite(row[quantity])
    ]  # fmt: skip
    with figure_files.style():
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        handles = []
        for name, (color, marker) in of_lines(list(runs)).items():
            for rows in runs[name].values():
                axes.plot(*curve(rows, "training", quantity), color=color, linewidth=0.9, alpha=0.6)
            steps, means, low, high = _over_seeds(runs[name].values(), quantity)
            axes.plot(steps, means, color=color, linewidth=1.6, marker=marker, markersize=5)
            axes.fill_between(steps, low, high, color=color, alpha=0.16, linewidth=0)
            best = min(filter(math.isfinite, means), default=None)
            said = name if best is None else f"{name} (best {best:.3g})"
            handles.append(Line2D([], [], color=color, marker=marker, markersize=5, label=said))
        styles: dict[str, dict[str, Any]] = {
            "training": dict(linewidth=0.9, alpha=0.7),
            f"validation, {_seeds(runs)}": dict(linewidth=1.6, marker="o", markersize=4),
        }
        for said, style in styles.items():
            handles.append(Line2D([], [], color=MUTED, label=said, **style))
        if 0 < 100 * min(values) < max(values):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        else:
            axes.set_ylim(figure_files.limits(values))
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.grid()
        figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False)
    return figure


def _over_seeds(
    seeds: Iterable[Sequence[Row]], quantity: str
) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps that all seeds were validated at; mean, least and greatest value at each."""
    lines = [dict(zip(*curve(rows, "validation", quantity), strict=True)) for rows in seeds]
    steps = sorted(set.intersection(*map(set, lines)))
    values = [[line[step] for line in lines] for step in steps]
    return steps, [statistics.fmean(x) for x in values], [*map(min, values)], [*map(max, values)]


def _seeds(runs: Mapping[str, Mapping[int, Any]]) -> str:
    most = max(runs.values(), key=len)
    return f"mean and range of {len(most)} seeds" if len(most) > 1 else f"seed {min(most)}"
