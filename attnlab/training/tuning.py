"""A learning rate for each model of a study, found by short trials before the model is trained.

Successive halving (Jamieson & Talwalkar 2016): all rates begin, and in each round the better
half goes on to trials twice as long, until one is left. Only validation losses decide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from attnlab.runs.markdown import markdown_table
from attnlab.training.curve import Diverged
from attnlab.training.loop import LoopSettings
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.schedules import fitted_warmup

_LONGEST = 4  # the last round's trials have a fourth of the steps of the training


@dataclasses.dataclass(frozen=True)
class Trial:
    """A short training at one learning rate.

    Attributes:
      learning_rate: learning rate at its peak.
      steps: number of steps; the schedule of the rate ends with them.
      loss: headline metric of the validation after them; None = the training diverged.
    """

    learning_rate: float
    steps: int
    loss: float | None


def rounds(count: int, steps: int) -> list[tuple[int, int]]:
    """The number of trials of each round, and of the steps of each.

    A round costs half of the training or less, all of them ⌈log₂ count⌉ / 2 of it at most.

    Args:
      count: number of learning rates.
      steps: number of steps of the training.

    >>> rounds(2, 1200), rounds(3, 1200), rounds(4, 1200)
    ([(2, 300)], [(3, 150), (2, 300)], [(4, 150), (2, 300)])
    """
    last = math.ceil(math.log2(count)) - 1
    counts = [math.ceil(count / 2**i) for i in range(last + 1)]
    return [(n, max(1, steps // _LONGEST // 2 ** (last - i))) for i, n in enumerate(counts)]


def search(
    optimizer: OptimizerSettings,
    loop: LoopSettings,
    factors: Sequence[float],
    measure: Callable[[OptimizerSettings, LoopSettings], float],
) -> list[Trial]:
    """All trials, in the order in which they were made.

    Args:
      optimizer: optimizer of the training, whose learning rate is multiplied by each factor.
      loop: loop of the training; a trial has fewer steps and one validation, at its end.
      factors: numbers, two at least.
      measure: (optimizer, loop) -> headline metric of the validation after a trial; not finite =
        the training diverged.

    Raises:
      Diverged: all trials of a round did.
    """
    rates = [optimizer.learning_rate * factor for factor in factors]
    trials: list[Trial] = []
    for count, steps in rounds(len(rates), loop.steps):
        short, once = shorten(optimizer, loop, steps)
        of_round = []
        for rate in rates[:count]:
            loss = measure(dataclasses.replace(short, learning_rate=rate), once)
            of_round.append(Trial(rate, steps, loss if math.isfinite(loss) else None))
        trials += of_round
        rates = [trial.learning_rate for trial in rank(of_round)]
        if not rates:
            raise Diverged(
                f"all trials of {steps} steps diverged; give smaller factors to --tune, or a "
                "smaller --learning_rate"
            )
    return trials


def shorten(
    optimizer: OptimizerSettings, loop: LoopSettings, steps: int
) -> tuple[OptimizerSettings, LoopSettings]:
    """Optimizer and loop of a training of fewer steps, with one validation, at its end."""
    least = min(1, optimizer.warmup_steps)
    return (
        dataclasses.replace(
            optimizer, warmup_steps=fitted_warmup(optimizer.warmup_steps, steps, least)
        ),
        dataclasses.replace(
            loop, steps=steps, validate_every=steps, checkpoint_every=steps, average=None,
            plateau=None,
        ),
    )  # fmt: skip


def rank(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that did not diverge: longer ones first, of equal length the smaller loss."""
    there = [trial for trial in trials if trial.loss is not None]
    return sorted(there, key=lambda trial: (-trial.steps, trial.loss or 0.0))


def table(tuned: Mapping[str, Sequence[Trial]]) -> str:
    """Validation losses by model and learning rate, a column for each round.

    Args:
      tuned: trials by the name of the model.
    """
    lengths = sorted({trial.steps for trials in tuned.values() for trial in trials})
    lines = []
    for title, trials in tuned.items():
        losses = {
            (trial.learning_rate, trial.steps): "diverged"
            if trial.loss is None
            else f"{trial.loss:.4g}"
            for trial in trials
        }
        chosen = rank(trials)[0].learning_rate
        for rate in sorted({trial.learning_rate for trial in trials}):
            of_rate = [losses.get((rate, steps), "") for steps in lengths]
            lines.append([title, f"{rate:g}" if rate != chosen else f"**{rate:g}**", *of_rate])
    header = ["model", "learning rate", *(f"loss after {steps:,} steps" for steps in lengths)]
    return markdown_table(header, lines)
