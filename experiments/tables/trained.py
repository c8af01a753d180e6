"""Tables whose numbers come from trainings: each row is a run of an experiment's command."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid, Stopped
from attnlab.runs.folder import ROWS, SETTINGS
from attnlab.runs.interrupts import signal_of
from attnlab.runs.units import spread
from experiments.tables import verdicts
from experiments.tables.beside import Beside, Context, Values
from experiments.tables.figure import gaps_figure
from experiments.tables.trainings import SCALES, Trainings

__all__ = ["TrainedTable"]


@dataclasses.dataclass(frozen=True)
class TrainedTable(Beside):
    """A table of scores of trained models, judged by their order and their gaps.

    Attributes:
      trainings: commands that train the models.
      score: name of the score that stands beside the paper's.
      base: row that the others are compared with; None = each with the one above it.
      tie: gap of the paper below which two rows count as equal.
    """

    trainings: Trainings
    _: dataclasses.KW_ONLY
    score: str = "BLEU"
    base: str | None = None
    tie: float = 0.3

    @property
    def rows(self) -> Sequence[str]:
        return self.trainings.rows

    @property
    def scales(self) -> Sequence[str]:
        return SCALES

    @property
    def trains(self) -> bool:
        return True

    @property
    def of_text(self) -> bool:
        return self.trainings.of_text

    def command(self, name: str, row: str, context: Context) -> list[str]:
        del name
        seeds = ",".join(map(str, context.seeds))
        data = context.data if self.of_text else ()
        trained = self.trainings.flags(row, context.scale)
        return [self.trainings.experiment, *trained, f"--seeds={seeds}", *data]

    def measure(self, row: str, context: Context) -> Iterator[tuple[int, Values, Any]]:
        """Trains what is missing in a run of its own; one that is there already is found.

        Raises:
          Invalid: the seeds' rows are of several revisions.
          Stopped: the run did not end well.
        """
        experiment, flags = self.trainings.experiment, self.trainings.flags(row, context.scale)
        folder = context.folder / _as_name([experiment, *flags])
        _, *flags = self.command("", row, context)
        say()
        _run([f"experiments.{experiment}", *flags, *_where(folder)])
        scores = self.trainings.scores(row, _rows(_kept(folder)[-1]))
        revisions = {seed: scores[seed][1]["revision"] for seed in context.seeds}
        if len(set(revisions.values())) > 1:
            listed = ", ".join(f"seed {seed} of {x or '?'}" for seed, x in revisions.items())
            raise Invalid(
                f"{folder}: {listed}; a row is of one revision: delete the folder, and it is "
                "trained again"
            )
        for seed in context.seeds:
            yield seed, *scores[seed]

    def shown(self, row: str, values: Sequence[Values]) -> str:
        del row
        return spread([one[self.score] for one in values], _FORMS[self.score])

    def verdicts(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, str]:
        return verdicts.of_gaps(
            _figures(paper), self._scores(found), against=self._against(), tie=self.tie
        )

    def columns(
        self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]
    ) -> dict[str, dict[str, str]]:
        """The gaps that are judged, and our other scores."""
        columns: dict[str, dict[str, str]] = {"paper's gap": {}, "our gap": {}}
        for gap in verdicts.gaps(_figures(paper), self._scores(found), self._against()):
            columns["paper's gap"][gap.row] = f"{gap.paper:+.2f}"
            columns["our gap"][gap.row] = f"{gap.ours:+.2f}, spread {gap.spread:.2f}"
        for name, form in _FORMS.items():
            if name != self.score:
                columns[name] = {
                    row: spread([one[name] for one in values], form)
                    for row, values in found.items()
                    if all(name in one for one in values)
                }
        return {name: cells for name, cells in columns.items() if cells}

    def remarks(self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]) -> list[str]:
        """What the gaps are from, and how many pairs of rows have the paper's order."""
        base = "the row above" if self.base is None else f"*{self.base}*"
        pairs = verdicts.pairs(_figures(paper), self._scores(found), self.tie)
        said = f"Gaps are from {base}; the paper's below {self.tie:g} count as none."
        if total := sum(pairs.values()):
            counted = ", ".join(f"{number} {words}" for words, number in pairs.items())
            said += f" Of the {total} pairs of rows that the paper tells apart: {counted}."
        return [said]

    def figure(self, paper: Mapping[str, str], found: Mapping[str, Sequence[Values]]) -> Any:
        gaps = verdicts.gaps(_figures(paper), self._scores(found), self._against())
        return gaps_figure(gaps, title=self.title, score=self.score) if gaps else None

    def _scores(self, found: Mapping[str, Sequence[Values]]) -> dict[str, list[float]]:
        return {row: [one[self.score] for one in values] for row, values in found.items()}

    def _against(self) -> dict[str, str]:
        rows = self.rows
        if self.base is None:
            return dict(zip(rows[1:], rows, strict=False))
        return {row: self.base for row in rows if row != self.base}


_FORMS = {
    "BLEU": ".1f",
    "perplexity": ".2f",
    "AER": ".3f",
    "entropy": ".2f",
    "exact match": ".1%",
    "accuracy": ".1f",
}


def _figures(paper: Mapping[str, str]) -> dict[str, float]:
    return {row: float(printed) for row, printed in paper.items()}


def _as_name(words: Sequence[str]) -> str:
    """Flags as the name of a folder."""
    return re.sub(r"[^\w.=,-]+", "_", " ".join(word.removeprefix("--") for word in words))


def _kept(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"*/{SETTINGS}"))


def _where(folder: Path) -> list[str]:
    kept = _kept(folder)
    return [f"--resume={kept[-1]}" if kept else f"--output_dir={folder}"]


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / ROWS).read_text(encoding="utf-8").splitlines()]


def _run(words: Sequence[str]) -> None:
    """Runs a module; Ctrl-C and SIGTERM reach it once, and it keeps what it has.

    Raises:
      Stopped: its exit status is not 0; what it said stands above.
    """
    command = [sys.executable, "-m", *words]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        status = process.wait()
    except KeyboardInterrupt as error:
        process.send_signal(signal_of(error))
        process.wait()
        raise
    if status:
        said = shlex.join(["python", "-m", *words])
        raise Stopped(f"{said} ended with status {status}")
