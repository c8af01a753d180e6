"""A published table and what stands beside it: the base of its kinds."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.runs.published import Table
from experiments.tables.verdicts import Gap

__all__ = ["Beside", "Context", "Found", "Values"]

Values = Mapping[str, float]  # our numbers of a row, by name


@dataclasses.dataclass(frozen=True)
class Context:
    """What the run gives to a cell.

    Attributes:
      scale: scale of ours.
      folder: folder of the trainings.
      seeds: seeds of the trainings.
      data: flags of an experiment that name its data, by the name of the data.
      ran: why each run that was made or found already failed, or "", by its folder.
    """

    scale: str
    folder: Path
    seeds: tuple[int, ...]
    data: Mapping[str, Sequence[str]]
    ran: dict[Path, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Found:
    """What was measured of a row, by one training if it needs any.

    Attributes:
      table: name of the table.
      row: name of the row.
      values: our numbers by name.
      seed: seed of the training; 0 where there is none.
    """

    table: str
    row: str
    values: dict[str, float]
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Beside(abc.ABC):
    """A published table and our numbers beside it.

    Attributes:
      title: title of the report's section.
      file: file in `experiments/published`.
      column: column of the file that ours stands beside; several columns by title, where a row
        here, "LSH-4, LSH-1", is a row of the file and the title of a column.
      note: remark below the table.
      keys: number of the file's first columns that name a row together.
    """

    title: str
    file: str
    column: str | Mapping[str, str]
    _: dataclasses.KW_ONLY
    note: str = ""
    keys: int = 1

    caption = ""  # what the figure shows

    def paper(self, published: Table) -> dict[str, str]:
        """What the paper prints, by row; a row that it leaves blank is missing."""
        printed = published.printed
        if isinstance(self.column, str):
            return {row: x[self.column] for row, x in printed.items() if self.column in x}
        return {
            f"{row}, {title}": found[column]
            for row, found in printed.items()
            for title, column in self.column.items()
            if column in found
        }

    @property
    @abc.abstractmethod
    def rows(self) -> Sequence[str]:
        """The names of the rows that have a way to a number of ours."""

    @property
    @abc.abstractmethod
    def scales(self) -> Sequence[str]:
        """The scales at which it can be measured."""

    @property
    @abc.abstractmethod
    def trains(self) -> bool:
        """Whether its numbers are of trained models, one for each seed."""

    @property
    def runs(self) -> bool:
        """Whether its numbers come from runs of other experiments, in processes of their own."""
        return self.trains

    @property
    @abc.abstractmethod
    def rule(self) -> str:
        """The name of the rule that its verdicts follow, one of `verdicts.RULES`."""

    @property
    def origin(self) -> str:
        """Who has the numbers that ours are beside."""
        columns = [self.column] if isinstance(self.column, str) else self.column.values()
        ours = all(column.startswith("exact_") for column in columns)
        return "a closed form of ours" if ours else "the paper"

    def like(self, row: str) -> Hashable:
        """What the row shares with rows of other tables that take about as long."""
        del row
        return type(self)

    def data(self, scale: str) -> str | None:
        """The name of the data that its models are trained on; None = they make their own."""
        del scale
        return None

    @abc.abstractmethod
    def measure(self, row: str, context: Context) -> Iterator[tuple[int, Values, Any]]:
        """Seed and numbers of a row, and the environment where it is not this process's.

        Raises:
          Stopped: the row cannot be measured, or not all of it; the other rows can.
        """

    @abc.abstractmethod
    def shown(self, row: str, values: Sequence[Values]) -> str:
        """The numbers of a row, of all seeds, as they stand in the table."""

    @abc.abstractmethod
    def verdicts(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, str]:
        """The verdict on each row that was found.

        Args:
          paper: numbers that the paper prints, by row; a row that it leaves blank is missing.
          found: our numbers by row, of all seeds.
        """

    def scores(self, found: Mapping[str, Sequence[Values]]) -> Mapping[str, Sequence[float]]:
        """The number that is judged, of all seeds, by row; rows of several numbers are left out."""
        return {
            row: [x for one in values for x in one.values()]
            for row, values in found.items()
            if all(len(one) == 1 for one in values)
        }

    def gaps(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> Sequence[Gap]:
        """The gaps that are judged; none where each number is judged alone."""
        del paper, found
        return ()

    def columns(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, dict[str, str]]:
        """Further columns: by title, the cell of each row."""
        del paper, found
        return {}

    def remarks(self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]) -> list[str]:
        """Paragraphs below the table."""
        del paper, found
        return []

    def figure(self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]) -> Any:
        """A figure of the rows; None = there is nothing to draw."""
        del paper, found

    def commands(self, name: str, row: str, context: Context) -> Sequence[Sequence[str]]:
        """The words behind `launch/local` that make the row of the table of that name here.

        They are of one command, or of several, one after the other.
        """
        del row, context
        return [["tables", f"--only={name}"]]
