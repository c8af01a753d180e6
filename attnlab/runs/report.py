"""Parts of every report: rows so far, what is not done yet, and at its end where all is from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attnlab.runs import provenance
from attnlab.runs.command_line import command
from attnlab.runs.flags import Flags
from attnlab.runs.markdown import join_first
from attnlab.runs.rows import Rows, Where

__all__ = ["SoFar", "document", "group", "so_far"]

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True)
class SoFar(Generic[Row]):
    """A run as far as it is done.

    Attributes:
      rows: rows of its items, in their order.
      to_come: titles of the items that are not done yet.
      planned: number of rows that the whole run has.
      command: command line that gives the report again.
      wheres: origin of each row: device, versions, time.
      lost: reasons why items were given up, by title.
    """

    rows: Sequence[Row]
    to_come: Sequence[str] = ()
    planned: int = 0
    command: str = ""
    wheres: Sequence[Where] = ()
    lost: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def how_much(self, what: str) -> str:
        """How much of the run there is.

        >>> SoFar("abc", planned=3).how_much("cases"), SoFar("abc", planned=9).how_much("cases")
        ('3 cases.', '3 of 9 cases so far.')
        """
        done = len(self.rows)
        if done >= self.planned:
            return f"{done} {what}."
        return f"{done} of {self.planned} {what} so far."

    @property
    def missing(self) -> str:
        """The paragraph on what is not done yet, or never will be; "" where all is.

        >>> SoFar([], to_come=["a", "b"], lost={"c": "the loss is nan"}).missing
        'Not done yet: a; b. Lost: c (the loss is nan).'
        """
        lost = [f"{title} ({why})" for title, why in self.lost.items()]
        parts = {"Not done yet": self.to_come, "Lost": lost}
        return " ".join(f"{word}: {join_first(some)}." for word, some in parts.items() if some)

    @property
    def origin(self) -> str:
        """The section on where the rows are from."""
        return f"## Where\n\n    {self.command}\n\n{provenance.table(self.wheres)}"


def so_far(
    rows: Rows[Any, Row], items: Mapping[str, Sequence[Hashable]], settings: Flags
) -> SoFar[Row]:
    """A run as far as its folder has it; `items` has the keys of each item's rows by its title."""
    every = [key for keys in items.values() for key in keys]
    kept = rows.of(every)
    to_come: list[str] = []
    lost: dict[str, str] = {}
    for title, keys in items.items():
        reasons = [rows.lost[key] for key in keys if key in rows.lost]
        if all(key in rows.kept for key in keys):
            continue
        if reasons:
            lost[title] = reasons[-1]
        else:
            to_come.append(title)
    return SoFar(
        rows=[entry.row for entry in kept],
        to_come=to_come,
        planned=len(every),
        command=command(rows.experiment, type(settings), settings.as_json()),
        wheres=[entry.where for entry in kept],
        lost=lost,
    )


def document(*parts: str) -> str:
    """A Markdown text of paragraphs; empty ones are left out."""
    return "\n\n".join(filter(None, parts)) + "\n"


def group(rows: Sequence[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows with the same key together, in the order in which the keys first come.

    >>> group([5, 2, 7], lambda x: x % 2)
    {1: [5, 7], 0: [2]}
    """
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
