"""The part of a batch that one of several processes makes."""

from __future__ import annotations

import dataclasses

import numpy as np

from attnlab.core.checks import require


@dataclasses.dataclass(frozen=True)
class Part:
    """One of several equal parts of a batch: rows that follow one another.

    >>> Part(1, 3).of({"tokens": np.arange(6)})
    {'tokens': array([2, 3])}

    Attributes:
      index: index of the part.
      count: number of parts.
    """

    index: int
    count: int

    def of(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The part's rows of each array."""
        return {name: x[self.rows(len(x))] for name, x in batch.items()}

    def rows(self, batch_size: int) -> slice:
        """The rows of a batch of so many."""
        size = batch_size // self.count
        return slice(self.index * size, (self.index + 1) * size)

    def require_divides(self, batch_size: int) -> None:
        """Raises ValueError where a batch has no equal parts."""
        require(
            batch_size > 0 and batch_size % self.count == 0,
            f"batch_size must be a multiple of the number of parts; got {batch_size} for "
            f"{self.count}",
        )


WHOLE = Part(0, 1)
