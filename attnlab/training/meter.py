"""Sums over steps between two rows of the training curve."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from attnlab.runs.errors import Stopped
from attnlab.training.objective import Objective
from attnlab.training.step import StepMetrics

__all__ = ["Diverged", "Meter", "require_finite"]


class Diverged(Stopped):
    """The loss or the gradient is not finite; the message names the step."""


@dataclasses.dataclass
class Meter:
    """Adds up steps in float64; its state is part of a checkpoint, so that no row is lost.

    Attributes:
      steps: number of steps since the last row.
      sums: the objective's sums over these steps.
      counts: the objective's counts over them.
      gradient_norm: the largest of their gradients' norms.
      seconds: time that the training has taken, in all.
    """

    steps: int = 0
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    counts: dict[str, float] = dataclasses.field(default_factory=dict)
    gradient_norm: float = 0.0
    seconds: float = 0.0

    def add(self, metrics: StepMetrics) -> None:
        """Adds the metrics of a step."""
        self.steps += 1
        self.sums = _added(self.sums, metrics.sums)
        self.counts = _added(self.counts, metrics.counts)
        self.gradient_norm = max(self.gradient_norm, float(metrics.gradient_norm))

    def means(self, objective: Objective) -> dict[str, float]:
        """What the objective makes of the sums."""
        return objective.means(self.sums, self.counts)

    def row(self, objective: Objective) -> dict[str, float]:
        """Means and counts over the steps since the last row, which this one becomes."""
        row = self.means(objective) | {"gradient_norm": self.gradient_norm}
        row |= {name: int(count) for name, count in self.counts.items()}
        self.steps, self.sums, self.counts, self.gradient_norm = 0, {}, {}, 0.0
        return row

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Meter:
        """As it was when `to_json` was called."""
        return cls(**kept)


def require_finite(step: int, metrics: StepMetrics) -> None:
    """Raises Diverged where a step's sums or gradient are not finite."""
    for name, x in {**metrics.sums, "gradient norm": metrics.gradient_norm}.items():
        if not math.isfinite(float(x)):
            raise Diverged(
                f"the {name} is {float(x)} at step {step}; the checkpoints before it are kept; try "
                "a smaller --learning_rate"
            )


def _added(total: Mapping[str, float], new: Mapping[str, Any]) -> dict[str, float]:
    return {name: total.get(name, 0.0) + float(x) for name, x in new.items()}
