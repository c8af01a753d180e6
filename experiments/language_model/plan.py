"""What a run does, one item after the other, and the rows that each item has when it is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from experiments.language_model.evaluate import evaluations
from experiments.language_model.settings import Settings
from experiments.language_model.training import Cell

__all__ = ["Compiled", "Copying", "Item", "Timed", "keys", "plan", "title"]


@dataclasses.dataclass(frozen=True)
class Timed:
    """All models' steps at one length, timed in turns."""

    length: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One model's step over lengths, compiled for an absent accelerator."""

    target: str
    model: str


@dataclasses.dataclass(frozen=True)
class Copying:
    """One model on the copy task."""

    model: str


Item = Cell | Timed | Compiled | Copying


def plan(settings: Settings) -> list[Item]:
    """The items in their order: what the answer at each length needs, then what it rests on."""

    def cells(length: int, seeds: Sequence[int]) -> list[Item]:
        return [Cell(model, length, seed) for seed in seeds for model in settings.models]

    first, rest = settings.seeds[:1], settings.seeds[1:]
    trains, times, copies = (part in settings.parts for part in ("train", "cost", "copy"))
    found: list[Item] = []
    for length in settings.lengths:
        found += cells(length, first) if trains else []
        found += [Timed(length)] if times and length in settings.cost_lengths else []
    if times:
        longer = [length for length in settings.cost_lengths if Timed(length) not in found]
        found += [Timed(length) for length in longer]
    found += [Copying(model) for model in settings.copy_models] if copies else []
    if times:
        found += [Compiled(target, m) for target in settings.target for m in settings.models]
    for length in settings.lengths if trains else ():
        found += cells(length, rest)
    return found


def keys(item: Item, settings: Settings) -> list[tuple[Any, ...]]:
    """The keys of an item's rows."""
    match item:
        case Cell():
            where = (item.model, item.length, item.seed)
            return [("quality", *where, name) for name in evaluations(item, settings)]
        case Timed():
            return [("cost", model, item.length, "") for model in settings.models]
        case Compiled():
            return [("cost", item.model, length, item.target) for length in settings.target_lengths]
        case Copying():
            return [("copy", item.model)]


def title(item: Item) -> str:
    """What is said before an item is measured."""
    match item:
        case Cell():
            return str(item)
        case Timed():
            return f"a step at {item.length:,} tokens"
        case Compiled():
            return f"{item.model} compiled for {item.target}"
        case Copying():
            return f"{item.model} learns to copy"
