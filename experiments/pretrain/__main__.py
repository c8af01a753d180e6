"""The command line of `pretrain`, and what it does."""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.runs import command_line, loop, processes, provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from attnlab.training.flags import FREE
from attnlab.training.pretrained import Pretrained, write
from attnlab.training.run import prepare, run_training
from attnlab.training.training_curve import first_curves, training_curve
from experiments import pretrain
from experiments.pretrain import report
from experiments.pretrain.report import Row
from experiments.pretrain.settings import Cell, Settings
from experiments.pretrain.training import masked_shares, open_corpus, open_start, task

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    free = (*FREE, "cache_dir")
    several = pretrain.SHARED_BY == "processes"
    return command_line.run(argv, Settings, run, doc=pretrain.__doc__, free=free, several=several)


def run(settings: Settings, folder: Folder) -> int:
    """Does each training in this process, and keeps its model for `finetune`.

    Raises:
      Invalid: the text or the model to start from does not fit the settings, or the text is another
        one than before; the batch does not divide over the devices, or TensorBoard is asked for and
        not installed.
    """
    parallel = prepare(settings, [settings.batch_size], settings.cache_dir)
    starts = open_start(settings)
    first = next(iter(starts.values()), None)
    with processes.first_before_others():  # what it prepares in a shared cache folder, they find
        corpus = open_corpus(settings, first)
    rows: Rows[tuple, Row] = Rows(folder, lambda x: (x.objective, x.masking, x.seed), [Row])
    rows.environment = provenance.describe(("optax", "grain", "sentencepiece")) | {
        "input": {"name": corpus.name, "sha256": corpus.digest}
    }
    rows.require_same_input()
    cells = settings.cells()

    def start_of(cell: Cell) -> Pretrained | None:
        if starts and len(starts) > 1 and cell.seed not in starts:
            raise Invalid(
                f"--init_from={settings.init_from}: no model of seed {cell.seed}; there are "
                f"{', '.join(map(str, starts))}"
            )
        return starts.get(cell.seed, first)

    def measure(cell: Cell) -> Iterator[Row]:
        place = folder.path / cell.folder
        trained = run_training(
            task(cell, settings, corpus, start_of(cell), parallel.part),
            settings=settings.loop(seed=cell.seed),
            optimizer=settings.optimizer(),
            parallel=parallel,
            folder=place,
            tensorboard=settings.tensorboard,
        )
        made = Pretrained(cell.title, cell.seed, settings.sizes(), corpus.tokenizer, trained.params)
        if processes.is_first():
            write(made, place)
        yield Row(
            cell.objective,
            cell.masking,
            cell.seed,
            parameters=trained.num_parameters,
            step=trained.step,
            seconds=trained.seconds,
            validation=trained.validation,
            shares=masked_shares(cell, settings, corpus),
        )

    def reported() -> loop.Report:
        told = so_far(rows, {str(cell): [cell] for cell in cells}, settings)
        curves = first_curves(
            (cell.title, folder.path / cell.folder) for cell in cells if cell in rows.kept
        )
        figure = training_curve(curves, quantity="masked_nll", label="−log p (nats a masked token)")
        lines = sum(map(len, corpus.training))
        text = (
            f"{corpus.name}: {len(corpus.training):,} documents of {lines:,} lines to train on, "
            f"{len(corpus.validation):,} held out; {corpus.tokenizer.vocab_size + 1:,} ids."
        )
        return loop.Report(
            report.markdown(told, settings, text), {"curve": figure}, said=report.answer(told.rows)
        )

    job = loop.Job("trainings", measure, reported)
    return loop.run(job, cells, folder, rows, where=provenance.devices_of(rows.environment))


if __name__ == "__main__":
    command_line.start(main)
