"""The curve of a training: sums between two rows, rows on disk, and lines for a terminal.

metrics.jsonl has one JSON object a line, on disk when `MetricsFile.add` returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax

from attnlab.runs import processes, remaining
from attnlab.runs.errors import Lost
from attnlab.runs.folder import no_row, read_rows
from attnlab.training.objective import Batch, Objective
from attnlab.training.step import StepMetrics, make_validation_step

METRICS = "metrics.jsonl"


class Diverged(Lost):
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
        self.sums = _add(self.sums, metrics.sums)
        self.counts = _add(self.counts, metrics.counts)
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


def require_finite(step: int, metrics: StepMetrics) -> None:
    """Raises Diverged where a step's sums or gradient are not finite."""
    for name, x in {**metrics.sums, "gradient norm": metrics.gradient_norm}.items():
        if not math.isfinite(float(x)):
            raise Diverged(
                f"the {name} is {float(x)} at step {step}; checkpoints before it are kept, if any; "
                "try a smaller --learning_rate, and bfloat16 in place of float16"
            )


def is_plateau(losses: Mapping[int, float], fall: float) -> bool:
    """Whether the best loss fell by no more than a share over the last fifth of the steps.

    One validation that is worse by chance is none: two at least are in the last fifth. One that is
    not finite does not count.

    Args:
      losses: losses of the validations, by the step.
      fall: share of the best loss before.

    >>> falls = {100 * i: 1 + 1 / i for i in range(1, 11)}
    >>> is_plateau(falls, fall=0.03), is_plateau(falls, fall=0.01)
    (True, False)
    >>> is_plateau({500: 2.0, 1000: 2.0}, fall=0.01), is_plateau({1: math.nan, **falls}, fall=0.03)
    (False, True)
    >>> is_plateau(dict.fromkeys(falls, 0.0), fall=0.01)
    True
    """
    known = {step: x for step, x in losses.items() if math.isfinite(x)}  # no min is of NaN
    last = max(known, default=0)
    before = [x for step, x in known.items() if step <= 0.8 * last]
    if not before or len(known) - len(before) < 2:
        return False
    return min(before) - min(known.values()) <= fall * abs(min(before))  # 0 of 0 too


def means_of(
    model: nn.Module, objective: Objective, variables: Any, batches: Iterable[Batch]
) -> dict[str, float]:
    """The objective's means over batches, without dropout; each process takes some of them."""
    step, meter = jax.jit(make_validation_step(model, objective)), Meter()
    mine = itertools.islice(batches, processes.index(), None, processes.count())
    metrics = [jax.tree.map(float, step(variables, batch)) for batch in mine]
    # In the order of the batches: the sum is the same for any number of processes.
    for turn in itertools.zip_longest(*processes.gather(metrics)):
        for one in filter(None, turn):
            meter.add(StepMetrics(*one))
    return meter.means(objective)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder; a last line that was cut off while it was written is left out.

    Raises:
      Invalid: the file cannot be read, or a line is no row; the message has its number.
    """
    rows = read_rows(folder / METRICS, "a curve")
    for number, row in rows.items():
        if not (isinstance(row.get("step"), int) and isinstance(row.get("kind"), str)):
            raise no_row(folder / METRICS, number, "a curve")
    return list(rows.values())


class MetricsFile:
    """Appends rows, each with its "step" and its "kind", "training" or "validation"."""

    def __init__(self, folder: Path, *, after_step: int):
        """Opens the file of a run that goes on after `after_step`; later rows come again."""
        self.path = folder / METRICS
        kept = [row for row in read_metrics(folder) if row["step"] <= after_step]
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        fresh.replace(self.path)

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


class Progress:
    """Rates over the last row, and when the end is to be expected."""

    def __init__(self, steps: int, start: int, meter: Meter, shown: Sequence[str]):
        """Begins now.

        Args:
          steps: number of steps of the whole training.
          start: number of steps done before.
          meter: meter as these left it.
          shown: names of the means that a line shows.
        """
        self.steps = steps
        self._shown = shown
        self._began = time.perf_counter() - meter.seconds
        self._last = (start, meter.seconds)  # from where steps are timed
        # The step that compiles, and that of the last row.
        self._first, self._row = start + 1, start - meter.steps
        # Seconds: of the first step, at the last line for the terminal, and within `beside`.
        self._compiling = self._said = self._beside = 0.0
        self._warm = self._last  # from where the time that is left is estimated
        self._rate: tuple[int, float] | None = None  # steps, and the seconds that they took

    def seconds(self) -> float:
        """Seconds since the beginning, over all runs."""
        return time.perf_counter() - self._began

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Leaves what is done within it, validations and checkpoints, out of the rates."""
        begun = self.seconds()
        yield
        self._beside += self.seconds() - begun

    def stepped(self, step: int) -> str:
        """What to say after a step: of the first, which compiles, and once a minute; else ""."""
        (before, then), now = self._last, self.seconds()
        if step == self._first:
            self._compiling = now - then
            self._last = self._warm = (step, now)
            line = f"the first step, which compiles, took {now - then:.1f} s"
        elif now - self._said > 60:
            line = f"{(step - before) / (now - then - self._beside):.3g} steps/s"
            line += self._left(step)
        else:
            return ""
        self._said = now
        return f"{self._at(step)}  {line}"

    def rates(self, step: int, tokens: int) -> dict[str, float]:
        """Rates over the steps since the last row, but for the first one, which compiles."""
        (before, then), now = self._last, self.seconds()
        if step > before:
            took = max(now - then, 1e-9)
            self._rate = step - before, max(took - self._beside, 1e-9)
            self._last, self._beside = (step, now), 0.0
        # The first step is a row of its own where every step is.
        steps, elapsed = self._rate or (1, self._compiling)
        tokens_of_step, self._row = tokens / (step - self._row), step
        return {
            "seconds": round(now, 3),
            "steps_per_second": float(f"{steps / elapsed:.4g}"),  # of minutes a step too
            "tokens_per_second": round(tokens_of_step * steps / elapsed, 1),
        }

    def line(self, step: int, row: Mapping[str, float]) -> str:
        """The row for a terminal."""
        self._said = self.seconds()
        return (
            f"{self._at(step)}  {self._means(row)}  {row['steps_per_second']:.3g} steps/s  "
            f"{row['tokens_per_second']:,.0f} tokens/s{self._left(step)}"
        )

    def validation_line(self, step: int, row: Mapping[str, float]) -> str:
        """A validation for a terminal."""
        return f"{self._at(step)}  validation: {self._means(row)}"

    def _left(self, step: int) -> str:
        """The steps that are left take what those behind the first one took, with validations."""
        first, then = self._warm
        if step in (first, self.steps):
            return ""
        seconds = (self.steps - step) * (self.seconds() - then) / (step - first)
        return f"  {remaining.said(seconds)}"

    def _at(self, step: int) -> str:
        return f"step {step:>{len(str(self.steps))}}/{self.steps}"

    def _means(self, row: Mapping[str, float]) -> str:
        return "  ".join(f"{name} {row[name]:.4g}" for name in self._shown)


def _add(total: Mapping[str, float], new: Mapping[str, Any]) -> dict[str, float]:
    return {name: total.get(name, 0.0) + float(x) for name, x in new.items()}
