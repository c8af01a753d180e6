"""Commands that train a row's models, and which of their numbers are the row's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["SCALES", "Classifications", "Duplications", "Trainings", "Translations"]

SCALES = ("cpu", "gpu")
Lines = Sequence[Mapping[str, Any]]  # of a run's results.jsonl


class Trainings(Protocol):
    """The trainings of a table: a run of an experiment for each row, or one for all."""

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
        ...

    @property
    def rows(self) -> Sequence[str]:
        """The names of the table's rows."""
        ...

    @property
    def scales(self) -> Sequence[str]:
        """The scales that the flags have a meaning at."""
        ...

    @property
    def of_text(self) -> bool:
        """Whether the models are trained on the text that the user names."""
        ...

    def flags(self, row: str, scale: str) -> list[str]:
        """The flags that make a row, without those of seeds and text."""
        ...

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        """The scores of a row by seed, each with the environment that they were measured in."""
        ...


@dataclasses.dataclass(frozen=True)
class Translations:
    """A run of `translate` for each row.

    Attributes:
      models: flags that make a row another than the preset's, by the name of the row.
      of_text: whether models are trained on a text; False = on dates, whose links are known.
      scales: scales that the flags have a meaning at.
    """

    models: Mapping[str, Sequence[str]]
    of_text: bool = True
    scales: Sequence[str] = SCALES

    experiment = "translate"

    @property
    def rows(self) -> Sequence[str]:
        return list(self.models)

    def flags(self, row: str, scale: str) -> list[str]:
        preset = {"cpu": "small", "gpu": "gpu"}[scale] if self.of_text else "dates"
        return [f"--preset={preset}", *self.models[row]]

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        del row

        def of(one: Mapping[str, Any]) -> dict[str, float]:
            scores = {
                "BLEU": one["bleu"] and one["bleu"]["score"],
                "perplexity": one["perplexity"],
                "AER": one["alignment_error_rate"],
                "entropy": one.get("attention_entropy"),
                "exact match": one["exact_match"] and 100 * one["exact_match"],
            }
            return {name: x for name, x in scores.items() if x is not None}

        return {one["seed"]: (of(one), one["environment"]) for one in found}


@dataclasses.dataclass(frozen=True)
class Duplications:
    """One run of `duplication` for all rows, "LSH-4, LSH-1" where it trains and evaluates with."""

    trained: Sequence[str] = ("Full", "LSH-4", "LSH-2", "LSH-1")
    evaluated: Sequence[str] = ("full", "LSH-8", "LSH-4", "LSH-2", "LSH-1")

    experiment = "duplication"
    of_text = False
    scales = SCALES

    @property
    def rows(self) -> Sequence[str]:
        return [f"{one}, {other}" for one in self.trained for other in self.evaluated]

    def flags(self, row: str, scale: str) -> list[str]:
        del row
        small = ["--words=31", "--nogrid"] if scale == "cpu" else []
        return [f"--preset={scale}", *small]

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        trained, evaluated = row.split(", ")
        return {
            one["seed"]: ({"accuracy": 100 * one["accuracy"]}, one["environment"])
            for one in found
            if (one["attention"], one["evaluated"]) == (trained.replace("Full", "full"), evaluated)
            and one["hashing"] == one["evaluated_hashing"]
        }


@dataclasses.dataclass(frozen=True)
class Classifications:
    """One run of `long_range` for all rows.

    Attributes:
      task: name of the task.
      mechanisms: attention by the name of the row.
    """

    task: str
    mechanisms: Mapping[str, str]

    experiment = "long_range"
    of_text = False
    scales = SCALES

    @property
    def rows(self) -> Sequence[str]:
        return list(self.mechanisms)

    def flags(self, row: str, scale: str) -> list[str]:
        del row
        listed = ",".join(self.mechanisms.values())
        return [f"--preset={scale}", f"--tasks={self.task}", f"--mechanisms={listed}"]

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        return {
            one["seed"]: ({"accuracy": 100 * one["accuracy"]}, one["environment"])
            for one in found
            if (one["task"], one["mechanism"]) == (self.task, self.mechanisms[row])
        }
