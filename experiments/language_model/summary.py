"""The rows put together: what a model reaches at a length, over seeds, and what it costs there."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from experiments.language_model.models import rounds_of
from experiments.language_model.rows import Copied, Cost, Quality, Row

__all__ = ["Point", "copied", "costs", "points", "qualities"]


@dataclasses.dataclass(frozen=True)
class Point:
    """One model at one length.

    Attributes:
      model: name of the model.
      length: number of tokens in a window.
      bits: bits per byte of the test part, one for each seed.
      cost: cost of a step; None = not measured.
    """

    model: str
    length: int
    bits: tuple[float, ...]
    cost: Cost | None

    @property
    def mean(self) -> float:
        """The mean of the bits over the seeds."""
        return statistics.fmean(self.bits)

    @property
    def hashes(self) -> bool:
        """Whether it is an LSH model."""
        return rounds_of(self.model) is not None

    @property
    def per_token(self) -> float | None:
        """The time of a step over its tokens, in seconds."""
        return None if self.cost is None else self.cost.per_token

    def written(self) -> str:
        """The bits as mean ± half the range over the seeds."""
        if len(self.bits) == 1:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ± {(max(self.bits) - min(self.bits)) / 2:.3f}"


def qualities(rows: Sequence[Row]) -> list[Quality]:
    """The rows of trained models."""
    return [row for row in rows if isinstance(row, Quality)]


def costs(rows: Sequence[Row], target: str = "") -> list[Cost]:
    """The rows of steps: those that ran here, or those that were compiled for a target."""
    return [row for row in rows if isinstance(row, Cost) and row.target == target]


def copied(rows: Sequence[Row]) -> list[Copied]:
    """The rows of the copy task."""
    return [row for row in rows if isinstance(row, Copied)]


def points(rows: Sequence[Row], *, as_trained: bool = True) -> dict[tuple[int, str, str], Point]:
    """What is known by length, trained model and evaluated model, lengths rising.

    Args:
      rows: rows of a run.
      as_trained: whether only the models as they were trained.
    """
    found: dict[tuple[int, str, str], list[float]] = {}
    for row in sorted(qualities(rows), key=lambda row: row.length):
        if row.evaluated == row.model or not as_trained:
            found.setdefault((row.length, row.model, row.evaluated), []).append(row.bits)
    cost = {(row.length, row.model): row for row in costs(rows)}
    return {
        key: Point(key[1], key[0], tuple(bits), cost.get((key[0], key[2])))
        for key, bits in found.items()
    }
