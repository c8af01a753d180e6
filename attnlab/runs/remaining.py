"""How long the rest of a run takes, by the time that its items took so far."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar

from attnlab.runs.rows import Kept

__all__ = ["of_items", "round_time", "said", "spent"]

Item = TypeVar("Item", bound=Hashable)


def of_items(
    left: Iterable[Item],
    known: Mapping[Item, float],
    alike: Callable[[Item], Sequence[Hashable]],
) -> float | None:
    """Seconds of the items that are left: of one not known, the mean of those most like it.

    `alike` says what an item shares with others that take about as long, the closest first; where
    no known item has any of it, all of them count. None = no item is left, or none is known.

    >>> of_items(["a2", "b2"], {"a1": 1.0, "c1": 9.0}, lambda item: item[0])
    6.0
    """
    groups: dict[tuple[int, Hashable], list[float]] = {}
    for item, seconds in known.items():
        for group in enumerate(alike(item)):
            groups.setdefault(group, []).append(seconds)
    total = 0.0
    for item in left if known else ():
        closest = (groups[group] for group in enumerate(alike(item)) if group in groups)
        total += known[item] if item in known else fmean(next(closest, known.values()))
    return total or None


def spent(kept: Mapping[Item, Kept[Any]]) -> dict[Item, float]:
    """Seconds of wall time from each row back to the one before, or to the beginning of its run."""
    seconds: dict[Item, float] = {}
    last: dict[datetime.datetime, datetime.datetime] = {}
    for item, entry in sorted(kept.items(), key=lambda pair: pair[1].where.time):
        begun, time = map(datetime.datetime.fromisoformat, (entry.where.begun, entry.where.time))
        seconds[item] = (time - last.get(begun, begun)).total_seconds()
        last[begun] = time
    return seconds


def said(seconds: float) -> str:
    """A time that is left, as a terminal shows it.

    >>> said(41.3), said(4000.0)
    ('about 41 s left', 'about 1 h 07 min left')
    """
    return f"about {round_time(seconds)} left"


def round_time(seconds: float) -> str:
    """A time in hours and minutes, in minutes or in seconds.

    >>> round_time(41.3), round_time(400.0), round_time(4000.0)
    ('41 s', '7 min', '1 h 07 min')
    """
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if seconds >= 90 else f"{seconds:.0f} s"
