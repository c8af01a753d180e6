"""Commands that train a row's models, and which of their numbers are the row's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from experiments.tables.runs import Command

__all__ = [
    "SCALES",
    "Classifications",
    "Duplications",
    "LanguageModels",
    "Trainings",
    "Translations",
    "Tunings",
    "sized",
]

SCALES = ("cpu", "gpu", "paper")
Lines = Sequence[Mapping[str, Any]]  # of a run's results.jsonl


def sized(model: str, **fields: Any) -> tuple[str, ...]:
    """Flags of `translate`: a model, and its fields that are not its recipe's."""
    written = {name: str(x).lower() for name, x in fields.items()}
    return (f"--models={model}", *(f"--set={model}.{name}={x}" for name, x in written.items()))


class Trainings(Protocol):
    """The trainings of a table: a run of an experiment for each row, or one for all."""

    @property
    def rows(self) -> Sequence[str]:
        """The names of the table's rows."""
        ...

    @property
    def scales(self) -> Sequence[str]:
        """The scales that the flags have a meaning at."""
        ...

    def run(self, row: str, scale: str) -> Command:
        """The run that makes a row."""
        ...

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        """The scores of a row by seed, each with the environment that they were measured in."""
        ...


@dataclasses.dataclass(frozen=True)
class Translations:
    """A run of `translate` for each row.

    Attributes:
      models: flags that make a row another than the preset's, by the name of the row.
      at_paper: flags that do so at scale "paper", of the rows where they are others there.
      languages: languages of WMT14 at scale "paper", from the first to the second.
      of_text: whether models are trained on a text; False = on dates, whose links are known.
      scales: scales that the flags have a meaning at.
    """

    models: Mapping[str, Sequence[str]]
    at_paper: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    languages: tuple[str, str] = ("en", "de")
    of_text: bool = True
    scales: Sequence[str] = SCALES

    @property
    def rows(self) -> Sequence[str]:
        return list(self.models)

    def run(self, row: str, scale: str) -> Command:
        if not self.of_text:
            return Command("translate", ["--preset=dates", *self.models[row]])
        if scale != "paper":
            preset = {"cpu": "small", "gpu": "gpu"}[scale]
            return Command("translate", [f"--preset={preset}", *self.models[row]], "multi30k")
        source, target = self.languages
        other = target if source == "en" else source
        text = [f"--tfds_name=wmt14_translate/{other}-en", f"--direction={source}-{target}"]
        models = self.at_paper.get(row, self.models[row])
        return Command("translate", ["--preset=paper", *text, *models], "wmt14")

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        del row

        names = {"validation perplexity": "perplexity", "entropy of the weights": "entropy"}
        return {
            one["cell"]["seed"]: (
                {
                    names.get(name, name): x * (100 if name == "exact match" else 1)
                    for name, x in one["scores"].items()
                },
                one["environment"],
            )
            for one in found
            if one["scores"]  # else it is where the model looks
        }


@dataclasses.dataclass(frozen=True)
class Duplications:
    """One run of `duplication` for all rows, "LSH-4, LSH-1" where it trains and evaluates with."""

    trained: Sequence[str] = ("Full", "LSH-4", "LSH-2", "LSH-1")
    evaluated: Sequence[str] = ("full", "LSH-8", "LSH-4", "LSH-2", "LSH-1")

    scales = SCALES

    @property
    def rows(self) -> Sequence[str]:
        return [f"{one}, {other}" for one in self.trained for other in self.evaluated]

    def run(self, row: str, scale: str) -> Command:
        del row
        small = ["--words=31", "--nogrid"] if scale == "cpu" else []
        return Command("duplication", [f"--preset={scale}", *small])

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        trained, evaluated = row.lower().replace("full", "shared").split(", ")
        return {
            one["cell"]["seed"]: (
                {"accuracy": 100 * one["scores"]["accuracy"]},
                one["environment"],
            )
            for one in found
            if (one["cell"]["axes"]["attention"], one["evaluated"]) == (trained, evaluated)
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

    scales = ("cpu", "gpu")

    @property
    def rows(self) -> Sequence[str]:
        return list(self.mechanisms)

    def run(self, row: str, scale: str) -> Command:
        del row
        listed = ",".join(self.mechanisms.values())
        flags = [f"--preset={scale}", f"--tasks={self.task}", f"--mechanisms={listed}"]
        return Command("long_range", flags)

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        axes = {"task": self.task, "attention": self.mechanisms[row]}
        return {
            one["cell"]["seed"]: (
                {"accuracy": 100 * one["scores"]["accuracy"]},
                one["environment"],
            )
            for one in found
            if one["cell"]["axes"] == axes
        }


@dataclasses.dataclass(frozen=True)
class Tunings:
    """One run of `finetune` for all rows, from one of `pretrain`.

    Attributes:
      pretraining: flags of `pretrain`, beside the preset.
      tuning: flags of `finetune`.
      models: a row's start and the objective and masking that it was pre-trained with, by its name:
        ("tuned", "mlm", "80/10/10").
      score: name of the score, and of the measure of `finetune` that it is, a share.
    """

    pretraining: Sequence[str]
    tuning: Sequence[str]
    models: Mapping[str, tuple[str, str, str]]
    score: tuple[str, str]

    scales = ("cpu",)

    @property
    def rows(self) -> Sequence[str]:
        return list(self.models)

    def run(self, row: str, scale: str) -> Command:
        del row
        before = Command("pretrain", [f"--preset={scale}", *self.pretraining], "text")
        return Command("finetune", self.tuning, "text", init_from=before)

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        start, objective, masking = self.models[row]
        score, measure = self.score
        axes = {"start": start, "pretraining": f"{objective}, {masking}"}
        return {
            one["cell"]["seed"]: ({score: 100 * one["scores"][measure]}, one["environment"])
            for one in found
            if one["cell"]["axes"] == axes
        }


@dataclasses.dataclass(frozen=True)
class LanguageModels:
    """One run of `language_model` for all rows.

    Attributes:
      models: attention by the name of the row.
      length: number of tokens of a window.
    """

    models: Mapping[str, str]
    length: int

    scales = ("cpu",)

    @property
    def rows(self) -> Sequence[str]:
        return list(self.models)

    def run(self, row: str, scale: str) -> Command:
        del row
        models = f"--models={','.join(self.models.values())}"
        flags = [f"--preset={scale}", "--parts=train", models, f"--lengths={self.length}"]
        return Command("language_model", flags, "text")

    def scores(self, row: str, found: Lines) -> dict[int, tuple[dict[str, float], Any]]:
        model = self.models[row]
        return {
            one["seed"]: ({"bits per byte": one["bits"]}, one["environment"])
            for one in found
            if "evaluated" in one  # else it is a row of times or of the copy task
            and (one["model"], one["evaluated"], one["length"]) == (model, model, self.length)
        }
