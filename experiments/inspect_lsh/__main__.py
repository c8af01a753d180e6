"""The command line of `inspect_lsh`, and what it does."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from attnlab.bench import environment, inputs
from attnlab.bench.case import Case
from attnlab.mechanisms import own
from attnlab.runs import command_line, loop, provenance
from attnlab.runs.command_line import say
from attnlab.runs.errors import Stopped
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from experiments import inspect_lsh
from experiments.inspect_lsh import beside, figures, model, profile, report
from experiments.inspect_lsh.beside import Beside
from experiments.inspect_lsh.profile import Profile
from experiments.inspect_lsh.quality import Line, Quality, measure
from experiments.inspect_lsh.settings import Settings

MODEL = "model"  # name of the folder of the training
Key = tuple[Line, int] | str | Case


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
    rows: Rows[Key, Any] = Rows(folder, _key, [Quality, Beside, Profile], derived=["shares"])
    rows.environment = environment.describe(text)
    rows.require_same_own(own.digests(f"{settings}"))

    def reported() -> loop.Report:
        items = {_title(x): _keys(x, settings) for x in settings.of_quality()}
        items |= {report.title(case): [case] for case in settings.cases()}
        done = so_far(rows, items, settings)
        return loop.Report(
            report.markdown(done, settings),
            figures.draw(done.rows, settings),
            said="\n\n".join(report.answers(done.rows, settings)),
        )

    keys = [key for item in settings.of_quality() for key in _keys(item, settings)]
    keys += settings.cases()
    there = [kept for kept in rows.of(keys) if not _is_lost(kept.row)]
    if len(there) < len(keys):
        rows.require_same_input()
    jobs: list[tuple[loop.Job[Any, Any], list[Any]]] = []
    if "quality" in settings.parts:
        jobs.append((_quality(settings, folder, text, rows, reported), settings.of_quality()))
    if "profile" in settings.parts:
        jobs.append((_profile(settings, text, reported), settings.cases()))
    for job, items in jobs:
        where = provenance.devices_of(rows.environment)
        if status := loop.run(job, items, folder, rows, where=where):
            return status
    return 0


def _key(row: Quality | Beside | Profile) -> Key:
    if isinstance(row, Quality):
        return row.line, row.num_hashes
    return row.case if isinstance(row, Profile) else row.mechanism


def _is_lost(row: Quality | Beside | Profile) -> bool:
    return isinstance(row, Profile) and row.status == "failed"


def _keys(item: Line | str, settings: Settings) -> list[Key]:
    rounds = settings.numbers_of_rounds()
    return [item] if isinstance(item, str) else [(item, n) for n in rounds]


def _title(item: Line | str) -> str:
    return item if isinstance(item, str) else item.title()


def _quality(
    settings: Settings,
    folder: Folder,
    text: inputs.Text,
    rows: Rows[Key, Any],
    reported: Callable[[], loop.Report],
) -> loop.Job[Line | str, Any]:
    """Trains the model, if a row is missing, and measures lines over rounds, and the others."""
    trained_on, measured_on = model.split(text, settings.length)
    keys = [key for item in settings.of_quality() for key in _keys(item, settings)]

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

    def measured(item: Line | str) -> Iterator[Quality | Beside]:
        qk, v, bits = activations()
        if isinstance(item, str):
            yield beside.measure(item, qk, v, top_k=settings.top_k, bits=bits)
            return
        for n in settings.numbers_of_rounds():
            if (item, n) not in rows.kept:
                yield measure(item, n, qk, v, top_k=settings.top_k, seed=settings.seed, bits=bits)

    def before(item: Line | str) -> None:
        activations()

    return loop.Job(
        unit="lines",
        measure=measured,
        title=_title,
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
        done=lambda row: not _is_lost(row),
        title=report.title,
        line=lambda found: report.line_of_profile(found[0]),
        report=reported,
    )


if __name__ == "__main__":
    command_line.start(main)
