"""The command line of `inspect_lsh`, and what it does."""

import functools
from collections.abc import Iterator

import jax

from attnlab.bench import environment, inputs
from attnlab.mechanisms import own
from attnlab.runs import command_line, loop, provenance
from attnlab.runs.command_line import say
from attnlab.runs.errors import Stopped
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from experiments import inspect_lsh
from experiments.inspect_lsh import beside, figures, model, report
from experiments.inspect_lsh.beside import Beside
from experiments.inspect_lsh.quality import Line, Quality, measure
from experiments.inspect_lsh.settings import Settings

MODEL = "model"  # name of the folder of the training
Item = Line | str  # a line, or the name of other attention
Key = tuple[Line, int] | str  # of a row: its line and rounds, or the name of other attention
Row = Quality | Beside


def main(argv: list[str]) -> int:
    """Parses the flags and measures."""
    return command_line.run(argv, Settings, run, doc=inspect_lsh.__doc__)


def run(settings: Settings, folder: Folder) -> int:
    """Trains the model, if a row is missing, and measures lines over rounds, and the others.

    Raises:
      Invalid: the text is too short or not that of the resumed run, the library refuses the sizes,
        or the folder cannot be made.
    """
    text = inputs.read(settings.input)
    rows: Rows[Key, Row] = Rows(folder, _key, [Quality, Beside])
    rows.environment = environment.describe(text)
    rows.require_same_own(own.digests(" ".join(settings.beside)))
    items: list[Item] = [*settings.lines(), *dict.fromkeys(settings.beside)]
    keys = [key for item in items for key in _keys(item, settings)]
    if len(rows.of(keys)) < len(keys):
        rows.require_same_input()
    trained_on, measured_on = model.split(text, settings.length)

    @functools.cache
    def activations() -> tuple[jax.Array, jax.Array, float | None]:
        say(f"{text.name}: training for {settings.train_steps} steps")
        variables, bits = model.train(settings, trained_on, measured_on, folder.path / MODEL)
        before = {kept.row.bits for kept in rows.of(keys)} - {bits}
        if before:
            raise Stopped(
                f"the rows of {folder.path} are of a model with {before.pop()} bits a byte, but "
                f"training it here gives {bits}; start a new run"
            )
        return *model.activations(settings, variables, measured_on), bits

    def measure_item(item: Item) -> Iterator[Row]:
        qk, v, bits = activations()
        if isinstance(item, str):
            yield beside.measure(item, qk, v, top_k=settings.top_k, bits=bits)
            return
        for n in settings.numbers_of_rounds():
            if (item, n) not in rows.kept:
                yield measure(item, n, qk, v, top_k=settings.top_k, seed=settings.seed, bits=bits)

    def train(item: Item) -> None:
        activations()

    def write_report() -> loop.Report:
        done = so_far(rows, {str(item): _keys(item, settings) for item in items}, settings)
        return loop.Report(
            report.markdown(done, settings),
            figures.draw(done.rows, settings),
            said=report.answer(done.rows, settings),
        )

    job = loop.Job(
        unit="lines",
        measure=measure_item,
        line=report.line_of_rows,
        report=write_report,
        keys=functools.partial(_keys, settings=settings),
        before=train,
    )
    return loop.run(job, items, folder, rows, where=provenance.devices_of(rows.environment))


def _key(row: Row) -> Key:
    if isinstance(row, Beside):
        return row.mechanism
    return row.line, row.num_hashes


def _keys(item: Item, settings: Settings) -> list[Key]:
    if isinstance(item, str):
        return [item]
    return [(item, n) for n in settings.numbers_of_rounds()]


if __name__ == "__main__":
    command_line.start(main)
