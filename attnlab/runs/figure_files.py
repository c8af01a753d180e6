"""How every figure looks, and how it is written."""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from attnlab.runs.palette import GRID


def style() -> AbstractContextManager[None]:
    """A context in which figures are drawn and written in the house style."""
    return matplotlib.rc_context(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.7,
            "svg.fonttype": "path",  # the same on a machine without the font
            "svg.hashsalt": "attnlab",  # the same rows give the same file
        }
    )


def limits(values: Iterable[float]) -> tuple[float, float]:
    """Limits of a linear axis: from 0 where positive values come near it, else around the values.

    >>> limits([2.0, 42.0]), limits([80.0, 100.0]), limits([0.0])
    ((0.0, 44.0), (79.0, 101.0), (0.0, 1.0))
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (0.0 if low == 0 or 0 < low < high / 5 else low - room), high + room


def save(figures: Mapping[str, Figure | None], folder: Path) -> list[Path]:
    """Writes NAME.svg of each figure that there is; returns their paths."""
    written = []
    with style():
        for name, figure in figures.items():
            if figure is not None:
                part, whole = folder / f"{name}.svg.tmp", folder / f"{name}.svg"
                figure.savefig(part, format="svg", metadata={"Date": None})
                written.append(part.replace(whole))
    return written
