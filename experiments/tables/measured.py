"""Tables of times and memory: ratios to a row of the table, from a run of `compare_lengths`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnlab.runs.errors import Stopped
from attnlab.runs.published import Table
from experiments.tables import runs, verdicts
from experiments.tables.beside import Beside, Context, Values
from experiments.tables.runs import Command

__all__ = ["MeasuredTable", "Quantity"]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """What a table is of.

    Attributes:
      field: name of the number in a row of `compare_lengths`.
      passes: pass that it is of.
      is_rate: whether the paper's number is the more the faster, and ours a time.
    """

    field: str
    passes: str = "forward_backward"
    is_rate: bool = False


@dataclasses.dataclass(frozen=True)
class MeasuredTable(Beside):
    """A table over lengths, of which each row is compared with one of them, the base.

    A row here is "Reformer, 1K": a row of the paper and the title of a column.

    Attributes:
      flags: flags of `compare_lengths` that make the numbers.
      quantity: quantity of the paper and of ours.
      base: row of the paper that the others are divided by, and ours.
      lines: mechanism here, as `compare_lengths` writes it, by the row of the paper.
      lengths: number of tokens of ours, by the title of a column.
      not_comparable: reason why a row of the paper says nothing about ours.
    """

    _: dataclasses.KW_ONLY
    flags: Sequence[str]
    quantity: Quantity
    base: tuple[str, str]
    lines: Mapping[str, str]
    lengths: Mapping[str, int]
    not_comparable: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def paper(self, published: Table) -> dict[str, str]:
        """The ratios of the paper's numbers; a row that it leaves blank is missing."""
        assert not isinstance(self.column, str)
        ratios = {
            f"{line}, {title}": published.ratio(line, self.base[0], column)
            for line in self.lines
            for title, column in self.column.items()
        }
        return {row: _written(ratio) for row, ratio in ratios.items() if ratio is not None}

    @property
    def rows(self) -> Sequence[str]:
        return [f"{line}, {title}" for line in self.lines for title in self.lengths]

    @property
    def scales(self) -> Sequence[str]:
        return ["cpu"]

    @property
    def trains(self) -> bool:
        return False

    @property
    def runs(self) -> bool:
        return True

    @property
    def rule(self) -> str:
        return "ratio"

    def commands(self, name: str, row: str, context: Context) -> Sequence[Sequence[str]]:
        del name, row
        return runs.commands(self._run, context)

    def measure(self, row: str, context: Context) -> Iterator[tuple[int, Values, Any]]:
        """Measures all rows at once, in a run of its own; one that is there already is found."""
        why = runs.make(self._run, context)
        line, title = row.rsplit(", ", 1)
        found = runs.rows(self._run, context)
        both = [self._of(found, name, title) for name in (self.lines[line], self.base[1])]
        if any(one is None for one in both):
            place = self._run.place(context.folder)
            raise Stopped(
                why
                or f"no row of it, or of {self.base[1]}, in {place} that ran without other work "
                "beside it; remove that folder and measure again on a quiet machine"
            )
        ours, base = both
        over = ours[self.quantity.field] / base[self.quantity.field]
        ratio = 1 / over if self.quantity.is_rate else over
        yield 0, {"ratio": ratio}, ours["environment"]

    @property
    def _run(self) -> Command:
        return Command("compare_lengths", self.flags, trains=False)

    def _of(self, found: Any, name: str, title: str) -> Any:
        mechanism, _, way = name.partition(":")
        wanted = (mechanism, way or None, self.lengths[title], self.quantity.passes)
        rows = [
            one
            for one in found
            if "case" in one
            and tuple(one["case"][x] for x in ("mechanism", "implementation", "length", "passes"))
            == wanted
            and one["status"] == "ok"
            and not (one.get("busy") and self.quantity.field == "median_seconds")
        ]
        return rows[-1] if rows else None

    def shown(self, row: str, values: Sequence[Values]) -> str:
        del row
        return _written(values[0]["ratio"])

    def verdicts(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, str]:
        judged = {}
        for row, values in found.items():
            why = self.not_comparable.get(row.rsplit(", ", 1)[0])
            if row not in paper:
                judged[row] = verdicts.NOT_PRINTED
            elif why:
                judged[row] = f"{verdicts.NOT_COMPARABLE}: {why}"
            else:
                printed = float(paper[row].removesuffix("×"))
                judged[row] = verdicts.of_ratio(printed, values[0]["ratio"])
        return judged

    def remarks(self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]) -> list[str]:
        """What the ratios are to, and which way is better."""
        del paper, found
        better = "Above" if self.quantity.is_rate else "Below"
        theirs, ours = self.base
        means = "faster" if self.quantity.field == "median_seconds" else "less"
        return [f"Ratios to *{theirs}*, ours to `{ours}`. {better} 1 is {means} than it."]


def _written(ratio: float) -> str:
    return f"{ratio:#.3g}×"
