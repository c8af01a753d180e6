"""What a training says of itself while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

__all__ = ["Progress"]


class Progress:
    """Rates over the last row, and when the end is to be expected."""

    def __init__(self, steps: int, start: int, seconds_before: float, shown: Sequence[str]):
        """Begins now.

        Args:
          steps: number of steps of the whole training.
          start: number of steps done before.
          seconds_before: time that the steps before took.
          shown: names of the means that a line shows.
        """
        self.steps = steps
        self._shown = shown
        self._began = time.perf_counter() - seconds_before
        self._last = (start, seconds_before)
        self._per_step: float | None = None

    def seconds(self) -> float:
        """Seconds since the beginning, over all runs."""
        return time.perf_counter() - self._began

    def rates(self, step: int, tokens: int) -> dict[str, float]:
        """Rates over the steps since the last row, validations and compilations included."""
        before, then = self._last
        now = self.seconds()
        self._last = (step, now)
        elapsed = max(now - then, 1e-9)
        steps = max(step - before, 1)
        # The first row has the compilations; later ones outweigh it.
        per_step = elapsed / steps
        self._per_step = (
            per_step if self._per_step is None else 0.7 * self._per_step + 0.3 * per_step
        )
        return {
            "seconds": round(now, 3),
            "steps_per_second": round(steps / elapsed, 3),
            "tokens_per_second": round(tokens / elapsed, 1),
        }

    def line(self, step: int, row: Mapping[str, float]) -> str:
        """The row for a terminal."""
        left = (self.steps - step) * (self._per_step or 0)
        return (
            f"{self._at(step)}  {self._means(row)}  {row['steps_per_second']:.3g} steps/s  "
            f"{row['tokens_per_second']:,.0f} tokens/s  {_duration(left)} left"
        )

    def validation_line(self, step: int, row: Mapping[str, float]) -> str:
        """A validation for a terminal."""
        return f"{self._at(step)}  validation: {self._means(row)}"

    def _at(self, step: int) -> str:
        return f"step {step:>{len(str(self.steps))}}/{self.steps}"

    def _means(self, row: Mapping[str, float]) -> str:
        return "  ".join(f"{name} {row[name]:.4g}" for name in self._shown)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
