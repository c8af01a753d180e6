"""What every report has: rows so far, what is not done yet, and at its end where all is from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attnlab.runs import provenance
from attnlab.runs.command_line import command
from attnlab.runs.flags import Flags
from attnlab.runs.rows import Rows

__all__ = ["SoFar", "document", "grouped", "how_much", "so_far"]

NAMED = 6  # items that are not done yet and named; of more there is the number

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True)
class SoFar(Generic[Row]):
    """A run as far as it is done.

    Attributes:
      rows: rows of its items, in their order.
      to_come: titles of the items that are not done yet.
      command: command line that gives the report again.
      where: table of the machines and revisions that the rows are from.
    """

    rows: Sequence[Row]
    to_come: Sequence[str] = ()
    command: str = ""
    where: str = ""

    @property
    def missing(self) -> str:
        """The paragraph on what is not done yet; "" where all is.

        >>> SoFar([], to_come=["a", "b"]).missing
        'Not done yet: a; b.'
        """
        more = len(self.to_come) - NAMED
        listed = "; ".join(self.to_come[:NAMED]) + f"; and {more} more" * (more > 0)
        return f"Not done yet: {listed}." * bool(listed)

    @property
    def origin(self) -> str:
        """The section on where the rows are from."""
        return f"## Where\n\n    {self.command}\n\n{self.where}"


def so_far(
    rows: Rows[Any, Row],
    items: Mapping[str, Sequence[Hashable]],
    settings: Flags,
    done: Callable[[Row], bool] = lambda row: True,
) -> SoFar[Row]:
    """A run as far as its folder has it.

    Args:
      rows: rows of the folder.
      items: keys of the rows of each item, by the item's title.
      settings: settings of the run.
      done: whether a row counts as done.
    """
    kept = rows.of(key for keys in items.values() for key in keys)
    missing = [
        title
        for title, keys in items.items()
        if not all(key in rows.kept and done(rows.kept[key].row) for key in keys)
    ]
    return SoFar(
        [one.row for one in kept],
        missing,
        command(rows.experiment, type(settings), settings.as_json()),
        provenance.table([one.where for one in kept]),
    )


def how_much(done: int, planned: int, what: str) -> str:
    """How much of a run there is.

    >>> how_much(9, 9, "cases"), how_much(4, 9, "cases")
    ('9 cases.', '4 of 9 cases: cut short.')
    """
    return f"{done} {what}." if done >= planned else f"{done} of {planned} {what}: cut short."


def document(*parts: str) -> str:
    """A Markdown text of paragraphs; empty ones are left out."""
    return "\n\n".join(filter(None, parts)) + "\n"


def grouped(rows: Sequence[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows with the same key together, in the order in which the keys first come.

    >>> grouped([5, 2, 7], lambda x: x % 2)
    {1: [5, 7], 0: [2]}
    """
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
