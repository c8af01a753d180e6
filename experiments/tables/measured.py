"""Tables of times and memory: ratios to a row of the table, from a run of `compare_lengths`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnlab.runs.errors import Stopped
from attnlab.runs.published import Table
from experiments.tables import runs, verdicts
from experiments.tables.runs import Command, Context
from experiments.tables.table import Found, PublishedTable, Values


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
class RatioTable(PublishedTable):
    """A table over lengths, of which each row is compared with one of them, the base.

    A row here is "Reformer, 1K": a row of the paper and the title of a column.

    Attributes:
      run: run of `compare_lengths` that makes the numbers.
      quantity: quantity of the paper and of ours.
      base: row of the paper that the others are divided by, and ours.
      lines: mechanism here, as `compare_lengths` writes it, by the row of the paper.
      lengths: number of tokens of ours, by the title of a column.
      not_comparable: reason why a row of the paper says nothing about ours.
    """

    _: dataclasses.KW_ONLY
    run: Command
    quantity: Quantity
    base: tuple[str, str]
    lines: Mapping[str, str]
    lengths: Mapping[str, int]
    not_comparable: Mapping[str, str] = dataclasses.field(default_factory=dict)

    rule = "ratio"
    trains = False

    @property
    def unit(self) -> str:  # type: ignore[override]
        return "time" if self.quantity.field == "median_seconds" else "memory"

    @property
    def rows(self) -> Sequence[str]:
        return [f"{line}, {title}" for line in self.lines for title in self.lengths]

    @property
    def scales(self) -> Sequence[str]:
        return ["cpu"]

    def paper(self, published: Table) -> dict[str, str]:
        """The ratios of the paper's numbers; a row that it leaves blank is missing."""
        assert not isinstance(self.column, str)
        ratios = {
            f"{line}, {title}": published.ratio(line, self.base[0], column)
            for line in self.lines
            for title, column in self.column.items()
        }
        return {row: _format_ratio(ratio) for row, ratio in ratios.items() if ratio is not None}

    def run_of(self, row: str, scale: str) -> Command:
        """The run of all rows."""
        del row, scale
        return self.run

    def measure(self, row: str, context: Context) -> Iterator[tuple[int, Values, Any]]:
        """Measures all rows at once, in a run of its own; one that is there already is found."""
        why = runs.make(self.run, context)
        line, title = row.rsplit(", ", 1)
        found = runs.rows(self.run, context)
        ours = self._find_row(found, self.lines[line], title)
        base = self._find_row(found, self.base[1], title)
        if ours is None or base is None:
            place = self.run.place(context.folder)
            raise Stopped(
                why
                or f"no row of it, or of {self.base[1]}, in {place} that ran without other work "
                "beside it; remove that folder and measure again on a quiet machine"
            )
        ratio = ours[self.quantity.field] / base[self.quantity.field]
        if self.quantity.is_rate:
            ratio = 1 / ratio
        yield 0, {"ratio": ratio}, ours["environment"]

    def _find_row(self, found: Sequence[Any], name: str, title: str) -> Any:
        """The last row of a mechanism at a length that counts; None = there is none."""
        mechanism, _, implementation = name.partition(":")
        wanted = {
            "mechanism": mechanism,
            "implementation": implementation or None,
            "length": self.lengths[title],
            "passes": self.quantity.passes,
        }
        is_time = self.quantity.field == "median_seconds"
        rows = [
            one
            for one in found
            if "case" in one
            and wanted.items() <= one["case"].items()
            and one["status"] == "ok"
            and not (one.get("busy") and is_time)
        ]
        return rows[-1] if rows else None

    def format_row(self, values: Sequence[Values]) -> str:
        return _format_ratio(values[0]["ratio"])

    def scores(self, found: Found) -> Mapping[str, Sequence[float]]:
        """The ratios."""
        return {row: [values[0]["ratio"]] for row, values in found.items()}

    def verdicts(self, paper: Mapping[str, str], found: Found) -> dict[str, str]:
        judged = {}
        for row, values in found.items():
            line = row.rsplit(", ", 1)[0]
            if row not in paper:
                judged[row] = verdicts.NOT_PRINTED
            elif line in self.not_comparable:
                judged[row] = f"{verdicts.NOT_COMPARABLE}: {self.not_comparable[line]}"
            else:
                printed = float(paper[row].removesuffix("×"))
                judged[row] = verdicts.judge_ratio(printed, values[0]["ratio"])
        return judged

    def remarks(self, found: Found) -> list[str]:
        """What the ratios are to, and which way is better."""
        del found
        better = "Above" if self.quantity.is_rate else "Below"
        theirs, ours = self.base
        means = "faster" if self.quantity.field == "median_seconds" else "less"
        return [f"Ratios to *{theirs}*, ours to `{ours}`. {better} 1 is {means} than it."]


def _format_ratio(ratio: float) -> str:
    return f"{ratio:#.3g}×"
