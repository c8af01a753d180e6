"""What the trainings that a run still lacks would take: time here, or memory of an accelerator."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from attnlab import platforms
from attnlab.bench import deviceless, model_programs, targets, topology
from attnlab.bench.case import Operations
from attnlab.bench.operations import count
from attnlab.bench.roofline import Rates
from attnlab.bench.targets import Target
from attnlab.runs import command_line, provenance, remaining
from attnlab.runs.markdown import markdown_table
from attnlab.runs.units import duration, human
from attnlab.training import tuning
from attnlab.training.curve import Diverged, read_metrics
from attnlab.training.flags import TrainFlags
from attnlab.training.training_curve import curve

if TYPE_CHECKING:
    from attnlab.studies.study import Cell, Run, Training

__all__ = ["require_targets", "say"]

_TRIED = 20  # steps of a model
_BATCHES = 16  # of which the largest is compiled for
_BY_BLOCKS = "counted is attention by blocks, as the operations of its kernel are not seen"


def require_targets(settings: TrainFlags) -> None:
    """Makes this process ready to compile for the targets of the settings, before JAX starts.

    Raises:
      Invalid: there is no such target, or its compiler is not installed.
    """
    for name in settings.target:
        topology.require_compiler(targets.parse(name))
    if settings.target:
        os.environ.update(topology.environment())
        jax.config.update("jax_platforms", "cpu")


def say(run: Run[Any, Any]) -> None:
    """Says what is missing, and how long it takes.

    Here: by the speed of a few steps of each model; one that diverges in them is named, and the
    others are tried. On targets: at least, by what a step computes, moves and sends.
    """
    settings, lines, total = run.study.settings, [], 0.0
    notes: dict[str, None] = {}
    for title, cells in run.left().items():
        command_line.say(title)
        training = run.study.training(cells[0])
        steps, trials = training.loop.steps, 0
        if settings.tune and not run.kept_trials(title):
            trials = sum(n * each for n, each in tuning.rounds(len(settings.tune), steps))
        before = 0 if training.before is None else training.before.loop.steps
        each = f"({before:,} + {steps:,})" if before else f"{steps:,}"
        planned = [title, f"{len(cells)} × {each}", f"{trials:,}"]
        of_all = trials + len(cells) * (before + steps)
        for name in settings.target:
            command_line.say(f"  compiled for {name} …")
            note, *needs = _on_target(training, settings, targets.parse(name), of_all)
            notes |= {f"{name}: {note}": None} if note else {}
            lines.append([*planned, name, *needs])
        if not settings.target:
            rate = _steps_a_second(run, cells[0], training)
            total += of_all / rate if rate else 0
            taken = ("diverged", "") if rate is None else _speed(rate, of_all)
            lines.append([*planned, *taken])
    most = "" if settings.plateau is None else "at most "
    header = ["model", "trainings × steps", "steps of trials"]
    left_out = "compiling, validations and tests not included"
    if settings.target:
        header += ["accelerator", "memory of a step", "a step, at least", "all, at least"]
        said = f"of one device, for the largest of {_BATCHES} batches; {left_out}"
    else:
        header += ["steps/s", f"{most}time"]
        where = provenance.devices_of(run.rows.environment)
        said = f"{most}{remaining.rounded(total)} on {where}, {left_out}"
    if lines:
        command_line.say("\n" + markdown_table(header, lines))
    command_line.say("\n" + "\n".join([said, *notes]))


def _speed(rate: float, steps: int) -> tuple[str, str]:
    return f"{rate:.3g}", remaining.rounded(steps / rate)


def _steps_a_second(run: Run[Any, Any], cell: Cell, training: Training) -> float | None:
    """Median speed of a few steps, without the first ones, which compile; None = diverged."""
    optimizer, few = tuning.shortened(training.optimizer, training.loop, _TRIED)
    few = dataclasses.replace(few, log_every=_TRIED // 4)
    once = dataclasses.replace(
        training.task, validation=lambda: itertools.islice(training.task.validation(), 1)
    )
    short = dataclasses.replace(
        training, task=once, optimizer=optimizer, loop=few, before=None, kept=()
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / cell.folder
        try:
            run.trained(cell, short, place)
        except Diverged:
            return None
        _, rates = curve(read_metrics(place), "training", "steps_per_second")
        return statistics.median(rates[1:])


def _on_target(
    training: Training, settings: TrainFlags, target: Target, steps: int
) -> tuple[str, str, str, str]:
    """A note, the memory of a step on one device, its least time, and that of all steps."""
    task, devices = training.task, topology.devices(target)
    batch = max(itertools.islice(task.batches, _BATCHES), key=_size)
    rows = max(x.shape[0] for x in batch.values())
    parallel = settings.over_target(target.name, devices, rows)
    batch = {name: x[: x.shape[0] // settings.accumulate] for name, x in batch.items()}
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    of_step = task.model, task.objective, training.optimizer

    def lower() -> jax.stages.Lowered:
        return model_programs.lower_step(*of_step, shapes, parallel, streams=task.streams)

    program = deviceless.compiled(lower, target, devices)
    note = program.note
    if lacks := program.lacks(target):
        return note, deviceless.needs(*lacks), "too large", ""
    need = program.need
    assert need is not None

    def operations() -> Operations:
        # What blocks padding lets be skipped, only the numbers of a batch say.
        return count(*model_programs.traceable_step(*of_step, batch, streams=task.streams))

    try:
        of_all, _ = deviceless.on_target(target, operations)
    except NotImplementedError:  # a kernel's operations are not seen; a CPU has none
        with platforms.compiling_for(platforms.Platform("cpu")):
            of_all = operations()
        note = f"{note}; {_BY_BLOCKS}".removeprefix("; ")
    moved = need.argument_bytes + need.output_bytes
    of_one = of_all.scaled(1 / len(devices))
    least = Rates.of_device(target.device).bound(of_one, moved, program.sent)
    seconds = settings.accumulate * least.seconds
    step_at_least = f"{duration(seconds)} {least.by}"
    return note, human(need.total), step_at_least, remaining.rounded(steps * seconds)


def _size(batch: Mapping[str, np.ndarray]) -> int:
    return sum(x.size for x in batch.values())
