"""A published table and our numbers beside it: what all its kinds have."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnlab.runs.published import Table
from experiments.tables import runs
from experiments.tables.runs import Command, Context
from experiments.tables.verdicts import Gap

Values = Mapping[str, float]  # our numbers of a row, by name
Found = Mapping[str, Sequence[Values]]  # our numbers of all seeds, by row


@dataclasses.dataclass(frozen=True)
class Measurement:
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
class PublishedTable(abc.ABC):
    """A published table and our numbers beside it, which come from runs of other experiments.

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
    unit = "BLEU"  # of the numbers that are judged
    rule = "gap"  # that the verdicts follow, one of `verdicts.RULES`
    trains = True  # whether the numbers are of trained models, one for each seed

    @property
    @abc.abstractmethod
    def rows(self) -> Sequence[str]:
        """The names of the rows that have a way to a number of ours."""

    @property
    @abc.abstractmethod
    def scales(self) -> Sequence[str]:
        """The scales at which it can be measured."""

    @abc.abstractmethod
    def run_of(self, row: str, scale: str) -> Command:
        """The run that a row's numbers are of."""

    @abc.abstractmethod
    def measure(self, row: str, context: Context) -> Iterator[tuple[int, Values, Any]]:
        """Seed, numbers and environment of a row, which is run if it was not.

        Raises:
          Invalid: its experiment does not accept the flags.
          Stopped: the row cannot be measured, or not all of it; the other rows can.
        """

    @abc.abstractmethod
    def format_row(self, values: Sequence[Values]) -> str:
        """The numbers of a row, of all seeds, as they stand in the table."""

    @abc.abstractmethod
    def verdicts(self, paper: Mapping[str, str], found: Found) -> dict[str, str]:
        """The verdict on each row that was found.

        Args:
          paper: numbers that the paper prints, by row; a row that it leaves blank is missing.
          found: our numbers by row, of all seeds.
        """

    @abc.abstractmethod
    def remarks(self, found: Found) -> list[str]:
        """Paragraphs below the table."""

    def paper(self, published: Table) -> dict[str, str]:
        """What the paper prints, by row; a row that it leaves blank is missing."""
        printed = published.printed
        if isinstance(self.column, str):
            return {row: x[self.column] for row, x in printed.items() if self.column in x}
        return {
            f"{row}, {title}": cells[column]
            for row, cells in printed.items()
            for title, column in self.column.items()
            if column in cells
        }

    def data(self, scale: str) -> str | None:
        """The name of the data that its models are trained on; None = they make their own."""
        return self.run_of(self.rows[0], scale).data

    def commands(self, row: str, context: Context) -> list[list[str]]:
        """The words behind `launch/local` that make the row here, a command after the other."""
        return runs.commands(self.run_of(row, context.scale), context)

    def scores(self, found: Found) -> Mapping[str, Sequence[float]]:
        """The number that is judged, of all seeds, by row; none where it is made of several."""
        del found
        return {}

    def gaps(self, paper: Mapping[str, str], found: Found) -> Sequence[Gap]:
        """The gaps that are judged; none where each number is judged alone."""
        del paper, found
        return ()

    def columns(self, paper: Mapping[str, str], found: Found) -> dict[str, dict[str, str]]:
        """Further columns: by title, the cell of each row."""
        del paper, found
        return {}

    def figure(self, paper: Mapping[str, str], found: Found) -> Any:
        """A figure of the rows; None = there is nothing to draw."""
        del paper, found
