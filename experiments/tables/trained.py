"""Tables whose numbers come from trainings: each row is a run of an experiment's command."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.runs import provenance
from attnlab.runs.errors import Stopped
from attnlab.runs.units import spread
from experiments.tables import runs, verdicts
from experiments.tables.figure import LOOKS, gaps_figure
from experiments.tables.runs import Command, Context
from experiments.tables.table import Found, PublishedTable, Values
from experiments.tables.verdicts import Gap

PLATEAU = "plateau"  # of a run with --plateau the step after which it came, 0 = it did not
FORMS = {
    "BLEU": ".1f",
    "perplexity": ".2f",
    "AER": ".3f",
    "entropy": ".2f",
    "exact match": ".1f",
    "accuracy": ".1f",
    "F1": ".1f",
    "bits per byte": ".2f",
}


@dataclasses.dataclass(frozen=True)
class Training:
    """The training of a row, and which lines of its results are the row's.

    Attributes:
      runs: run by scale.
      axes: axes of its cells, all or some.
      evaluated: attention that it was evaluated with; None = any.
    """

    runs: Mapping[str, Command]
    axes: Mapping[str, Any]
    evaluated: str | None = None

    def lines(self, found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The lines of a run's results.jsonl that are the row's.

        A line without scores is left out: it has the alignments that are drawn.
        """
        return [
            line
            for line in found
            if line["scores"]
            and self.axes.items() <= line["cell"].get("axes", {}).items()
            and self.evaluated in (None, line.get("evaluated"))
        ]


@dataclasses.dataclass(frozen=True)
class TrainedTable(PublishedTable):
    """A table of trained models; its kinds judge them.

    Attributes:
      trainings: training of each row.
    """

    _: dataclasses.KW_ONLY
    trainings: Mapping[str, Training]

    @property
    def rows(self) -> Sequence[str]:
        return list(self.trainings)

    @property
    def scales(self) -> Sequence[str]:
        return list(self.trainings[self.rows[0]].runs)

    def run_of(self, row: str, scale: str) -> Command:
        return self.trainings[row].runs[scale]

    def measure(self, row: str, context: Context) -> Iterator[tuple[int, Values, Any]]:
        """Trains what is missing in a run of its own; one that is there already is found.

        Raises:
          Invalid: its experiment does not accept the flags.
          Stopped: a training failed, or the seeds that are done are of another revision.
        """
        run = self.run_of(row, context.scale)
        place = run.place(context.folder)
        if place not in context.ran:
            _require_revision(place, self.read(row, runs.rows(run, context)), context.seeds)
        why = runs.make(run, context)
        scores = self.read(row, runs.rows(run, context))
        for seed in context.seeds:
            if seed in scores:
                yield seed, *scores[seed]
        missing = [seed for seed in context.seeds if seed not in scores]
        if missing:
            listed = ", ".join(map(str, missing))
            raise Stopped(f"seed {listed} of {row}: {why or f'no row in {place}'}")

    def read(self, row: str, found: Sequence[Mapping[str, Any]]) -> dict[int, tuple[Values, Any]]:
        """The numbers of a row by seed, each with the environment that they were measured in."""
        lines = self.trainings[row].lines(found)
        return {line["cell"]["seed"]: (self.values(line), line["environment"]) for line in lines}

    @abc.abstractmethod
    def values(self, line: Mapping[str, Any]) -> Values:
        """Our numbers in a line of a run's results."""


@dataclasses.dataclass(frozen=True)
class ScoreTable(TrainedTable):
    """A table of scores of trained models, judged by their order and their gaps.

    Attributes:
      measures: measure of a run's results that a score is, and its factor, by the score's name.
      score: name of the score that stands beside the paper's.
      base: row that the others are compared with; None = each with the one above it.
      tie: gap below which two rows count as equal.
      sizes: whether gaps are compared by size too; False = the tasks differ in kind.
      not_comparable: reason why a row's gap says nothing about the paper's, by its name.
      collapsed: scores by name, and the numbers below which a seed has not learned the task.
    """

    _: dataclasses.KW_ONLY
    measures: Mapping[str, tuple[str, float]]
    score: str = "BLEU"
    base: str | None = None
    tie: float = 0.3
    sizes: bool = True
    not_comparable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    collapsed: Mapping[str, float] = dataclasses.field(default_factory=dict)

    caption = "gaps, the paper's and ours"

    @property
    def unit(self) -> str:  # type: ignore[override]
        _, factor = self.measures[self.score]
        return f"{self.score}, %" if factor == 100 else self.score

    def values(self, line: Mapping[str, Any]) -> Values:
        scores = line["scores"]
        measures = self.measures.items()
        values = {name: scores[x] * factor for name, (x, factor) in measures if x in scores}
        if line.get("flags", {}).get("plateau") is not None:
            values[PLATEAU] = line["plateau"] or 0
        return values

    def format_row(self, values: Sequence[Values]) -> str:
        return spread([one[self.score] for one in values], FORMS[self.score])

    def verdicts(self, paper: Mapping[str, str], found: Found) -> dict[str, str]:
        against = self.against()
        judged = {
            row: verdicts.BASE if row in {*paper, *against.values()} else verdicts.NOT_PRINTED
            for row in found
        }
        for row in against.keys() & found.keys():
            there = row not in paper or against[row] in found
            judged[row] = verdicts.NOT_PRINTED if there else verdicts.NOT_RUN
        for gap in self.gaps(paper, found):
            judged[gap.row] = self.judge(gap, found, self.tie)
        return judged

    def judge(self, gap: Gap, found: Found, tie: float) -> str:
        """The verdict on a gap of two rows, which may not be comparable.

        Args:
          gap: gap of the rows.
          found: values of all rows that are there.
          tie: gap below which they count as equal.
        """
        reasons = self.reasons(found)
        if gap.row in reasons:
            return f"{verdicts.NOT_COMPARABLE}: {reasons[gap.row]}"
        if gap.against in reasons:
            return f"{verdicts.NOT_COMPARABLE}: {gap.against}: {reasons[gap.against]}"
        _, factor = self.measures[self.score]
        if factor == 100 and min(map(min, gap.samples)) >= 100 - tie:
            return f"{verdicts.NOT_COMPARABLE}: all seeds of both have 100 %, or nearly"
        return verdicts.judge_gap(gap, tie=tie, sizes=self.sizes)

    def printed(self, paper: Mapping[str, str]) -> Mapping[str, float | str]:
        """What the paper prints, by row: numbers, or words for which of two is less."""
        return {row: x if x in verdicts.SIDES else float(x) for row, x in paper.items()}

    def gaps(self, paper: Mapping[str, str], found: Found) -> list[Gap]:
        """The gaps of the rows that have one in the paper and here."""
        return verdicts.gaps(self.printed(paper), self.scores(found), self.against())

    def reasons(self, found: Found) -> dict[str, str]:
        """Why a row says nothing about the paper's: its table, a collapse, or no plateau."""
        reasons = {row: why for row, why in self.not_comparable.items() if row in found}
        for name, least in self.collapsed.items():
            for row, values in found.items():
                seeds = [one[name] for one in values if name in one]
                low = [score for score in seeds if not score >= least]  # NaN too
                if low:
                    count = f"{len(low)} of {len(seeds)} seeds collapsed"
                    reasons.setdefault(row, f"{count}, {name} {min(low):{FORMS[name]}}")
        for row, values in found.items():
            if any(one.get(PLATEAU) == 0 for one in values):
                reasons.setdefault(row, "still learning after all steps")
        return reasons

    def columns(self, paper: Mapping[str, str], found: Found) -> dict[str, dict[str, str]]:
        """The gaps that are judged, and our other scores."""
        gaps = self.gaps(paper, found)
        printed = {gap.row: gap.paper for gap in gaps if not isinstance(gap.paper, str)}
        columns = {
            "paper's gap": {row: f"{gap:+{FORMS[self.score]}}" for row, gap in printed.items()},
            "our gap": self.our_gaps(found),
        }
        for name, form in FORMS.items():
            if name != self.score:
                columns[name] = {
                    row: spread([one[name] for one in values], form)
                    for row, values in found.items()
                    if all(name in one for one in values)
                }
        return {name: cells for name, cells in columns.items() if cells}

    def remarks(self, found: Found) -> list[str]:
        """What the gaps are from."""
        said = f"Gaps are from {self.compared}; a tie is {self.tie:g}."
        if self.reasons(found):
            said += " What is not comparable is not drawn."
        if not self.sizes:
            said += " Only sides are compared: the tasks differ in kind."
        return [said]

    def figure(self, paper: Mapping[str, str], found: Found) -> Any:
        judged = self.verdicts(paper, found)
        gaps = [
            (gap, verdicts.outcome(judged[gap.row]))
            for gap in self.gaps(paper, found)
            if not isinstance(gap.paper, str)
        ]
        gaps = [(gap, outcome) for gap, outcome in gaps if outcome in LOOKS]
        if not gaps:
            return None
        base = self.base or "the row above in the table"
        if base in found:
            base += f" (paper {paper[base]}, ours {self.format_row(found[base])})"
        return gaps_figure(gaps, title=self.title, score=f"{self.score}, gap from {base}")

    @property
    def compared(self) -> str:
        """What each row is compared with, in words."""
        return "the row above" if self.base is None else f"*{self.base}*"

    def our_gaps(self, found: Found) -> dict[str, str]:
        """Our gap of each row ± half of its interval, also where the paper prints nothing."""
        scores, form = self.scores(found), FORMS[self.score]
        gaps = verdicts.gaps(dict.fromkeys(scores, 0.0), scores, self.against())
        ours = {gap.row: f"{gap.ours:+{form}}" for gap in gaps}
        for gap in gaps:
            if math.isfinite(gap.half_width):
                ours[gap.row] += f" ± {gap.half_width:{form}}"
        return ours

    def scores(self, found: Found) -> dict[str, list[float]]:
        """The score that is judged, of all seeds, by row."""
        return {row: [one[self.score] for one in values] for row, values in found.items()}

    def against(self) -> dict[str, str]:
        """The row that each row is compared with."""
        rows = self.rows
        if self.base is None:
            return dict(zip(rows[1:], rows, strict=False))
        return {row: self.base for row in rows if row != self.base}


def _require_revision(
    place: Path, scores: Mapping[int, tuple[Values, Any]], seeds: Sequence[int]
) -> None:
    """Refuses to train the other seeds of a row at another revision.

    Raises:
      Stopped: seeds that are done are of another revision, or of several.
    """
    revisions = {scores[seed][1]["revision"] or "unknown" for seed in seeds if seed in scores}
    to_come = set() if scores.keys() >= set(seeds) else {provenance.revision() or "unknown"}
    if len(revisions | to_come) > 1:
        raise Stopped(
            f"{place} has seeds of revision {', '.join(sorted(revisions))}, and a row is of one: "
            "go on there with that revision, or delete the folder"
        )
