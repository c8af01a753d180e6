"""A run of a study: what is opened once, the trainings of its cells, and its report."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic

from attnlab.mechanisms import own
from attnlab.runs import command_line, loop, processes, provenance
from attnlab.runs.flags import format_value
from attnlab.runs.folder import Folder
from attnlab.runs.report import SoFar, document, group, so_far
from attnlab.runs.rows import Rows
from attnlab.runs.units import PLUS_MINUS
from attnlab.studies.study import Cell, D, Row, S, Study, Training, identity
from attnlab.training import tuning
from attnlab.training.curve import Diverged, MetricsFile, read_metrics
from attnlab.training.loop import CHECKPOINTS, LoopSettings, Trained
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import Parallel
from attnlab.training.run import prepare, run_training
from attnlab.training.training_curve import curve, training_curve


class Run(Generic[S, D]):
    """A run of a study: what is opened once, and what a loop does with its cells."""

    def __init__(self, kind: type[Study[S, D]], settings: S, folder: Folder):
        """Opens devices, data and rows.

        Raises:
          Invalid: settings, data and devices do not fit, or the data are others than before.
        """
        self.folder = folder
        self.parallel: Parallel = prepare(settings, kind.batch_sizes(settings))
        with processes.first_before_others():  # what it prepares in a shared cache, they find
            data: D = kind.open(settings)
        self.study = kind(settings, data, self.parallel.part)
        self.cells = self.study.cells()
        self.rows: Rows[Hashable, Row] = Rows(folder, lambda row: row.key, [Row])
        self.rows.environment = provenance.describe(kind.packages)
        self.rows.environment["devices"] = self.parallel.mesh.size
        self.rows.require_same_own(own.digests())
        if data.digest:
            self.rows.environment["input"] = {"name": data.name, "sha256": data.digest}
            self.rows.require_same_input()

    def keys(self, cell: Cell) -> list[Hashable]:
        """The keys of a cell's rows."""
        return [(cell, name) for name in self.study.evaluations(cell)]

    def measure(self, cell: Cell) -> Iterator[Row]:
        """Trains a cell to its end, from its last checkpoint if it has one, and evaluates it."""
        place = self.folder.path / cell.folder
        trials = self._tune(cell) if self.study.settings.tune else ()
        training = self.study.training(cell)
        if trials:
            rate = tuning.rank(trials)[0].learning_rate
            optimizer = dataclasses.replace(training.optimizer, learning_rate=rate)
            training = dataclasses.replace(training, optimizer=optimizer)
        trained = self.train(cell, training, place)
        for evaluation in self.study.evaluate(cell, training, trained, place):
            yield Row(
                cell=cell,
                evaluated=evaluation.evaluated,
                scores=evaluation.scores,
                parameters=trained.num_parameters,
                step=trained.step,
                seconds=trained.seconds,
                validation=trained.validation,
                details=evaluation.details,
                plateau=trained.plateau,
                trials=trials,
            )

    def _tune(self, cell: Cell) -> tuple[tuning.Trial, ...]:
        """Makes the trials of a model, with its first seed, as far as they are not made yet.

        What a trial found is kept, so all seeds and a resumed run have the same learning rate.
        """
        if trials := self.kept_trials(cell.title):
            return trials
        first = next(one for one in self.cells if one.title == cell.title)
        training = self.study.training(first)
        headline = training.task.objective.headline
        whole = json.dumps(identity(self.study, first) | training.task.identity, sort_keys=True)
        made_of = hashlib.sha256(whole.encode()).hexdigest()[:8]  # other data, another folder

        def measure(optimizer: OptimizerSettings, once: LoopSettings) -> float:
            """What the curve of a trial ends with, which is all that is kept of it."""
            rate, steps = optimizer.learning_rate, once.steps
            place = self.folder.path / f"{first.folder}-rate{rate:g}-steps{steps}-{made_of}"

            def losses() -> list[float]:
                return curve(read_metrics(place), "validation", headline)[1]

            if not processes.agree(losses):
                command_line.say(f"trial of learning rate {rate:g}, {steps} steps")
                short = dataclasses.replace(training, optimizer=optimizer, loop=once)
                try:
                    self.train(first, short, place)
                except Diverged:
                    if not place.exists():  # what comes before every trial diverged
                        raise
                    if processes.is_first():  # else a resumed run would try it again
                        end = {"kind": "validation", "step": steps, headline: math.nan}
                        MetricsFile(place, after_step=steps).add(end)
                processes.barrier()
            if processes.is_first():
                shutil.rmtree(place / CHECKPOINTS, ignore_errors=True)
            return processes.agree(losses)[-1]

        factors = self.study.settings.tune
        return tuple(tuning.search(training.optimizer, training.loop, factors, measure))

    def kept_trials(self, title: str) -> tuple[tuning.Trial, ...]:
        """The trials that a kept row of a model has; none where no row has any."""
        rows = (kept.row for kept in self.rows.kept.values())
        return next((x.trials for x in rows if x.cell.title == title and x.trials), ())

    def missing_cells(self) -> dict[str, list[Cell]]:
        """The cells of which a row is missing, by title."""
        kept = self.rows.kept
        missing = [cell for cell in self.cells if any(key not in kept for key in self.keys(cell))]
        return group(missing, lambda cell: cell.title)

    def train(self, cell: Cell, training: Training, place: Path) -> Trained:
        """Trains a cell in the folder `place`, after the training before it, if it has one.

        Its parameters go on from the last checkpoint there. The seconds are of both trainings.
        """
        task, seconds = training.task, 0.0
        if training.before is not None:
            kept, steps = ", ".join(training.kept), training.before.loop.steps
            command_line.say(f"\nbefore it, {steps:,} steps, whose {kept} it begins with")
            first = self.train(cell, training.before, self.folder.path / f"{cell.folder}-before")
            begun, seconds = {name: first.params[name] for name in training.kept}, first.seconds
            task = dataclasses.replace(task, start=lambda drawn: {**drawn, **begun})
        whole = identity(self.study, cell) | task.identity
        trained = run_training(
            dataclasses.replace(task, identity=whole),
            settings=training.loop,
            optimizer=training.optimizer,
            parallel=self.parallel,
            folder=place,
            tensorboard=self.study.settings.tensorboard,
        )
        return dataclasses.replace(trained, seconds=seconds + trained.seconds)

    def report(self) -> loop.Report:
        """The report of the rows so far."""
        items = {str(cell): self.keys(cell) for cell in self.cells}
        for key, kept in self.rows.kept.items():
            keys = items.get(str(kept.row.cell))
            if keys is None or key in keys:
                continue
            if kept.row.scores:  # made before a resumed run was given another value of a free flag
                keys.append(key)
        return report(self.study, so_far(self.rows, items, self.study.settings), self.folder.path)

    def job(self) -> loop.Job[Cell, Row]:
        """What a loop does with the cells."""
        return loop.Job(
            unit="trainings",
            measure=self.measure,
            report=self.report,
            line=lambda rows: "; ".join(self.study.line(row) for row in rows if row.scores),
            keys=self.keys,
        )


def report(study: Study[Any, Any], done: SoFar[Row], folder: Path) -> loop.Report:
    """Answer, results, curves, the study's own sections, and where all is from.

    Args:
      study: study, whose data it does not need.
      done: run as far as it is done.
      folder: folder of the run, with those of the trainings; where these are gone, the curve stays
        as it was drawn.
    """
    figures = dict(study.figures(done.rows))
    metrics: dict[str, dict[int, Any]] = {}
    for cell in dict.fromkeys(row.cell for row in done.rows):
        if rows := read_metrics(folder / cell.folder):
            metrics.setdefault(cell.title, {})[cell.seed] = rows
    if metrics:
        quantity, label = study.curve
        figures["curve"] = training_curve(metrics, quantity=quantity, label=label)
    has_curve = "curve" in figures or (folder / "curve.svg").exists()
    answer = study.answer(done.rows)
    values = {name: getattr(study.settings, name) for name in study.shown}
    flags = [f"--{name}={format_value(x)}" for name, x in values.items() if x is not None]
    text = document(
        f"# {study.title}",
        f"**{answer}**",
        study.results(done.rows),
        f"{study.note} {PLUS_MINUS} All with `{' '.join(flags)}`.".strip(),
        "![Loss over steps](curve.svg)" if has_curve else "",
        *_tuning(done.rows),
        done.missing,
        *study.sections(done.rows),
        done.origin,
    )
    return loop.Report(text, figures, said=answer)


def _tuning(rows: Sequence[Row]) -> list[str]:
    tuned = {row.cell.title: row.trials for row in rows if row.trials}
    if not tuned:
        return []
    note = "Trials before the trainings, of the first seed; all seeds have the bold learning rate."
    return ["## Learning rates", note, tuning.table(tuned)]
