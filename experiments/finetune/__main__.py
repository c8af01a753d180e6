"""The command line of `finetune`, and what it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnlab.runs import command_line, loop, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from attnlab.training.flags import FREE
from attnlab.training.pretrained import Pretrained
from attnlab.training.run import prepare, run_training
from experiments import finetune
from experiments.finetune import report
from experiments.finetune.data import digest_of_examples, encoded, open_data, texts_of
from experiments.finetune.report import Row
from experiments.finetune.settings import Settings
from experiments.finetune.training import (
    Cell,
    basis,
    cells,
    num_steps,
    open_models,
    predict,
    score,
    task,
)

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command_line.run(argv, Settings, run, doc=finetune.__doc__, free=FREE)


def run(settings: Settings, folder: Folder) -> int:
    """Does each training in this process, and tests it.

    Raises:
      Invalid: the examples or the models do not fit the settings or each other, or the examples are
        others than before; the batch does not divide over the devices, or TensorBoard is asked for
        and not installed.
    """
    parallel = prepare(settings, [settings.batch_size])
    models = open_models(settings)
    asked = cells(settings, models)
    given = open_data(settings)
    texts = texts_of(given["train"])
    # All read with one tokenizer, so that the examples are encoded once.
    data = encoded(settings, given, basis(settings, models, asked[0], texts))
    steps = num_steps(settings, data)
    rows: Rows[tuple, Row] = Rows(folder, lambda x: (x.start, x.pretraining, x.seed), [Row])
    name = settings.made or settings.path_of("train").name
    rows.environment = provenance.describe(("optax", "grain", "sentencepiece")) | {
        "input": {"name": name, "sha256": digest_of_examples(given)}
    }
    rows.require_same_input()

    def measure(cell: Cell) -> Iterator[Row]:
        start = basis(settings, models, cell, texts)
        made = task(cell, settings, data, start)
        trained = run_training(
            made,
            settings=settings.loop(
                steps=steps,
                validate_every=settings.validate_every or max(1, steps // 5),
                seed=cell.seed,
            ),
            optimizer=settings.optimizer(frozen=cell.start == "frozen", steps=steps),
            parallel=parallel,
            folder=folder.path / cell.folder,
            tensorboard=settings.tensorboard,
        )
        logits = predict(made.model, trained.variables, data, settings.batch_size)
        yield Row(
            cell.start,
            cell.pretraining,
            cell.seed,
            parameters=trained.num_parameters,
            step=trained.step,
            seconds=trained.seconds,
            scores=score(settings.kind, logits, data),
        )

    def reported() -> loop.Report:
        told = so_far(rows, {str(cell): [cell] for cell in asked}, settings)
        counts = ", ".join(f"{len(some):,} {name}" for name, some in data.rows.items())
        text = (
            f"`{name}` ({settings.kind}): {counts} examples, {steps:,} steps of "
            f"{settings.batch_size}. {begun_from(models)}"
        )
        figures = {"scores": report.figure(told.rows)}
        return loop.Report(report.markdown(told, text), figures, said=report.answer(told.rows))

    job = loop.Job("trainings", measure, reported)
    return loop.run(job, asked, folder, rows, where=provenance.devices_of(rows.environment))


def begun_from(models: Mapping[str, Mapping[int, Pretrained]]) -> str:
    """Words for what the spread over seeds has of the pre-training; "" where there is none."""
    if not models:
        return ""
    several, single = ([t for t, x in models.items() if (len(x) > 1) == y] for y in (True, False))
    if not single:
        return "Each seed begins with a model that was pre-trained with that seed."
    whose = "; ".join(single) if several else "a row"
    said = (
        f"All seeds of {whose} begin with one pre-trained model:"
        " the spread is that of the tuning, and says nothing of another pre-training."
    )
    if not several:
        return said
    each = "begins with a model that was pre-trained with that seed"
    return f"Each seed of {'; '.join(several)} {each}. {said}"


if __name__ == "__main__":
    command_line.start(main)
