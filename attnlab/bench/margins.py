"""Names of lines beside a panel, moved apart: where there are curves, words would hide them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from attnlab.bench import trends
from attnlab.runs.palette import INK


@dataclasses.dataclass(frozen=True)
class Name:
    """What stands in the margin for a line.

    Attributes:
      label: name of the line.
      growth: growth of the line, where that is known.
      reason: reason why the line ends, in a smaller text below.
      style: style of the line and its marker.
      length: length at which the line ends.
      height: value at which the line ends; None for the top of the panel.
    """

    label: str
    growth: trends.Growth | None
    reason: str
    style: dict[str, Any]
    length: int
    height: float | None

    @property
    def text(self) -> str:
        """The name, and how it grows."""
        return self.label + ("" if self.growth is None else f"  $n^{{{self.growth}}}$")

    @property
    def inches(self) -> float:
        """About as wide as its text."""
        power = 0.0 if self.growth is None else 0.2 + 0.055 * len(str(self.growth))
        return max(0.072 * len(self.label) + power, 0.057 * len(self.reason))

    @property
    def texts(self) -> int:
        """Lines of text."""
        return 1 + bool(self.reason)


def write(axes: Any, names: Sequence[Name], gap: float) -> None:
    """Each line's name to the right of it, moved up or down where names would touch.

    Args:
      axes: panel with its scales and limits, logarithmic.
      names: names of its lines.
      gap: distance between two lines of text, in heights of the panel.
    """
    low, high = axes.get_ylim()

    def wanted(name: Name) -> float:
        return 0.975 if name.height is None else math.log(name.height / low, high / low)

    order = sorted(names, key=wanted)
    places = spread_out([wanted(n) for n in order for _ in range(n.texts)], gap)
    for i in reversed(range(len(places))):  # none above the panel, then none below
        places[i] = min(places[i], 1.0 - (len(places) - 1 - i) * gap)
    places = [max(place, i * gap) for i, place in enumerate(places)]
    to_axes = axes.transAxes.inverted()
    left = iter(places)
    for name in order:
        reason = next(left) if name.reason else 0.0
        place, style = next(left), name.style
        x, _ = to_axes.transform(axes.transData.transform((name.length, high)))
        plain: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        axes.plot(
            [x + 0.015, 1.03, 1.055], [wanted(name), place, place], color=style["color"],
            linewidth=0.7, alpha=0.8, zorder=2, **plain,
        )  # fmt: skip
        axes.plot([1.075], [place], **style, **plain)
        axes.text(1.1, place, name.text, color=INK, va="center", transform=axes.transAxes)
        if name.reason:
            axes.text(
                1.1, reason, name.reason, color=INK, va="center", fontsize=7.5,
                transform=axes.transAxes,
            )  # fmt: skip


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights moved as little as need be so that neighbors are `gap` apart.

    >>> [round(y, 2) for y in spread_out([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    groups: list[list[float]] = []  # [sum of wanted centers, count]: blocks that touch
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
