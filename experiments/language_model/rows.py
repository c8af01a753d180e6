"""What is measured: a row of each kind, and the key by which a run knows that it is done."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from attnlab.runs.units import duration, human

__all__ = [
    "KINDS",
    "NO_ATTENTION",
    "Copied",
    "Cost",
    "Failed",
    "Quality",
    "Row",
    "is_done",
    "key_of",
]

NO_ATTENTION = "no attention"  # the name under which an ablated model is evaluated


@dataclasses.dataclass(frozen=True)
class Quality:
    """A trained model on the test part.

    Attributes:
      model: name of the model that was trained.
      length: number of tokens in a window.
      seed: seed of the training.
      evaluated: name of the model that the parameters were evaluated as; `NO_ATTENTION` = with
        the last projection of attention at 0, as `models.ablated` does it.
      bits: bits per byte of the test part.
      parameters: number of parameters.
      tokens: number of tokens that were trained on.
      step: number of the step after which validation was best, whose parameters these are.
      seconds: time of the training, with compilations and validations.
      steps: numbers of the steps after which `masses` were measured.
      masses: shares of the attention mass that the rounds saw then; of the trained model itself.
      pairs: shares of the pairs that the rounds saw then.
    """

    model: str
    length: int
    seed: int
    evaluated: str
    bits: float
    parameters: int
    tokens: int
    step: int
    seconds: float
    steps: tuple[int, ...] = ()
    masses: tuple[float, ...] = ()
    pairs: tuple[float, ...] = ()

    def line(self) -> str:
        """The row in words."""
        return f"as {self.evaluated} {self.bits:.3f} bits per byte"


@dataclasses.dataclass(frozen=True)
class Cost:
    """A training step of a model, and what it takes.

    Attributes:
      model: name of the model.
      length: number of tokens in a window.
      target: name of the absent accelerator that it was compiled for; "" = it ran here.
      tokens: number of tokens in the step.
      samples: times of a step, one for each turn; none on an absent device.
      memory: number of bytes that the step needs, from the compiler; None where it did not say.
      status: outcome: "ok", "too_large" or "failed".
      message: reason for another status than "ok".
    """

    model: str
    length: int
    target: str
    tokens: int
    samples: tuple[float, ...] = ()
    memory: int | None = None
    status: str = "ok"
    message: str = ""

    def line(self) -> str:
        """The row in words."""
        if self.status != "ok":
            return f"{self.model} {self.message}"
        time = "" if self.seconds is None else f" {duration(self.seconds)}"
        return f"{self.model} at {self.length:,}{time} {human(self.memory)}"

    @property
    def seconds(self) -> float | None:
        """The median time of a step."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def per_token(self) -> float | None:
        """The median time of a step over its tokens, in seconds."""
        return None if self.seconds is None else self.seconds / self.tokens

    def time_of(self, other: Cost) -> float | None:
        """Its time over the other's, for as many tokens: the median over the turns.

        A turn's two samples are neighbors, so that a busy moment of the machine hits both.
        """
        turns = [
            (mine / self.tokens) / (theirs / other.tokens)
            for mine, theirs in zip(self.samples, other.samples, strict=False)
        ]
        return statistics.median(turns) if turns else None


@dataclasses.dataclass(frozen=True)
class Copied:
    """A model that was trained to copy, on new words.

    Attributes:
      model: name of the model.
      distance: number of tokens that lie between a symbol and its copy at least.
      accuracy: share of the copied symbols that it predicts.
      chance: share that a guess would have.
      zeroed: share with the last projection of attention at 0.
      steps: number of steps of the training.
      seconds: time of the training.
    """

    model: str
    distance: int
    accuracy: float
    chance: float
    zeroed: float
    steps: int
    seconds: float

    def line(self) -> str:
        """The row in words."""
        return f"{self.accuracy:.1%} right, {self.zeroed:.1%} without attention"


@dataclasses.dataclass(frozen=True)
class Failed:
    """An item that raised an error; a resumed run tries it again.

    Attributes:
      key: key of its first row, were there one.
      error: the error in one line.
    """

    key: tuple[Any, ...]
    error: str

    def line(self) -> str:
        """The row in words."""
        return f"failed: {self.error}"


Row = Quality | Cost | Copied | Failed
KINDS = (Failed, Quality, Copied, Cost)


def is_done(row: Row) -> bool:
    """Whether a resumed run leaves it alone."""
    return not (isinstance(row, Failed) or (isinstance(row, Cost) and row.status == "failed"))


def key_of(row: Any) -> tuple[Any, ...]:
    """The key of a row of any kind."""
    match row:
        case Quality():
            return "quality", row.model, row.length, row.seed, row.evaluated
        case Cost():
            return "cost", row.model, row.length, row.target
        case Copied():
            return "copy", row.model
        case Failed():
            return row.key
    raise TypeError(f"no row: {row!r}")
