"""A figure of scores of which the paper prints no numbers, only which of two is less."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tables import verdicts
from experiments.tables.beside import Values
from experiments.tables.trained import TrainedTable

__all__ = ["WordedTable"]


@dataclasses.dataclass(frozen=True)
class WordedTable(TrainedTable):
    """Scores of trained models; the paper says in words which of two is less."""

    def verdicts(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, str]:
        return verdicts.of_gaps(paper, self.scores(found), against=self.against(), tie=self.tie)

    def columns(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, dict[str, str]]:
        """The gaps that are judged."""
        return {"our gap": self.our_gaps(found)}

    def remarks(self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]) -> list[str]:
        """What the gaps are from."""
        return [f"{self.score.capitalize()}; gaps are from {self.compared}; a tie is {self.tie:g}."]

    def figure(self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]) -> Any:
        """None: there is no gap of the paper to draw."""
