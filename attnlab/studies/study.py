"""A study's description of itself: its flags, cells, data, trainings, scores and tables.

All else is the frame's, once: devices, data that must stay the same, checkpoints, rows, curves, the
report (`attnlab.studies.run`), a plan (`attnlab.studies.plan`), the command line
(`attnlab.studies.command`).
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import jax

from attnlab.data.parts import WHOLE, Part
from attnlab.mechanisms import own
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import group
from attnlab.runs.units import spread
from attnlab.training import tuning
from attnlab.training.flags import FREE, TrainFlags
from attnlab.training.loop import LoopSettings, Task, Trained
from attnlab.training.optimizers import OptimizerSettings

__all__ = [
    "Cell",
    "D",
    "Drawn",
    "Evaluation",
    "Row",
    "S",
    "Study",
    "Training",
    "by_title",
    "identity",
]

NAMED = 3  # scores in the answer of a report


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training: a value of each axis, and a seed.

    Attributes:
      axes: values by the name of the axis: words, numbers, true or false.
      seed: seed of the training.
    """

    axes: Mapping[str, Any]
    seed: int

    def __hash__(self) -> int:
        return hash((frozenset(self.axes.items()), self.seed))

    def __getitem__(self, axis: str) -> Any:
        return self.axes[axis]

    @property
    def title(self) -> str:
        """The name in reports, without the seed; an empty value is left out.

        >>> Cell({"task": "listops", "attention": "lsh-2"}, 0).title
        'listops, lsh-2'
        """
        return ", ".join(str(x) for x in self.axes.values() if x != "")

    @property
    def folder(self) -> str:
        """The name of the training's folder in that of the run.

        >>> Cell({"objective": "mlm", "masking": "80/10/10"}, 3).folder
        'mlm-80-10-10-seed3'
        >>> len(Cell({"model": "+".join(["window-100"] * 28)}, 0).folder)
        114
        """
        name = re.sub(r"[^\w.+=]+", "-", self.title)
        # Two of a user's own may differ in what no folder can be called; 255 bytes are the most.
        if own.mentions_own(self.title) or len(name) > 150:
            name = f"{name[:99]}-{hashlib.sha256(self.title.encode()).hexdigest()[:8]}"
        return f"{name}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.title}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a trained model reaches.

    Attributes:
      scores: scores by name, those of `Study.scores` that there are; without any it is for the
        study's own sections.
      evaluated: name of what the parameters were evaluated as, such as another number of hash
        rounds; "" = as they were trained.
      details: plain values that the study's own tables need.
    """

    scores: dict[str, float]
    evaluated: str = ""
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Row:
    """An evaluation of one training, as results.jsonl has it.

    Attributes:
      cell: training.
      evaluated: name of what its parameters were evaluated as; "" = as they were trained.
      scores: scores by name.
      parameters: number of parameters of the model, frozen ones too.
      step: number of the step whose parameters these are; None = not kept.
      seconds: time of the training, with the one before it, compilations and validations.
      validation: means of the validation with these parameters, by name.
      details: plain values that the study's own tables need.
      plateau: number of the step, the last one, after which it was at its plateau; None = it was
        not.
      trials: trials that the learning rate was found by; none where it was given.
    """

    cell: Cell
    evaluated: str
    scores: dict[str, float]
    parameters: int
    step: int | None
    seconds: float
    validation: dict[str, Any] = dataclasses.field(default_factory=dict)
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    plateau: int | None = None
    trials: tuple[tuning.Trial, ...] = ()

    @property
    def key(self) -> tuple[Cell, str]:
        """What tells it from the other rows of a run."""
        return self.cell, self.evaluated


@dataclasses.dataclass(frozen=True)
class Training:
    """How a cell is trained.

    Attributes:
      task: model, objective and data. Its identity is what `identity` does not say, such as the
        digest of a tokenizer.
      optimizer: optimizer of the parameters.
      loop: number of steps, and of steps between rows, validations and checkpoints.
      before: training that comes first; None = none does.
      kept: names of the parameters that it begins with as the first one leaves them.
    """

    task: Task[Any]
    optimizer: OptimizerSettings
    loop: LoopSettings
    before: Training | None = None
    kept: tuple[str, ...] = ()


class Data(Protocol):
    """What a study trains on: its name, and its hash, "" where the flags say it all."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Data that the flags alone say, such as those of a task of symbols."""

    name: str
    digest: str = ""


S = TypeVar("S", bound=TrainFlags)
D = TypeVar("D", bound=Data)


class Study(abc.ABC, Generic[S, D]):
    """What is trained, on what, and how it is tested.

    The methods of a report (from `columns` on) read rows and settings, never the data, so that a
    kept run can be reported where its data are not.

    Attributes:
      flags: class of the settings.
      title: title of the report.
      axes: flag whose values an axis of the cells takes, by the name of the axis; with `seeds`
        these are in the cell, and not in the identity of a checkpoint.
      scores: format of each score, by its name; the first that there is, is the study's answer.
      larger_is_better: whether that one is the better the larger it is.
      curve: quantity of the curve, and its name for a reader.
      note: sentence or two that a reader needs to understand the scores.
      shown: names of the flags whose values a reader must know.
      free: names of the flags that change nothing that is trained or tested, beside `FREE`; a
        resumed run may have others.
      packages: names of packages whose versions matter.
    """

    flags: ClassVar[type[TrainFlags]]
    title: ClassVar[str]
    axes: ClassVar[Mapping[str, str]]
    scores: ClassVar[Mapping[str, str]]
    larger_is_better: ClassVar[bool] = True
    curve: ClassVar[tuple[str, str]] = ("nll", "−log p (nats a token)")
    note: ClassVar[str] = ""
    shown: ClassVar[Sequence[str]] = ("steps", "batch_size")
    free: ClassVar[Sequence[str]] = ()
    packages: ClassVar[Sequence[str]] = ("optax", "grain")

    def __init__(self, settings: S, data: D, part: Part = WHOLE):
        """Takes what a run has opened.

        Args:
          settings: settings of the run.
          data: data that `open` gave.
          part: part of each batch that this process computes.
        """
        self.settings, self.data, self.part = settings, data, part

    @staticmethod
    @abc.abstractmethod
    def open(settings: Any) -> Any:
        """The data; of several processes the first opens them before the others.

        Raises:
          Invalid: they are missing, or do not fit the settings.
        """

    @staticmethod
    def batch_sizes(settings: Any) -> Iterable[int]:
        """The numbers of examples in a step, of all trainings."""
        return [settings.batch_size]

    def cells(self) -> Sequence[Cell]:
        """The trainings: all of the first seed, then of the next, so that few seeds compare all."""
        values = [getattr(self.settings, flag) for flag in self.axes.values()]
        return [
            Cell(dict(zip(self.axes, some, strict=True)), seed)
            for seed in self.settings.seeds
            for some in itertools.product(*values)
        ]

    @abc.abstractmethod
    def training(self, cell: Cell) -> Training:
        """How a cell is trained."""

    def evaluations(self, cell: Cell) -> Sequence[str]:
        """What a cell's parameters are evaluated as: the names of its rows."""
        return [""]

    @abc.abstractmethod
    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        """Yields an evaluation for each of `evaluations`.

        Args:
          cell: cell that was trained.
          training: task, optimizer and loop of the cell.
          trained: parameters, and what became of the training.
          place: folder of the training.
        """

    def columns(self, rows: Sequence[Row]) -> Mapping[str, str]:
        """Further columns of the results, by title: the cell of some rows that differ by seed."""
        return {}

    def measures(self, rows: Sequence[Row]) -> list[str]:
        """The names of the scores that some rows have, the answer's first."""
        return [name for name in self.scores if any(name in row.scores for row in rows)]

    def answer(self, rows: Sequence[Row]) -> str:
        """The best model of each value of the first axis, or the best of all, in one line."""
        name = self.measures(rows)[0]
        scores = {
            title: (some[0].cell, [row.scores[name] for row in some])
            for title, some in by_title([row for row in rows if name in row.scores]).items()
        }
        sign = -1 if self.larger_is_better else 1
        means = {title: sign * statistics.fmean(values) for title, (_, values) in scores.items()}
        ranked = sorted(means, key=lambda title: (math.isnan(means[title]), means[title]))
        first = next(iter(self.axes))
        leaders = group(ranked, lambda title: scores[title][0][first])
        named = [some[0] for some in leaders.values()] if len(leaders) > 1 else ranked
        form = self.scores[name]
        said = [f"{spread(scores[title][1], form)} ({title})" for title in named[:NAMED]]
        return f"{name}: {', '.join(said)}"

    def results(self, rows: Sequence[Row]) -> str:
        """The table of all scores, a line for what differs by seed alone."""
        lines: list[dict[str, str]] = []
        for title, some in by_title(rows).items():
            line = {", ".join(self.axes): title, "seeds": f"{len(some)}"}
            for name in self.measures(rows):
                values = [row.scores[name] for row in some if name in row.scores]
                line[name] = spread(values, self.scores[name]) if values else ""
            line |= self.columns(some)
            line["parameters"] = f"{some[0].parameters:,}"
            if some[0].trials:
                line["learning rate"] = f"{tuning.rank(some[0].trials)[0].learning_rate:g}"
            steps = [row.step for row in some if row.step is not None]
            line["best at step"] = f"{statistics.fmean(steps):,.0f}" if steps else ""
            if self.settings.plateau is not None:
                ends = [row.plateau for row in some]
                line["plateau after"] = ", ".join("none" if x is None else f"{x:,}" for x in ends)
            line["minutes"] = f"{statistics.fmean(row.seconds for row in some) / 60:.1f}"
            lines.append(line)
        header = list(dict.fromkeys(itertools.chain(*lines)))
        return markdown_table(header, [[line.get(x, "") for x in header] for line in lines])

    def trainings(self, rows: Sequence[Row]) -> str:
        """The table of the trainings, without scores: for a study whose results are another."""
        trained = {row.cell: dataclasses.replace(row, evaluated="", scores={}) for row in rows}
        return Study.results(self, list(trained.values()))

    def sections(self, rows: Sequence[Row]) -> Iterable[str]:
        """Further parts of the report: headings, tables, captions, links to `figures`."""
        return ()

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        """Further figures, by the names of their files."""
        return {}

    def line(self, row: Row) -> str:
        """A row for the terminal."""
        scores = ", ".join(f"{name} {x:{self.scores[name]}}" for name, x in row.scores.items())
        return f"{row.evaluated}: {scores}" if row.evaluated else scores


def by_title(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each model and of what it was evaluated as, one a seed."""

    def title(row: Row) -> str:
        name = row.cell.title
        return f"{name}, evaluated as {row.evaluated}" if row.evaluated else name

    return group(rows, title)


def identity(study: Study[Any, Any], cell: Cell) -> dict[str, Any]:
    """What makes a training what it is; a checkpoint of another is refused.

    All flags but those that are free or in the cell: one that is forgotten cannot be changed.
    """
    elsewhere = {*FREE, *study.free, *study.axes.values(), "seeds"}
    flags = {k: x for k, x in study.settings.as_json().items() if k not in elsewhere}
    # Each text as it stands: `repr` escapes quotes, and a name with both kinds would not be found.
    texts = jax.tree.leaves((dict(cell.axes), flags))
    sources = own.digests(" ".join(map(str, texts)))
    identity = {"cell": dict(cell.axes), "seed": cell.seed, "flags": flags}
    return identity | {"data": study.data.digest} | ({"own": sources} if sources else {})
