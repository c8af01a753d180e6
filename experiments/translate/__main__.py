"""The command line of `translate`, and what it does."""

from __future__ import annotations

from attnlab.runs import command_line, loop, palette, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.rows import Rows
from attnlab.training.flags import FREE
from attnlab.training.run import run_training
from attnlab.training.tensorboard import require_tensorboard
from experiments import translate
from experiments.translate import drawn
from experiments.translate.corpus import open_corpus
from experiments.translate.report import report
from experiments.translate.score import score
from experiments.translate.settings import Settings
from experiments.translate.table import Row
from experiments.translate.training import say_corpus, task

_NAMES = {title: name for name, title in palette.MODEL_TITLES.items()}


def main(argv: list[str]) -> int:
    """Parses, trains and reports."""
    free = (*FREE, "data_dir", "cache_dir", "draw_file")
    return command_line.run(argv, Settings, run, doc=translate.__doc__, free=free)


def run(settings: Settings, folder: Folder) -> int:
    """Trains each model in this process and translates the test split with it.

    Raises:
      Invalid: settings and data do not fit, the folder cannot be made, or TensorBoard is wanted
        and not installed.
    """
    preset = settings.chosen_preset()
    if settings.tensorboard:
        require_tensorboard()
    parallel = settings.over_devices(settings.recipe(name).batch_size for name in preset.models)
    corpus = open_corpus(settings)
    say_corpus(corpus, preset)
    rows: Rows[str, Row] = Rows(folder, lambda row: _NAMES[row.model], [Row])
    rows.environment = provenance.describe(("optax", "grain", "sacrebleu", "sentencepiece"))

    def measure(name: str) -> list[Row]:
        recipe, place = settings.recipe(name), folder.path / name
        asked = task(name, settings, corpus)
        trained = run_training(
            asked,
            settings=settings.loop(
                steps=recipe.steps, validate_every=preset.validate_every, seed=settings.seed
            ),
            optimizer=recipe.optimizer,
            parallel=parallel,
            folder=place,
            tensorboard=settings.tensorboard,
        )
        return [score(name, asked.model, trained, corpus, preset, place)]

    def reported() -> loop.Report:
        done = {name: rows.kept[name] for name in preset.models if name in rows.kept}
        return report(
            {name: one.row for name, one in done.items()},
            corpus,
            preset,
            folder.path,
            command=command_line.command("translate", Settings, settings.as_json()),
            where=provenance.table([one.where for one in done.values()]),
        )

    job = loop.Job(
        unit="models",
        measure=measure,
        done=lambda row: drawn.is_of(corpus.drawn, folder.path / _NAMES[row.model]),
        title=lambda name: palette.MODEL_TITLES[name],
        line=lambda found: found[0].line(),
        report=reported,
    )
    return loop.run(job, preset.models, folder, rows, where=rows.environment["device"])


if __name__ == "__main__":
    command_line.start(main)
