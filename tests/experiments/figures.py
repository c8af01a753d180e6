"""What a figure shows, as text: its words, its scales, and the numbers of its lines and bars."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator


def describe(figures: Mapping[str, Any]) -> str:
    """A part for each figure: the words around its panels, then a paragraph for each panel."""
    parts = []
    for name, figure in figures.items():
        if isinstance(figure, Figure):
            around = [f"# {name}", _words(figure.texts)]
            around += [f"legend: {_words(legend.get_texts())}" for legend in figure.legends]
            parts.append("\n".join(filter(None, around)))
            parts += ["\n".join(_panel(axes)) for axes in figure.axes]
    return "\n\n".join(parts) + "\n"


def _panel(axes: Axes) -> Iterator[str]:
    title = axes.get_title("left") or axes.get_title()
    yield f"panel: {' '.join(title.split())}"
    yield f"x: {axes.get_xlabel()}, {axes.get_xscale()}{_ticks(axes.xaxis)}"
    yield f"y: {axes.get_ylabel()}, {axes.get_yscale()}{_ticks(axes.yaxis)}"
    for line in axes.lines:
        look = f"{to_hex(line.get_color())} {line.get_linestyle()} {line.get_marker()}"
        opened = " open" if line.get_markerfacecolor() == "white" else ""
        label = "" if str(line.get_label()).startswith("_") else f" of {line.get_label()}"
        if len(line.get_xydata()):
            yield f"line{label} [{look}{opened}]: {_points(line.get_xydata())}"
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            yield f"segments: {'; '.join(map(_points, collection.get_segments()))}"
        else:
            corners = {tuple(x) for path in collection.get_paths() for x in path.vertices}
            yield f"area: {_points(sorted(corners))}"
    for patch in axes.patches:
        if isinstance(patch, Rectangle):
            yield f"bar: {_points(patch.get_bbox().get_points())}"
    if axes.texts:
        yield f"words: {_words(axes.texts)}"
    if (legend := axes.get_legend()) is not None:
        yield f"legend: {_words(legend.get_texts())}"


def _ticks(axis: Axis) -> str:
    """The ticks that were chosen, not found by Matplotlib."""
    if not isinstance(axis.get_major_locator(), FixedLocator):
        return ""
    return f": {_words(axis.get_ticklabels())}"


def _words(texts: Iterable[Any]) -> str:
    return " | ".join(" ".join(text.get_text().split()) for text in texts)


def _points(points: Iterable[Any]) -> str:
    return " ".join(f"({float(x):.4g}, {float(y):.4g})" for x, y in points)
