"""How long the rest of a run takes, by the time that its steps and items took so far."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from attnlab.runs.rows import Kept

__all__ = ["of_items", "of_steps", "said", "spent"]

Item = TypeVar("Item", bound=Hashable)


def of_steps(left: int, stretches: Sequence[tuple[int, float]]) -> float:
    """Seconds of the steps that are left: left · √(mean · median) of the seconds a step.

    The mean counts a pause in full, such as other work on the machine, and the median not at all.

    Args:
      left: number of steps to come.
      stretches: number of steps and seconds of each stretch so far, without what comes but once.

    >>> of_steps(100, [(10, 1.0), (10, 1.0), (10, 10.0)])
    20.0
    """
    steps, seconds = map(sum, zip(*stretches, strict=True))
    median = statistics.median(time / count for count, time in stretches)
    return left * math.sqrt(seconds / steps * median)


def of_items(
    left: Sequence[Item],
    known: Mapping[Item, float],
    alike: Callable[[Item], Sequence[Hashable]],
) -> float | None:
    """Seconds of the items that are left, by those that are most like them; None = no idea.

    Args:
      left: items to come.
      known: seconds of items that are done, or foreseen otherwise.
      alike: (item) -> what it shares with items that take about as long, the closest first; where
        no known item has any of it, it takes as long as the mean of all.

    >>> of_items(["a2", "b2"], {"a1": 1.0, "c1": 9.0}, lambda item: item[0])
    6.0
    """
    if not left or not known:
        return None
    groups: dict[tuple[int, Hashable], list[float]] = {}
    for item, seconds in known.items():
        for one in enumerate(alike(item)):
            groups.setdefault(one, []).append(seconds)

    def seconds_of(item: Item) -> float:
        closest = (groups[one] for one in enumerate(alike(item)) if one in groups)
        return known[item] if item in known else statistics.fmean(next(closest, known.values()))

    return sum(map(seconds_of, left))


def spent(kept: Mapping[Item, Kept[Any]]) -> dict[Item, float]:
    """Seconds of wall time from each row back to the one before, or to the beginning of its run."""
    found: dict[Item, float] = {}
    last: dict[datetime.datetime, datetime.datetime] = {}
    for item, one in sorted(kept.items(), key=lambda pair: pair[1].where.time):
        begun, time = map(datetime.datetime.fromisoformat, (one.where.begun, one.where.time))
        found[item] = (time - last.get(begun, begun)).total_seconds()
        last[begun] = time
    return found


def said(seconds: float) -> str:
    """A time that is left, as a terminal shows it.

    >>> said(41.3), said(400.0), said(4000.0)
    ('about 41 s left', 'about 7 min left', 'about 1 h 07 min left')
    """
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"about {minutes // 60} h {minutes % 60:02d} min left"
    return f"about {minutes} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
