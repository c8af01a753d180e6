"""Accuracies by what was trained and what it was evaluated with, over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from attnlab.runs.units import spread
from experiments.duplication.attention import Hashing, rounds_of
from experiments.duplication.measure import Row

__all__ = ["LEARNED", "Cells", "own", "written"]

LEARNED = 50.0  # percent with the attention of training: below that, a model says nothing of others


class Cells:
    """The accuracies of the rows of one task, in percent."""

    def __init__(self, rows: Sequence[Row], base: Hashing):
        """Takes the rows of one task, and what its table has of that which is left open."""
        self.base = base
        self.by_cell: dict[tuple[str, Hashing, str, Hashing], dict[int, float]] = {}
        for row in rows:
            cell = row.trained, row.hashing, row.evaluated, row.evaluated_hashing
            self.by_cell.setdefault(cell, {})[row.seed] = 100 * row.accuracy

    def of(
        self,
        trained: str,
        evaluated: str,
        hashing: Hashing | None = None,
        evaluated_hashing: Hashing | None = None,
    ) -> list[float]:
        """The accuracies of all seeds.

        Args:
          trained: name of the attention of training.
          evaluated: name of the attention of evaluation.
          hashing: hashing of training; None = the table's.
          evaluated_hashing: hashing of evaluation; None = that of training.
        """
        hashing = hashing or self.base
        cell = trained, hashing, evaluated, evaluated_hashing or hashing
        return list(self.by_cell.get(cell, {}).values())

    def mean(self, *cell, **named) -> float | None:
        """The mean of `of`; None where there are none."""
        found = self.of(*cell, **named)
        return statistics.fmean(found) if found else None

    def gaps(self, trained: str, other: str, evaluated: str) -> list[float]:
        """How far one of the table's models is above another, by the seeds of both."""
        one, two = (
            self.by_cell.get((name, self.base, evaluated, self.base), {})
            for name in (trained, other)
        )
        return [one[seed] - two[seed] for seed in sorted(one.keys() & two.keys())]

    def learned(self, trained: str, hashing: Hashing) -> bool:
        """Whether a training learned the task: `LEARNED` with its own attention, in the mean."""
        found = self.own(trained, hashing)
        return bool(found) and statistics.fmean(found) >= LEARNED

    def own(self, trained: str, hashing: Hashing) -> list[float]:
        """The accuracies with the attention of training, or where none is, with the most rounds."""
        most = f"lsh-{max(self.rounds(), default=0)}"
        return self.of(trained, own(trained), hashing) or self.of(trained, most, hashing)

    def rounds(self) -> list[int]:
        """The numbers of rounds of evaluation, the most first."""
        found = {n for cell in self.by_cell if (n := rounds_of(cell[2]))}
        return sorted(found, reverse=True)

    def trained(self) -> list[tuple[str, Hashing]]:
        """What was trained, in order of first appearance."""
        return list(dict.fromkeys((cell[0], cell[1]) for cell in self.by_cell))

    def hashings(self) -> list[Hashing]:
        """What was evaluated with, in order of first appearance."""
        return list(dict.fromkeys(cell[3] for cell in self.by_cell))

    def evaluated(self) -> list[str]:
        """The columns of the table: full attention, then rounds that fall."""
        return ["shared", *(f"lsh-{n}" for n in self.rounds())]


def own(trained: str) -> str:
    """The attention of a training.

    >>> own("lsh-4, N(0, 1) positions"), own("plain")
    ('lsh-4', 'plain')
    """
    return trained.partition(",")[0]


def written(found: Sequence[float]) -> str:
    """The mean over the seeds and, if there are several, ± half of its 95 % interval.

    >>> written([99.0, 98.0, 100.0]), written([0.84]), written([])
    ('99.0 ± 2.5', '0.8', '')
    """
    return spread(found, ".1f") if found else ""
