"""The rows put together: what a model reaches at a length, over seeds, and what it costs there."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from attnlab.runs.intervals import half_width
from attnlab.runs.units import spread
from experiments.language_model.models import is_lsh
from experiments.language_model.rows import Copied, Cost, Quality, Row

__all__ = ["Point", "copied", "costs", "points", "qualities"]


@dataclasses.dataclass(frozen=True)
class Point:
    """One model at one length.

    Attributes:
      model: name of the model.
      length: number of tokens in a window.
      bits: bits per byte of the test part, by seed.
      cost: cost of a step; None = not measured.
    """

    model: str
    length: int
    bits: Mapping[int, float]
    cost: Cost | None

    @property
    def mean(self) -> float:
        """The mean of the bits over the seeds."""
        return statistics.fmean(self.bits.values())

    @property
    def half_width(self) -> float:
        """Half the 95 % interval of the mean over the seeds; infinite for one."""
        return half_width([*self.bits.values()])

    @property
    def is_lsh(self) -> bool:
        """Whether all its layers are LSH attention, and not only some of a pattern."""
        return is_lsh(self.model)

    @property
    def per_token(self) -> float | None:
        """The time of a step over its tokens, in seconds."""
        return None if self.cost is None else self.cost.per_token

    def time_of(self, other: Point) -> float | None:
        """Its time over the other's, None where one was not timed."""
        if self.cost is None or other.cost is None:
            return None
        return self.cost.time_of(other.cost)

    def with_seeds_of(self, other: Point) -> Point:
        """The same of those seeds alone that the other has too."""
        common = {seed: bits for seed, bits in self.bits.items() if seed in other.bits}
        return dataclasses.replace(self, bits=common)

    def more_than(self, other: Point) -> float:
        """The bits that it has more, the mean over the seeds of both; NaN without any."""
        common = self.bits.keys() & other.bits.keys()
        more = [self.bits[seed] - other.bits[seed] for seed in common]
        return statistics.fmean(more) if more else math.nan

    def written(self) -> str:
        """The mean of the bits and, of several seeds, ± half of its 95 % interval."""
        return spread([*self.bits.values()], ".3f")


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
    found: dict[tuple[int, str, str], dict[int, float]] = {}
    for row in sorted(qualities(rows), key=lambda row: row.length):
        if row.evaluated == row.model or not as_trained:
            found.setdefault((row.length, row.model, row.evaluated), {})[row.seed] = row.bits
    cost = {(row.length, row.model): row for row in costs(rows)}
    return {
        key: Point(key[1], key[0], bits, cost.get((key[0], key[2]))) for key, bits in found.items()
    }
