"""The command line of `inspect_lsh`, and what it does."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from attnlab.bench import environment, inputs
from attnlab.bench.case import Case
from attnlab.runs import command_line, loop, provenance
from attnlab.runs.command_line import say
from attnlab.runs.errors import Stopped
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from experiments import inspect_lsh
from experiments.inspect_lsh import figures, model, profile, report
from experiments.inspect_lsh.profile import Profile
from experiments.inspect_lsh.quality import Line, Quality, measure
from experiments.inspect_lsh.settings import Settings

MODEL = "model"  # name of the folder of the training
Key = tuple[Line, int] | Case


def main(argv: list[str]) -> int:
    """Parses the flags and measures."""
    return command_line.run(argv, Settings, run, doc=inspect_lsh.__doc__)


def run(settings: Settings, folder: Folder) -> int:
    """Measures one part after the other.

    Raises:
      Invalid: the text is too short or not that of the resumed run, the library refuses the sizes,
        or the folder cannot be made.
    """
    text = inputs.read(settings.input)
    rows: Rows[Key, Any] = Rows(
        folder,
        lambda row: row.case if isinstance(row, Profile) else (row.line, row.num_hashes),
        [Quality, Profile],
        derived=["shares"],
    )
    rows.environment = environment.describe(text)

    def reported() -> loop.Report:
        items = {line.title(): _keys(line, settings) for line in settings.lines()}
        items |= {report.title(case): [case] for case in settings.cases()}
        told = so_far(rows, items, settings)
        return loop.Report(
            report.markdown(told, settings),
            figures.draw(told.rows, settings),
            said="\n\n".join(report.answers(told.rows, settings)),
        )

    jobs: list[tuple[loop.Job[Any, Any], list[Any]]] = []
    if "quality" in settings.parts:
        jobs.append((_quality(settings, folder, text, rows, reported), settings.lines()))
    if "profile" in settings.parts:
        jobs.append((_profile(settings, text, reported), settings.cases()))
    for job, items in jobs:
        where = provenance.devices_of(rows.environment)
        if status := loop.run(job, items, folder, rows, where=where):
            return status
    return 0


def _keys(line: Line, settings: Settings) -> list[Key]:
    return [(line, rounds) for rounds in settings.numbers_of_rounds()]


def _quality(
    settings: Settings,
    folder: Folder,
    text: inputs.Text,
    rows: Rows[Key, Any],
    reported: Callable[[], loop.Report],
) -> loop.Job[Line, Any]:
    """Trains the model, if a row is missing, and measures every line over rounds."""
    trained_on, measured_on = model.split(text, settings.length)
    keys = [key for line in settings.lines() for key in _keys(line, settings)]
    if len(rows.of(keys)) < len(keys):
        rows.require_same_input()

    @functools.cache
    def activations() -> tuple[jax.Array, jax.Array, float | None]:
        say(f"{text.name}: training for {settings.train_steps} steps")
        variables, bits = model.trained(settings, trained_on, measured_on, folder.path / MODEL)
        before = {kept.row.bits for kept in rows.of(keys)} - {bits}
        if before:
            raise Stopped(
                f"the rows of {folder.path} are of a model with {before.pop()} bits a byte, but "
                f"training it here gives {bits}; start a new run"
            )
        return *model.activations(settings, variables, measured_on), bits

    def measured(line: Line) -> Iterator[Quality]:
        qk, v, bits = activations()
        for n in settings.numbers_of_rounds():
            if (line, n) not in rows.kept:
                yield measure(line, n, qk, v, top_k=settings.top_k, seed=settings.seed, bits=bits)

    def before(line: Line) -> None:
        activations()

    return loop.Job(
        unit="lines",
        measure=measured,
        title=Line.title,
        line=report.line_of_quality,
        report=reported,
        keys=functools.partial(_keys, settings=settings),
        before=before,
    )


def _profile(
    settings: Settings, text: inputs.Text, reported: Callable[[], loop.Report]
) -> loop.Job[Case, Any]:
    """Profiles each case in this process."""
    profile.check(settings.cases(), settings.num_buckets)

    def measured(case: Case) -> list[Profile]:
        buckets, repeats = settings.num_buckets, settings.repeats
        return [profile.profile(case, text, num_buckets=buckets, repeats=repeats)]

    def lost(case: Case, message: str) -> Profile:
        buckets = profile.num_buckets_of(case, settings.num_buckets)
        return Profile(case, buckets, "failed", message)

    return loop.Job(
        unit="cases",
        measure=measured,
        lost=lost,
        done=lambda row: row.status != "failed",
        title=report.title,
        line=lambda found: report.line_of_profile(found[0]),
        report=reported,
    )


if __name__ == "__main__":
    command_line.start(main)
