"""How every figure looks, and how it is written."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

__all__ = ["save", "style"]


def style() -> AbstractContextManager[None]:
    """A context in which figures are drawn and written in the house style."""
    return matplotlib.rc_context(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "svg.fonttype": "path",  # the same on a machine without the font
            "svg.hashsalt": "attnlab",  # the same rows give the same file
        }
    )


def save(figures: Mapping[str, Figure | None], folder: Path) -> list[Path]:
    """Writes NAME.svg and NAME.png of each figure that there is; returns their paths."""
    written = []
    with style():
        for name, figure in figures.items():
            if figure is None:
                continue
            for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
                path = folder / f"{name}.{kind}"
                figure.savefig(path, format=kind, **options)
                written.append(path)
    return written
