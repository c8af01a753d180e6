"""Tables whose numbers are counted, without training."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from experiments.tables import verdicts
from experiments.tables.beside import Beside, Context, Values
from experiments.tables.parameters import Count, vocabularies

__all__ = ["Exact", "ExactTable"]


class Exact(Protocol):
    """A way to a number that is counted."""

    @property
    def compiles(self) -> bool:
        """Whether programs are compiled for it, which takes most of the time of a run."""
        ...

    def measure(self) -> dict[str, float]:
        """The numbers, by name."""
        ...

    def written(self, values: Values) -> str:
        """The numbers as they stand in the table."""
        ...

    def verdict(self, paper: str, values: Values) -> str:
        """The verdict beside what the paper prints."""
        ...


@dataclasses.dataclass(frozen=True)
class ExactTable(Beside):
    """A table of counts; each is judged alone.

    Attributes:
      cells: way to our number, by the name of the row.
    """

    cells: Mapping[str, Exact]

    @property
    def rows(self) -> Sequence[str]:
        return list(self.cells)

    @property
    def scales(self) -> Sequence[str]:
        return ["exact"]

    @property
    def trains(self) -> bool:
        return False

    @property
    def rule(self) -> str:
        return "exact"

    def like(self, row: str) -> Hashable:
        return self.cells[row].compiles

    def measure(self, row: str, context: Context) -> Iterator[tuple[int, Values, Any]]:
        del context
        yield 0, self.cells[row].measure(), None

    def shown(self, row: str, values: Sequence[Values]) -> str:
        return self.cells[row].written(values[0])

    def verdicts(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, str]:
        return {
            row: self.cells[row].verdict(paper[row], values[0]) for row, values in found.items()
        }

    def columns(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, dict[str, str]]:
        """The numbers of ids with which a model has the paper's number of parameters."""
        del found
        possible = self._possible(paper)
        title = "vocabularies that round to the paper's"
        return {title: {row: _interval(ids) for row, ids in possible.items()}} if possible else {}

    def remarks(self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]) -> list[str]:
        """Which numbers of ids give every printed number that one can give."""
        possible = self._possible(paper)
        if not possible:
            return []
        (chosen,) = {count.vocab_size for count in self._counts().values()}
        verdict = self.verdicts(paper, found)
        exact = [possible[row] for row in found if verdict[row] == verdicts.EXACT]
        said = f"Ours has {chosen:,} ids."
        if not exact:
            return [said]
        common = range(max(x.start for x in exact), min(x.stop for x in exact))
        all_ = len(exact) == len(found)
        number = "all numbers" if all_ else f"{len(exact)} of {len(found)} numbers"
        return [f"{said} One vocabulary gives {number} of the paper: {_interval(common)} ids."]

    def _counts(self) -> dict[str, Count]:
        return {row: cell for row, cell in self.cells.items() if isinstance(cell, Count)}

    def _possible(self, paper: Mapping[str, str]) -> dict[str, range]:
        return {
            row: vocabularies(count, paper[row])
            for row, count in self._counts().items()
            if count.vocab_size is not None and verdicts.is_rounded(paper[row])
        }


def _interval(numbers: range) -> str:
    if not numbers:
        return "none"
    first, last = f"{numbers.start:,}", f"{numbers.stop - 1:,}"
    return first if first == last else f"{first} to {last}"
