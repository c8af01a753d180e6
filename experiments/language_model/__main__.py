"""The command line of `language_model`, and what it does."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnlab.bench import environment, targets, topology
from attnlab.bench.workers import Workers
from attnlab.runs import command_line, loop, processes, provenance
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from attnlab.training.flags import FREE
from attnlab.training.run import prepare, run_training
from experiments import language_model
from experiments.language_model import compiler, copying, cost, figures, report
from experiments.language_model.conclusion import answer
from experiments.language_model.corpus import read
from experiments.language_model.evaluate import measure
from experiments.language_model.plan import Compiled, Copying, Item, Timed, keys, plan, title
from experiments.language_model.rows import KINDS, Failed, Row, is_done, key_of
from experiments.language_model.settings import Settings
from experiments.language_model.training import Cell, task


def main(argv: list[str]) -> int:
    """Parses the flags, trains, measures and reports."""
    several = language_model.SHARED_BY == "processes"
    return command_line.run(
        argv, Settings, run, doc=language_model.__doc__, free=FREE, several=several
    )


def run(settings: Settings, folder: Folder) -> int:
    """Does what is missing of the plan, and reports.

    Raises:
      Invalid: the text is no text for these settings, or another one than before; a batch does not
        divide over the devices; a compiler or TensorBoard is asked for and not installed.
    """
    for target in settings.target:
        topology.require_compiler(targets.parse(target))
    trains = "train" in settings.parts
    parallel = prepare(settings, settings.batch_sizes().values() if trains else ())
    if "copy" in settings.parts:
        copying.require_divides()
    corpus = read(settings)
    rows: Rows[tuple, Row] = Rows(folder, key_of, KINDS)
    rows.environment = environment.describe(corpus.text, ("optax", "grain"))
    rows.require_same_input()
    items = plan(settings)

    with contextlib.ExitStack() as stack:

        @functools.cache
        def there() -> Workers:
            return stack.enter_context(compiler.process())

        def compiled(item: Compiled) -> Iterator[Row]:
            vocab_size = corpus.tokenizer.vocab_size
            yield from compiler.compiled(there(), item.model, item.target, settings, vocab_size)

        def trained(cell: Cell) -> Iterator[Row]:
            where = cell.folder(folder.path)
            found = run_training(
                task(cell, settings, corpus, parallel.part),
                settings=settings.loop(seed=cell.seed),
                optimizer=settings.optimizer(),
                parallel=parallel,
                folder=where,
                tensorboard=settings.tensorboard,
            )
            yield from measure(cell, settings, corpus, found, where)

        def lost(item: Item, message: str) -> Failed:
            return Failed(keys(item, settings)[0], message)

        def measured(item: Item) -> Iterator[Row]:
            match item:
                case Timed() | Compiled() if not processes.is_first():
                    pass  # of one device, or of none
                case Cell():
                    yield from trained(item)
                case Timed():
                    yield from cost.timed(item.length, settings, corpus)
                case Compiled():
                    yield from compiled(item)
                case Copying():
                    yield from copying.learned(item.model, settings, folder.path)

        def reported() -> loop.Report:
            told = so_far(rows, {title(x): keys(x, settings) for x in items}, settings, is_done)
            text = f"{Path(corpus.text.name).name} (split {corpus.split.name})"
            return loop.Report(
                report.markdown(told, settings, text),
                figures.draw(told.rows),
                said=answer(told.rows, settings),
            )

        job = loop.Job(
            unit="parts",
            measure=measured,
            done=is_done,
            lost=lost,
            title=title,
            line=said,
            report=reported,
            keys=lambda item: keys(item, settings),
        )
        return loop.run(job, items, folder, rows, where=provenance.devices_of(rows.environment))


def said(found: Sequence[Row]) -> str:
    """The rows of an item, for the terminal."""
    return "; ".join(row.line() for row in found)


if __name__ == "__main__":
    command_line.start(main)
