"""What is trained, and with what each training is evaluated."""

from __future__ import annotations

import dataclasses
import re

from experiments.duplication.attention import EXACT, Hashing, rounds_of
from experiments.duplication.settings import Settings, Size

__all__ = [
    "LONGER",
    "SINUSOIDS",
    "Evaluation",
    "Training",
    "evaluations",
    "trained_name",
    "trainings",
]

VARIED = "lsh-4"  # what the grid trains with each of the hashings
# Times the steps for what learns later: one round shows a query little of what it needs, and to one
# that sees itself nothing is as near.
LONGER = {"lsh-1": 2, "plain": 3}
SINUSOIDS = "sinusoid"
POSITIONS = {SINUSOIDS: "positions that begin as sinusoids", "normal": "N(0, 1) positions"}


@dataclasses.dataclass(frozen=True)
class Training:
    """One model.

    Attributes:
      size: task.
      attention: name of the attention that it is trained with.
      hashing: choices that the literature leaves open; attention over all pairs has only the scale.
      seed: seed of parameters, words and rotations.
      positions: name in `POSITIONS` of how the table of learned positions begins.
    """

    size: Size
    attention: str
    hashing: Hashing
    seed: int
    positions: str = SINUSOIDS

    @property
    def title(self) -> str:
        """Its name in a line."""
        name = trained_name(self.attention, self.positions)
        return f"{name} ({self.hashing.words()}), {self.size.word} symbols, seed {self.seed}"

    @property
    def folder(self) -> str:
        """The name of its folder."""
        h = self.hashing
        scale = "scaled" if h.scaled else "unscaled"
        parts = [f"w{self.size.word}", self.attention, scale]
        parts += [self.positions] if self.positions != SINUSOIDS else []
        if rounds_of(self.attention) is not None:
            parts += [f"{h.bucket_factor}buckets", "masked" if h.bucket_mask else "unmasked"]
            parts.append("union" if h.union else "multiset")
        return re.sub(r"\W+", "_", "_".join([*parts, f"seed{self.seed}"]).lower())


def trained_name(attention: str, positions: str) -> str:
    """What tables call a training, beside its hashing."""
    return attention if positions == SINUSOIDS else f"{attention}, {POSITIONS[positions]}"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a model is evaluated with."""

    attention: str
    hashing: Hashing


def trainings(settings: Settings) -> list[Training]:
    """All models: the first task's table, its grid seed by seed, then the tables of other tasks.

    So a run that is cut short has what its conclusion rests on.
    """
    base, (first, *others) = settings.hashing(), settings.sizes()
    found = _table(first, settings)
    for seed in first.seeds if settings.recipe().grid else ():
        scaled, *varied = list(base.variations().values())[1:]
        found += [Training(first, name, base, seed, "normal") for name in ("shared", VARIED)]
        found.append(Training(first, "shared", scaled, seed))
        found += [Training(first, VARIED, hashing, seed) for hashing in (scaled, *varied)]
        plain = _steps(first, "plain")
        found += [Training(plain, "plain", hashing, seed) for hashing in (scaled, base)]
    for size in others:
        found += _table(size, settings)
    return found


def _table(size: Size, settings: Settings) -> list[Training]:
    return [
        Training(_steps(size, name), name, settings.hashing(), seed)
        for seed in size.seeds
        for name in settings.models
    ]


def _steps(size: Size, attention: str) -> Size:
    """The task with as many steps as this attention needs."""
    return dataclasses.replace(size, steps=LONGER.get(attention, 1) * size.steps)


def evaluations(training: Training, settings: Settings) -> list[Evaluation]:
    """Attention over all pairs in each sense, and every number of rounds.

    A model that was not trained to hash is evaluated with every hashing of the grid.
    """
    own = training.hashing
    hashings = [own]
    if rounds_of(training.attention) is None and training.size.word == settings.sizes()[0].word:
        hashings = list(dict.fromkeys([own, *settings.hashings().values()]))
    exact = [Evaluation(name, own) for name in EXACT]
    hashed = [
        Evaluation(f"lsh-{rounds}", hashing)
        for hashing in hashings
        for rounds in settings.eval_rounds
    ]
    return exact + hashed
