"""The command line of `long_range`, and what it does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from attnlab.runs import command_line, loop, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from attnlab.training.curve import read_metrics
from attnlab.training.flags import FREE
from attnlab.training.run import prepare, run_training
from attnlab.training.training_curve import curve, first_curves, training_curve
from experiments import long_range
from experiments.long_range import report
from experiments.long_range.examples import fixed_batches, majority, open_examples
from experiments.long_range.report import Row
from experiments.long_range.settings import Cell, Settings
from experiments.long_range.training import accuracy, memory_of_step, task

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    free = (*FREE, "data_dir")
    return command_line.run(argv, Settings, run, doc=long_range.__doc__, free=free)


def run(settings: Settings, folder: Folder) -> int:
    """Trains each model in this process and tests it.

    Raises:
      Invalid: the data do not fit the settings or are others than before, the batch does not divide
        over the devices, or TensorBoard is asked for and not installed.
    """
    parallel = prepare(settings, [settings.batch_size])
    examples = {name: open_examples(name, settings) for name in settings.tasks}
    tests = {
        name: fixed_batches(one, "test", settings.batch_size) for name, one in examples.items()
    }
    rows: Rows[tuple, Row] = Rows(folder, lambda x: (x.task, x.mechanism, x.seed), [Row])
    digests = {name: one.digest for name, one in examples.items()}
    rows.environment = provenance.describe(("optax", "grain")) | {
        "input": {
            "name": ", ".join(digests),
            "sha256": hashlib.sha256(str(digests).encode()).hexdigest(),
        }
    }
    rows.require_same_input()
    cells = settings.cells()

    def measure(cell: Cell) -> Iterator[Row]:
        of_task = examples[cell.task]
        asked, place = task(cell, settings, of_task), folder.path / cell.folder
        trained = run_training(
            asked,
            settings=settings.loop(seed=cell.seed),
            optimizer=settings.optimizer(),
            parallel=parallel,
            folder=place,
            tensorboard=settings.tensorboard,
        )
        _, rates = curve(read_metrics(place), "training", "steps_per_second")
        yield Row(
            cell.task,
            cell.mechanism,
            cell.seed,
            parameters=trained.num_parameters,
            step=trained.step,
            seconds=trained.seconds,
            steps_per_second=float(np.median(rates)),
            memory=memory_of_step(cell, settings, of_task),
            accuracy=accuracy(asked.model, trained.variables, tests[cell.task]),
            majority=majority(tests[cell.task]),
            validation=trained.validation,
        )

    def reported() -> loop.Report:
        told = so_far(rows, {str(cell): [cell] for cell in cells}, settings)
        curves = first_curves(
            (cell.title, folder.path / cell.folder) for cell in cells if cell in rows.kept
        )
        figures = {"curve": training_curve(curves, quantity="loss", label="−log p (nats an input)")}
        return loop.Report(report.markdown(told, settings), figures, said=report.answer(told.rows))

    job = loop.Job("trainings", measure, reported)
    return loop.run(job, cells, folder, rows, where=provenance.devices_of(rows.environment))


if __name__ == "__main__":
    command_line.start(main)
