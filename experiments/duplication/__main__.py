"""The command line of `duplication`, and what it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnlab.runs import command_line, loop, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from attnlab.training.flags import FREE
from attnlab.training.run import prepare, run_training
from experiments import duplication
from experiments.duplication import report
from experiments.duplication.measure import Key, Row, keys, measure
from experiments.duplication.plan import Training, trainings
from experiments.duplication.settings import Settings
from experiments.duplication.training import task


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command_line.run(argv, Settings, run, doc=duplication.__doc__, free=FREE)


def run(settings: Settings, folder: Folder) -> int:
    """Trains each model in this process and evaluates it with every attention.

    Raises:
      Invalid: the batch does not divide over the devices, the folder cannot be made, or TensorBoard
        is asked for and not installed.
    """
    parallel = prepare(settings, [size.batch_size for size in settings.sizes()])
    rows: Rows[Key, Row] = Rows(folder, lambda row: row.key, [Row])
    rows.environment = provenance.describe(("optax", "grain"))
    planned = trainings(settings)

    def measured(training: Training) -> Iterator[Row]:
        steps = training.size.steps
        trained = run_training(
            task(training, settings),
            settings=settings.loop(
                steps=steps, validate_every=settings.recipe().validate_every, seed=training.seed
            ),
            optimizer=settings.optimizer(steps),
            parallel=parallel,
            folder=folder.path / training.folder,
            tensorboard=settings.tensorboard,
        )
        yield from measure(training, trained, settings)

    def reported() -> loop.Report:
        return report.report(
            so_far(rows, {one.title: keys(one, settings) for one in planned}, settings), settings
        )

    job = loop.Job(
        unit="models",
        measure=measured,
        title=lambda training: training.title,
        line=line,
        report=reported,
        keys=lambda training: keys(training, settings),
    )
    return loop.run(job, planned, folder, rows, where=provenance.devices_of(rows.environment))


def line(found: Sequence[Row]) -> str:
    """What came out of a training, in its own hashing."""
    own = [row for row in found if row.evaluated_hashing == row.hashing]
    return ", ".join(f"{row.evaluated} {100 * row.accuracy:.1f}" for row in own) + " %"


if __name__ == "__main__":
    command_line.start(main)
