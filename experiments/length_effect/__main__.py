"""The command line of `length_effect`, and what it does."""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.runs import command_line, loop, palette, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from attnlab.training.flags import FREE
from attnlab.training.run import prepare, run_training
from experiments import length_effect
from experiments.length_effect import report
from experiments.length_effect.measure import Row, measure
from experiments.length_effect.settings import Settings
from experiments.length_effect.training import MODELS, optimizer, task


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command_line.run(argv, Settings, run, doc=length_effect.__doc__, free=FREE)


def run(settings: Settings, folder: Folder) -> int:
    """Trains both models in this process and tests them length by length.

    Raises:
      Invalid: the batch does not divide over the devices, the folder cannot be made, or TensorBoard
        is asked for and not installed.
    """
    parallel = prepare(settings, [settings.batch_size])
    rows: Rows[tuple[str, int], Row] = Rows(folder, lambda row: (row.model, row.length), [Row])
    rows.environment = provenance.describe(("optax", "grain"))

    def keys(name: str) -> list[tuple[str, int]]:
        return [(palette.MODEL_TITLES[name], length) for length in settings.lengths]

    def measured(name: str) -> Iterator[Row]:
        asked = task(name, settings)
        trained = run_training(
            asked,
            settings=settings.loop(seed=settings.seed),
            optimizer=optimizer(settings),
            parallel=parallel,
            folder=folder.path / name,
            tensorboard=settings.tensorboard,
        )
        yield from measure(palette.MODEL_TITLES[name], asked.model, trained, settings)

    def reported() -> loop.Report:
        told = so_far(rows, {palette.MODEL_TITLES[name]: keys(name) for name in MODELS}, settings)
        figures = {"by_length": report.figure(told.rows, longest=settings.max_length)}
        return loop.Report(report.markdown(told, settings), figures, said=report.answer(told.rows))

    job = loop.Job(
        unit="models",
        measure=measured,
        title=lambda name: palette.MODEL_TITLES[name],
        report=reported,
        keys=keys,
    )
    return loop.run(job, MODELS, folder, rows, where=provenance.devices_of(rows.environment))


if __name__ == "__main__":
    command_line.start(main)
