"""Sums over steps between two rows of the training curve."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from attnlab.training.loss import TokenSums
from attnlab.training.step import StepMetrics

__all__ = ["Diverged", "Meter"]


class Diverged(ArithmeticError):
    """The loss or the gradient is not finite; the message names the step."""


@dataclasses.dataclass
class Meter:
    """Adds up steps in float64; its state is part of a checkpoint, so that no row is lost.

    Attributes:
      steps: since the last row.
      sums: of the same steps.
      gradient_norm: the largest of them.
      seconds: that the training has taken, in all.
    """

    steps: int = 0
    sums: TokenSums = TokenSums(0.0, 0.0, 0.0, 0.0)
    gradient_norm: float = 0.0
    seconds: float = 0.0

    def add(self, step: int, metrics: StepMetrics) -> None:
        """Adds the metrics of a step.

        Raises:
          Diverged: they are not finite.
        """
        norm = float(metrics.gradient_norm)
        for name, x in (("loss", float(metrics.sums.loss)), ("gradient norm", norm)):
            if not math.isfinite(x):
                raise Diverged(f"the {name} is {x} at step {step}")
        self.steps += 1
        self.sums = TokenSums(*(a + float(b) for a, b in zip(self.sums, metrics.sums, strict=True)))
        self.gradient_norm = max(self.gradient_norm, norm)

    def row(self) -> dict[str, float]:
        """Means over the steps since the last row, which this one becomes."""
        means = self.sums.means() | {
            "gradient_norm": self.gradient_norm,
            "tokens": int(self.sums.tokens),
        }
        self.steps, self.sums, self.gradient_norm = 0, TokenSums(0.0, 0.0, 0.0, 0.0), 0.0
        return means

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return dataclasses.asdict(self) | {"sums": list(self.sums)}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Meter:
        """As it was when `to_json` was called."""
        return cls(**kept | {"sums": TokenSums(*kept["sums"])})
