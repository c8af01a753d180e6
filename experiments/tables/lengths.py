"""A figure of scores over the length of the source: no numbers of the paper, only their course."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.runs.units import spread
from attnlab.training.bleu import Bucket
from attnlab.training.evaluation_figures import length_figure
from experiments.tables import verdicts
from experiments.tables.table import Found, Values
from experiments.tables.trained import TrainedTable
from experiments.tables.verdicts import Gap

ENOUGH = 50  # sentences: BLEU of fewer is too uncertain to be judged


def _flatten(buckets: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The numbers of all groups by name: "2 score" is the score of the third."""
    return {
        f"{i} {name}": x
        for i, bucket in enumerate(buckets)
        for name, x in bucket.items()
        if x is not None
    }


def _buckets(values: Values) -> list[Bucket]:
    """The inverse of `_flatten`."""
    found: dict[str, dict[str, Any]] = {}
    for key, x in values.items():
        i, name = key.split()
        found.setdefault(i, {"longest": None})[name] = x
    return [Bucket(**fields) for fields in found.values()]


@dataclasses.dataclass(frozen=True)
class LengthTable(TrainedTable):
    """Scores of trained models by the length of the source, judged by their course.

    A model's *change* is the BLEU of the longest group of at least `ENOUGH` sentences without that
    of the group that has most sentences.

    Attributes:
      less: row that another row should fall less than, by the name of the other.
    """

    _: dataclasses.KW_ONLY
    less: Mapping[str, str] = dataclasses.field(default_factory=dict)

    tie = verdicts.HOLDS
    caption = "means over the seeds, of the scores and of the ends of their bars"

    def values(self, line: Mapping[str, Any]) -> Values:
        return _flatten(line["details"]["buckets"])

    def format_row(self, values: Sequence[Values]) -> str:
        ends = [_ends(_buckets(one)) for one in values]
        usual_scores = [usual.score for usual, _ in ends]
        long_scores = [long.score for _, long in ends]
        return f"{spread(usual_scores, '.1f')} → {spread(long_scores, '.1f')}"

    def verdicts(self, paper: Mapping[str, str], found: Found) -> dict[str, str]:
        judged = {gap.row: verdicts.judge_gap(gap, tie=self.tie) for gap in self.gaps(paper, found)}
        return {row: judged.get(row, verdicts.NOT_RUN) for row in found}

    def gaps(self, paper: Mapping[str, str], found: Found) -> list[Gap]:
        """The changes, beside 0 or beside that of the row that should fall more."""
        changes = _changes(found)
        gaps = []
        for row, some in changes.items():
            other = self.less.get(row, "")
            if paper[row] != "falls less":
                gaps.append(Gap(row, "", paper[row], (some,)))
            elif other in changes:
                gaps.append(Gap(row, other, paper[row], (some, changes[other])))
        return gaps

    def columns(self, paper: Mapping[str, str], found: Found) -> dict[str, dict[str, str]]:
        """The changes that are judged."""
        del paper
        changes = _changes(found)
        return {"change": {row: spread(some, "+.1f") for row, some in changes.items()}}

    def remarks(self, found: Found) -> list[str]:
        """From which lengths to which."""
        ends = dict.fromkeys(
            tuple(bucket.title for bucket in _ends(_buckets(one)))
            for values in found.values()
            for one in values
        )
        said = [f"from sentences of {usual} words to those of {long}" for usual, long in ends]
        return [
            f"BLEU {', '.join(said)}: the group with most sentences, and the longest of at least"
            f" {ENOUGH}."
        ]

    def figure(self, paper: Mapping[str, str], found: Found) -> Any:
        del paper
        if not found:
            return None
        lines = {row: _mean([_buckets(one) for one in some]) for row, some in found.items()}
        return length_figure(lines)


def _ends(buckets: Sequence[Bucket]) -> tuple[Bucket, Bucket]:
    """The group with most sentences, and the longest one that has enough, or the same."""
    usual = max(buckets, key=lambda bucket: bucket.count)
    long = [bucket for bucket in buckets if bucket.count >= ENOUGH]
    return usual, long[-1] if long else usual


def _changes(found: Found) -> dict[str, list[float]]:
    def change(values: Values) -> float:
        usual, long = _ends(_buckets(values))
        return long.score - usual.score

    return {row: [change(one) for one in values] for row, values in found.items()}


def _mean(seeds: Sequence[Sequence[Bucket]]) -> list[Bucket]:
    """The groups with the means over seeds of scores and of the ends of their intervals."""
    return [
        dataclasses.replace(
            same[0],
            **{
                name: statistics.fmean(getattr(one, name) for one in same)
                for name in ("score", "low", "high")
            },
        )
        for same in zip(*seeds, strict=True)
    ]
