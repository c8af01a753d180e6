"""The command line of `translate`, and what it does."""

from __future__ import annotations

from attnlab.runs import command_line, loop, processes, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from attnlab.training.flags import FREE
from attnlab.training.run import prepare, run_training
from experiments import translate
from experiments.translate import drawn
from experiments.translate.corpus import open_corpus
from experiments.translate.report import report
from experiments.translate.score import score
from experiments.translate.settings import Settings
from experiments.translate.table import Row
from experiments.translate.training import say_corpus, task
from experiments.translate.variants import Training


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    free = (*FREE, "data_dir", "draw_file")
    several = translate.SHARED_BY == "processes"
    return command_line.run(argv, Settings, run, doc=translate.__doc__, free=free, several=several)


def run(settings: Settings, folder: Folder) -> int:
    """Trains each model in this process and translates the test split with it.

    Raises:
      Invalid: settings and data do not fit, the data are others than before, the folder cannot be
        made, or TensorBoard is asked for and not installed.
    """
    preset = settings.chosen_preset()
    trainings = settings.trainings()
    sizes = [settings.recipe(one.variant).batch_size for one in trainings]
    parallel = prepare(settings, sizes)
    with processes.first_before_others():  # what it prepares in a shared cache folder, they find
        corpus = open_corpus(settings)
        say_corpus(corpus, preset)
    rows: Rows[tuple[str, int], Row] = Rows(folder, lambda row: (row.model, row.seed), [Row])
    places = {one.key: one.folder for one in trainings}
    packages = ("optax", "grain", "sacrebleu", "sentencepiece")
    rows.environment = provenance.describe(packages) | {
        "input": {"name": corpus.name, "sha256": corpus.digest}
    }
    rows.require_same_input()

    def measure(one: Training) -> list[Row]:
        recipe, place = settings.recipe(one.variant), folder.path / one.folder
        asked = task(one, settings, corpus, parallel.part)
        trained = run_training(
            asked,
            settings=settings.loop_of(one.variant, seed=one.seed),
            optimizer=recipe.optimizer,
            parallel=parallel,
            folder=place,
            tensorboard=settings.tensorboard,
        )
        return [score(one, asked.model, trained, corpus, preset, place)]

    def reported() -> loop.Report:
        told = so_far(rows, {one.title: [one.key] for one in trainings}, settings)
        done = {one: rows.kept[one.key].row for one in trainings if one.key in rows.kept}
        return report(told, done, corpus, preset, folder.path, average=settings.average)

    job = loop.Job(
        unit="trainings",
        measure=measure,
        done=lambda row: drawn.is_of(corpus.drawn, folder.path / places[row.model, row.seed]),
        title=lambda one: one.title,
        report=reported,
        keys=lambda one: [one.key],
    )
    return loop.run(job, trainings, folder, rows, where=provenance.devices_of(rows.environment))


if __name__ == "__main__":
    command_line.start(main)
