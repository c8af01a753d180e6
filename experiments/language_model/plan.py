"""What a run does, one item after the other, and the rows that each item has when it is done."""

from __future__ import annotations

import dataclasses
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
    """The items in their order: what says most, first; the other seeds of it, last."""
    first, rest = (
        [
            Cell(model, length, seed)
            for seed in seeds
            for length in settings.lengths
            for model in settings.models
        ]
        for seeds in (settings.seeds[:1], settings.seeds[1:])
    )
    timed = [Timed(length) for length in settings.cost_lengths]
    copying = [Copying(model) for model in settings.copy_models]
    compiled = [Compiled(target, model) for target in settings.targets for model in settings.models]
    parts = settings.parts
    return [
        *(first if "train" in parts else []),
        *(timed if "cost" in parts else []),
        *(compiled if "cost" in parts else []),
        *(copying if "copy" in parts else []),
        *(rest if "train" in parts else []),
    ]


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
