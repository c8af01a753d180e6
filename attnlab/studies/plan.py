"""The cost of the trainings that a run still lacks, here or on accelerators that are not there."""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grain
import jax

from attnlab.bench import deviceless, model_programs, targets, topology
from attnlab.bench.operations import count
from attnlab.bench.roofline import Bound, Rates
from attnlab.bench.targets import Target
from attnlab.devices import platforms
from attnlab.runs import command_line, provenance, remaining
from attnlab.runs.errors import Invalid, one_line
from attnlab.runs.markdown import markdown_table
from attnlab.runs.units import duration, human
from attnlab.studies.run import Run
from attnlab.studies.study import Cell, Training
from attnlab.training import tuning
from attnlab.training.curve import Diverged, read_metrics
from attnlab.training.flags import TrainFlags
from attnlab.training.loop import CHECKPOINTS
from attnlab.training.objective import Batch
from attnlab.training.training_curve import curve

_TRIED = 20  # steps of a model
_BATCHES = 16  # of which the largest is compiled for


def prepare(settings: TrainFlags) -> None:
    """Makes this process ready to compile for the targets of the settings, before JAX starts.

    Raises:
      Invalid: there is no such target, or its compiler is not installed.
    """
    for target in map(targets.parse, settings.target):
        topology.require_compiler(target)
    if settings.target:
        os.environ.update(topology.environment())
        jax.config.update("jax_platforms", "cpu")
        # A program of a device that is not here can be written to the cache, not read again.
        jax.config.update("jax_enable_compilation_cache", False)


class _Work(NamedTuple):
    """The steps that are missing of a model, over all its seeds.

    Attributes:
      trials: number of steps of the trials of --tune.
      left: number of steps of its trainings.
      left_before: number of steps of the trainings before these.
      planned: trainings and their steps, such as "3 × 4,000 − 500".
    """

    trials: int
    left: int
    left_before: int
    planned: str


def say(run: Run[Any, Any]) -> None:
    """Says what is missing, and how long it takes.

    Here: by the speed of a few steps of each model; one that diverges in them is named, and the
    others are tried. On targets: at their peak, by what a step computes, moves and sends.
    """
    settings = run.study.settings
    lines = []
    total = 0.0
    notes: dict[str, None] = {}
    for title, cells in run.missing_cells().items():
        command_line.say(title)
        training = run.study.training(cells[0])
        work = _count_steps(run, title, cells, training)
        planned = [title, work.planned, f"{work.trials:,}"]
        if settings.target:
            parts = [(training, work.trials + work.left)]
            if training.before:
                parts.append((training.before, work.left_before))
            for needs in _on_targets(parts, settings):
                lines.append([*planned, needs.name, *needs.cells()])
                notes |= dict.fromkeys(f"{title}, {needs.name}: {x}" for x in needs.notes)
            continue
        rate = _steps_a_second(run, cells[0], training)
        if rate is None:
            lines.append([*planned, "diverged", ""])
            continue
        seconds = (work.trials + work.left_before + work.left) / rate
        total += seconds
        lines.append([*planned, f"{rate:.3g}", remaining.round_time(seconds)])
    if not lines:
        command_line.say("\nnothing is missing")
        return
    most = "" if settings.plateau is None else "at most "
    header = ["model", "trainings × steps", "steps of trials"]
    left_out = "compiling, validations and tests are not included"
    if settings.target:
        header += ["accelerator", "memory of a step", "a step at peak", f"{most}all at peak"]
        said = (
            f"Memory and times are of one device, each step of the largest of {_BATCHES} batches, "
            "its attention computed by blocks, at the rates that are published; " + left_out
        )
    else:
        header += ["steps/s", f"{most}time"]
        where = provenance.devices_of(run.rows.environment)
        said = f"{most}{remaining.round_time(total)} on {where}; {left_out}"
    command_line.say("\n" + markdown_table(header, lines))
    command_line.say("\n" + "\n".join([said, *notes]))


def _count_steps(
    run: Run[Any, Any], title: str, cells: Sequence[Cell], training: Training
) -> _Work:
    steps = training.loop.steps
    before = 0 if training.before is None else training.before.loop.steps
    trials = 0
    if run.study.settings.tune and not run.kept_trials(title):
        rounds = tuning.rounds(len(run.study.settings.tune), steps)
        trials = sum(count * each for count, each in rounds)
    left = sum(steps - _steps_done(run, cell.folder) for cell in cells)
    left_before = sum(before - _steps_done(run, f"{cell.folder}-before") for cell in cells)
    each = f"({before:,} + {steps:,})" if before else f"{steps:,}"
    planned = f"{len(cells)} × {each}"
    done = len(cells) * (before + steps) - left_before - left
    if done:
        planned += f" − {done:,}"
    return _Work(trials, left, left_before, planned)


def _steps_done(run: Run[Any, Any], folder: str) -> int:
    """Number of steps until the last checkpoint of a training in a folder of the run."""
    if not run.folder.exists:
        return 0
    names = [path.name for path in (run.folder.path / folder / CHECKPOINTS).glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def _steps_a_second(run: Run[Any, Any], cell: Cell, training: Training) -> float | None:
    """Speed of a few steps when they are done again, and nothing compiles; None = diverged."""
    optimizer, twice = tuning.shorten(training.optimizer, training.loop, 2 * _TRIED)
    twice = dataclasses.replace(twice, log_every=_TRIED)
    batches = grain.MapDataset.source(list(itertools.islice(training.task.batches, _TRIED)))
    task = dataclasses.replace(
        training.task,
        batches=batches.repeat(2).to_iter_dataset(),
        validation=lambda: itertools.islice(training.task.validation(), 1),
    )
    short = dataclasses.replace(
        training, task=task, optimizer=optimizer, loop=twice, before=None, kept=()
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / cell.folder
        try:
            run.train(cell, short, place)
        except Diverged:
            return None
        return curve(read_metrics(place), "training", "steps_per_second")[1][-1]


@dataclasses.dataclass
class _Needs:
    """What the trainings of a model take of a target.

    Attributes:
      name: name of the target.
      memory: bytes of a step on one device, of the largest one; None = not known.
      too_large: sentence on what a step needs and what there is, where it does not fit.
      step: step that takes the most, and its unit; None = not known.
      seconds: seconds of all steps; None = not known.
      notes: warnings, and errors, for a reader.
    """

    name: str
    memory: int | None = None
    too_large: str = ""
    step: Bound | None = None
    seconds: float | None = 0.0
    notes: list[str] = dataclasses.field(default_factory=list)

    def cells(self) -> tuple[str, str, str]:
        """Memory, the time of a step and of all."""
        if self.too_large:
            return self.too_large, "too large", ""
        memory = "failed" if self.memory is None else human(self.memory)
        if self.step is None or self.seconds is None:
            return memory, "", ""
        step = f"{duration(self.step.seconds)} {self.step.by}"
        return memory, step, remaining.round_time(self.seconds)


def _on_targets(parts: Sequence[tuple[Training, int]], settings: TrainFlags) -> Iterator[_Needs]:
    """What trainings of so many steps each take of every target."""
    largest = [max(itertools.islice(one.task.batches, _BATCHES), key=_size) for one, _ in parts]
    for target in dict.fromkeys(map(targets.parse, settings.target)):
        command_line.say(f"  compiled for {target.name} …")
        needs = _Needs(target.name)
        for (training, steps), batch in zip(parts, largest, strict=True):
            try:
                _add(needs, training, steps, batch, settings, target)
            except Invalid:
                raise
            except Exception as error:  # of this model; the others are compiled all the same
                needs = _Needs(target.name, seconds=None, notes=[one_line(error)])
                break
        yield needs


def _add(
    needs: _Needs,
    training: Training,
    steps: int,
    batch: Batch,
    settings: TrainFlags,
    target: Target,
) -> None:
    """Compiles a step and adds what it takes, and so many of it, to what is needed."""
    task, devices = training.task, topology.devices(target)
    parallel = settings.over_target(target.name, devices, max(len(x) for x in batch.values()))
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    of_step = task.model, task.objective, training.optimizer
    options: dict[str, Any] = {"streams": task.streams, "accumulate": settings.accumulate}

    def lower() -> jax.stages.Lowered:
        return model_programs.lower_step(*of_step, shapes, parallel, **options)

    program = deviceless.compile_for(lower, target, devices)
    if program.note and program.note not in needs.notes:
        needs.notes.append(program.note)
    if lacks := program.lacks(target):
        needs.too_large = deviceless.needs(*lacks)
        return
    assert program.need is not None
    needs.memory = max(needs.memory or 0, program.need.total)
    try:
        # A kernel's operations are not seen, and a CPU has none. What blocks padding lets be
        # skipped, only the numbers of a batch say.
        with platforms.compiling_for(platforms.Platform("cpu")):
            of_all = count(*model_programs.traceable_step(*of_step, batch, **options))
    except NotImplementedError as error:
        needs.seconds = None
        needs.notes.append(f"its operations are not counted: {one_line(error)}")
        return
    moved = program.need.argument_bytes + program.need.output_bytes
    of_one = of_all.scaled(1 / len(devices))
    step = Rates.of_device(target.device).bound(of_one, moved, program.sent)
    needs.step = max(needs.step or step, step, key=lambda one: one.seconds)
    needs.seconds = None if needs.seconds is None else needs.seconds + steps * step.seconds


def _size(batch: Batch) -> int:
    return sum(x.size for x in batch.values())
