"""The command line of `pretrain`, and what it does."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from attnlab.runs import command_line, loop, processes, provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.folder import Folder
from attnlab.runs.rows import Rows
from attnlab.training.curve import read_metrics
from attnlab.training.flags import FREE
from attnlab.training.pretrained import Pretrained, write
from attnlab.training.run import prepare, run_training
from experiments import pretrain
from experiments.pretrain import report
from experiments.pretrain.report import Row
from experiments.pretrain.settings import Cell, Settings
from experiments.pretrain.training import masked_shares, open_corpus, open_start, task

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    free = (*FREE, "cache_dir")
    return command_line.run(argv, Settings, run, doc=pretrain.__doc__, free=free, several=True)


def run(settings: Settings, folder: Folder) -> int:
    """Does each training in this process, and keeps its model for `finetune`.

    Raises:
      Invalid: the text or the model to start from does not fit the settings, the batch does not
        divide over the devices, or TensorBoard is asked for and not installed.
    """
    parallel = prepare(settings, [settings.batch_size], settings.cache_dir)
    starts = open_start(settings)
    first = next(iter(starts.values()), None)
    with processes.first_before_others():  # what it prepares in a shared cache folder, they find
        corpus = open_corpus(settings, first)
    rows: Rows[tuple, Row] = Rows(folder, lambda x: (x.objective, x.masking, x.seed), [Row])
    rows.environment = provenance.describe(("optax", "grain", "sentencepiece"))
    cells = settings.cells()

    def start_of(cell: Cell) -> Pretrained | None:
        if starts and len(starts) > 1 and cell.seed not in starts:
            raise Invalid(
                f"--init_from={settings.init_from}: no model of seed {cell.seed}; there are "
                f"{', '.join(map(str, starts))}"
            )
        return starts.get(cell.seed, first)

    def measure(cell: Cell) -> Iterator[Row]:
        asked, place = (
            task(cell, settings, corpus, start_of(cell), parallel.part),
            folder.path / cell.folder,
        )
        trained = run_training(
            asked,
            settings=settings.loop(
                steps=settings.steps, validate_every=settings.validate_every, seed=cell.seed
            ),
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
            parameters=sum(x.size for x in jax.tree.leaves(trained.params)),
            step=trained.step,
            seconds=trained.seconds,
            validation=trained.validation,
            shares=masked_shares(cell, settings, corpus),
        )

    def reported() -> loop.Report:
        keys = {cell: (cell.objective, cell.masking, cell.seed) for cell in cells}
        kept = rows.of(keys.values())
        found = [one.row for one in kept]
        lines = sum(map(len, corpus.training))
        curves = {
            cell.title: read_metrics(folder.path / cell.folder)
            for cell in reversed(cells)
            if keys[cell] in rows.kept
        }
        text = report.markdown(
            found,
            settings=settings,
            text=f"{corpus.name}: {len(corpus.training):,} documents of {lines:,} lines to train "
            f"on, {len(corpus.validation):,} held out; {corpus.tokenizer.vocab_size + 1:,} ids.",
            to_come=[str(cell) for cell in cells if keys[cell] not in rows.kept],
            command=command_line.command("pretrain", Settings, settings.as_json()),
            where=provenance.table([one.where for one in kept]),
        )
        figures = {"curve": report.figure(dict(reversed(curves.items())))}
        return loop.Report(text, figures, said=report.answer(found))

    job = loop.Job(
        unit="trainings",
        measure=measure,
        report=reported,
        keys=lambda cell: [(cell.objective, cell.masking, cell.seed)],
    )
    return loop.run(job, cells, folder, rows, where=rows.environment["device"])


if __name__ == "__main__":
    command_line.start(main)
