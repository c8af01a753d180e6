"""The command line of `hash_quality`, and what it does."""

import functools
from collections.abc import Iterator

import jax
import numpy as np

from attnlab.bench import environment, inputs
from attnlab.runs import command_line, loop, provenance
from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid, Stopped
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from experiments import hash_quality
from experiments.hash_quality import figures, model, report
from experiments.hash_quality.lines import Line, Row, measure
from experiments.hash_quality.settings import Settings

MODEL = "model"  # name of the folder of the training
Key = tuple[Line, int]


def main(argv: list[str]) -> int:
    """Parses the flags and measures."""
    return command_line.run(argv, Settings, run, doc=hash_quality.__doc__)


def run(settings: Settings, folder: Folder) -> int:
    """Trains the model, if a row is missing, and measures every line over rounds.

    Raises:
      Invalid: the text is too short or not that of the resumed run, or the folder cannot be made.
    """
    text = inputs.read(settings.input)
    trained_on, measured_on = split(text, settings.length)
    rows: Rows[Key, Row] = Rows(folder, lambda row: (row.line, row.num_hashes), [Row])
    rows.environment = environment.describe(text)
    lines, rounds = settings.lines(), settings.numbers_of_rounds()
    keys = [(line, n) for line in lines for n in rounds]
    if len(rows.of(keys)) < len(keys):
        rows.require_same_input()

    @functools.cache
    def activations() -> tuple[jax.Array, jax.Array, float | None]:
        say(f"{text.name}: training for {settings.train_steps} steps")
        variables, bits = model.trained(settings, trained_on, measured_on, folder.path / MODEL)
        before = {one.row.bits for one in rows.kept.values()} - {bits}
        if before:
            raise Stopped(
                f"the rows of {folder.path} are of a model with {before.pop()} bits a byte, but "
                f"training it here gives {bits}; start a new run"
            )
        return *model.activations(settings, variables, measured_on), bits

    def measured(line: Line) -> Iterator[Row]:
        qk, v, bits = activations()
        for n in rounds:
            if (line, n) not in rows.kept:
                yield measure(line, n, qk, v, top_k=settings.top_k, seed=settings.seed, bits=bits)

    def reported() -> loop.Report:
        told = so_far(rows, {one.title(): [(one, n) for n in rounds] for one in lines}, settings)
        name = rows.of(keys)[0].where.environment["input"]["name"]
        return loop.Report(
            report.markdown(told, settings, text=name),
            figures.draw(told.rows, settings),
            said=f"{report.table(told.rows)}\n\n{report.answer(told.rows, settings)}",
        )

    def before(line: Line) -> None:
        activations()

    job = loop.Job(
        unit="lines",
        measure=measured,
        title=Line.title,
        line=report.line,
        report=reported,
        keys=lambda line: [(line, n) for n in rounds],
        before=before,
    )
    return loop.run(job, lines, folder, rows, where=provenance.devices_of(rows.environment))


def split(text: inputs.Text, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes to train on, and the last `length` bytes, to measure on.

    Raises:
      Invalid: the text is too short for both.
    """
    needed = 2 * length + 1
    if text.data.size < needed:
        raise Invalid(
            f"--length={length} needs {needed} bytes, to train and to measure on; {text.name} has"
            f" {text.data.size} (give a longer --input or a smaller --length)"
        )
    return text.data[:-length], text.data[-length:]


if __name__ == "__main__":
    command_line.start(main)
