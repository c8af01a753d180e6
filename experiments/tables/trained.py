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

__all__ = ["PRESETS", "TrainedTable"]

PRESETS = {"cpu": "small", "gpu": "gpu"}  # of translate, by scale


@dataclasses.dataclass(frozen=True)
class TrainedTable(Beside):
    """A table of scores of trained models, judged by their order and their gaps.

    Attributes:
      runs: flags of `translate` that make a row another than the preset's, by the name of the row.
      score: name of the score that stands beside the paper's.
      base: row that the others are compared with; None = each with the one above it.
      tie: gap of the paper below which two rows count as equal.
      of_dates: whether the models are trained on dates, whose links are known.
    """

    runs: Mapping[str, Sequence[str]]
    _: dataclasses.KW_ONLY
    score: str = "BLEU"
    base: str | None = None
    tie: float = 0.3
    of_dates: bool = False

    @property
    def rows(self) -> Sequence[str]:
        return list(self.runs)

    @property
    def scales(self) -> Sequence[str]:
        return list(PRESETS)

    @property
    def trains(self) -> bool:
        return True

    @property
    def of_text(self) -> bool:
        return not self.of_dates

    def flags(self, row: str, context: Context) -> list[str]:
        """The flags of `translate` that train a row's models."""
        seeds = ",".join(map(str, context.seeds))
        data = () if self.of_dates else context.data
        return [*self._model(row, context), f"--seeds={seeds}", *data]

    def command(self, name: str, row: str, context: Context) -> list[str]:
        del name
        return ["translate", *self.flags(row, context)]

    def measure(self, row: str, context: Context) -> Iterator[tuple[int, Values, Any]]:
        """Trains what is missing in a run of its own; one that is there already is found.

        Raises:
          Invalid: the seeds' rows are of several revisions.
          Stopped: the run did not end well.
        """
        folder = context.folder / _as_name(self._model(row, context))
        say()
        _run(["experiments.translate", *self.flags(row, context), *_where(folder)])
        rows = _rows(_kept(folder)[-1])
        revisions = {seed: rows[seed]["environment"]["revision"] for seed in context.seeds}
        if len(set(revisions.values())) > 1:
            listed = ", ".join(f"seed {seed} of {x or '?'}" for seed, x in revisions.items())
            raise Invalid(
                f"{folder}: {listed}; a row is of one revision: delete the folder, and it is "
                "trained again"
            )
        for seed in context.seeds:
            yield seed, _scores(rows[seed]), rows[seed]["environment"]

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

    def _model(self, row: str, context: Context) -> list[str]:
        preset = "dates" if self.of_dates else PRESETS[context.scale]
        return [f"--preset={preset}", *self.runs[row]]

    def _scores(self, found: Mapping[str, Sequence[Values]]) -> dict[str, list[float]]:
        return {row: [one[self.score] for one in values] for row, values in found.items()}

    def _against(self) -> dict[str, str]:
        rows = list(self.runs)
        if self.base is None:
            return dict(zip(rows[1:], rows, strict=False))
        return {row: self.base for row in rows if row != self.base}


_FORMS = {"BLEU": ".1f", "perplexity": ".2f", "AER": ".3f", "entropy": ".2f", "exact match": ".1%"}


def _scores(row: Mapping[str, Any]) -> dict[str, float]:
    """The scores of a row of `translate`."""
    found = {
        "BLEU": row["bleu"] and row["bleu"]["score"],
        "perplexity": row["perplexity"],
        "AER": row["alignment_error_rate"],
        "entropy": row["attention_entropy"],
        "exact match": row["exact_match"],
    }
    return {name: x for name, x in found.items() if x is not None}


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


def _rows(folder: Path) -> dict[int, dict[str, Any]]:
    """The last row of each seed."""
    lines = (folder / ROWS).read_text(encoding="utf-8").splitlines()
    return {row["seed"]: row for row in map(json.loads, lines)}


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
