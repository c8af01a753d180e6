"""The loss of one or several runs over steps: a pure function of their metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attnlab.runs import figure_files
from attnlab.runs.palette import GRID, MUTED, SERIES
from attnlab.training.curve import read_metrics

__all__ = ["curve", "first_curves", "training_curve"]

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


def first_curves(folders: Iterable[tuple[str, Path]]) -> dict[str, list[dict[str, Any]]]:
    """The metrics of each model, in the first of its folders.

    Args:
      folders: name of a model and folder of a training of it, in any number.
    """
    first: dict[str, Path] = {}
    for name, folder in folders:
        first.setdefault(name, folder)
    return {name: read_metrics(folder) for name, folder in first.items()}


def training_curve(
    runs: Mapping[str, Sequence[Row]],
    *,
    looks: Mapping[str, tuple[str, str]] | None = None,
    quantity: str = "nll",
    label: str = "−log p (nats a token)",
    title: str = "",
) -> Figure:
    """Loss over steps, a color a model: training thin, validation with marks and its least named.

    Args:
      runs: rows of each model's run by its name, from `curve.read_metrics`.
      looks: color and marker of each model; None = those of a series.
      quantity: name of a number in the rows. `nll` is comparable between training and validation,
        and between models; `loss` has label smoothing in it.
      label: name of that number for a reader, with its unit.
      title: title above the figure.

    Raises:
      ValueError: no row has it.
    """
    looks = looks or {name: SERIES[i % len(SERIES)] for i, name in enumerate(runs)}
    lines = {
        name: (curve(rows, "training", quantity), curve(rows, "validation", quantity))
        for name, rows in runs.items()
    }
    if not any(steps for pair in lines.values() for steps, _ in pair):
        raise ValueError(f"no row has {quantity!r}; give the metrics of a run that made steps")
    with figure_files.style():
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        handles = []
        for name, (train, held_out) in lines.items():
            color, marker = looks[name]
            axes.plot(*train, color=color, linewidth=0.9, alpha=0.6, zorder=2)
            axes.plot(*held_out, color=color, linewidth=1.6, marker=marker, markersize=5, zorder=3)
            best = min(filter(math.isfinite, held_out[1]), default=None)
            said = name if best is None else f"{name} (best {best:.2f})"
            handles.append(Line2D([], [], color=color, marker=marker, markersize=5, label=said))
        styles: dict[str, dict[str, Any]] = {
            "training": dict(linewidth=0.9, alpha=0.7),
            "validation": dict(linewidth=1.6, marker="o", markersize=4),
        }
        for said, style in styles.items():
            handles.append(Line2D([], [], color=MUTED, label=said, **style))
        axes.set_ylim(*_limits([pair[0][1] + pair[1][1] for pair in lines.values()]))
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        figure.legend(handles=handles, loc="outside right upper", frameon=False)
        axes.set_title(title)
    return figure


def _limits(losses: Sequence[Sequence[float]]) -> tuple[float, float]:
    finite = [x for some in losses for x in some if math.isfinite(x)]
    return 0.0, 1.03 * max(finite, default=1.0)
