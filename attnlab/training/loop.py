"""The training loop, for every model and task."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

import flax.linen as nn
import grain
import jax

from attnlab.checks import require
from attnlab.training.checkpoint import Checkpoints
from attnlab.training.curve import Meter, MetricsFile, Progress, require_finite
from attnlab.training.objective import Batch, Objective
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import Parallel
from attnlab.training.step import TrainState, make_train_step, make_validation_step
from attnlab.training.stop import StopRequest

__all__ = ["CHECKPOINTS", "LoopSettings", "Task", "Trained", "train"]

CHECKPOINTS = "checkpoints"  # name of the folder of checkpoints, in the folder of a training
M = TypeVar("M", bound=nn.Module)


@dataclasses.dataclass(frozen=True)
class Task(Generic[M]):
    """What is trained, and on what.

    Attributes:
      model: a Flax module, as `make_train_step` takes it.
      objective: loss to minimize, and the metrics to report.
      batches: endless data set of batches, with a state that can be saved.
      validation: function that gives the validation batches, each time from the first.
      identity: JSON values that make this training what it is; a checkpoint of another is refused.
      streams: names of the model's random numbers, as `make_train_step` takes them.
      start: (parameters that `init` drew) -> parameters to start from; None = those of `init`.
      watch: (variables) -> numbers by name, added to each validation's row of the curve; None =
        nothing is added.
    """

    model: M
    objective: Objective
    batches: grain.IterDataset
    validation: Callable[[], Iterable[Batch]]
    identity: dict[str, Any]
    streams: tuple[str, ...] = ("dropout",)
    start: Callable[[Any], Any] | None = None
    watch: Callable[[Any], dict[str, float]] | None = None


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long to train, and how often to log, to validate and to save.

    Attributes:
      steps: number of steps in all.
      log_every: number of steps between two rows of the curve.
      validate_every: number of steps between two validations, each with a checkpoint.
      checkpoint_every: number of steps between two checkpoints.
      accumulate: number of parts of a batch, one after the other.
      seed: seed of the parameters and of dropout.
    """

    steps: int
    log_every: int = 50
    validate_every: int = 500
    checkpoint_every: int = 500
    accumulate: int = 1
    seed: int = 0

    def __post_init__(self):
        for name in ("steps", "log_every", "validate_every", "checkpoint_every", "accumulate"):
            got = getattr(self, name)
            require(got >= 1, f"{name} must be at least 1; got {got}")


@dataclasses.dataclass(frozen=True)
class Trained:
    """How a training ended.

    Attributes:
      params: parameters of the best checkpoint: the one with the smallest headline metric in
        validation.
      collections: the model's other variables in that checkpoint.
      step: number of the step after which that checkpoint was saved.
      steps: number of steps that were done in all.
      seconds: time of all steps and validations, added up over the runs of this training.
      stopped_by: signal that ended the training early, if one did.
    """

    params: Any
    collections: dict[str, Any]
    step: int
    steps: int
    seconds: float
    stopped_by: signal.Signals | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """What the model is applied with."""
        return {"params": self.params, **self.collections}


def train(
    task: Task[Any],
    *,
    settings: LoopSettings,
    optimizer: OptimizerSettings,
    parallel: Parallel,
    folder: Path,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    say: Callable[[str], None] = print,
) -> Trained:
    """Trains until the last step, from the folder's last checkpoint if it has one.

    A run that is killed and started again goes on to the same numbers, bit for bit: parameters,
    other collections, optimizer, step, key, place in the data and the sums of an unfinished row
    are in the checkpoint. SIGTERM and Ctrl-C are answered after a step, by a checkpoint.

    Args:
      task: model, objective and data.
      settings: numbers of steps: of the whole training, and between rows, validations, checkpoints.
      optimizer: optimizer of the parameters.
      parallel: devices, and how they share the work.
      folder: place for this training alone: checkpoints and metrics.jsonl.
      on_row: (row) -> None; called with each row of the curve, which metrics.jsonl gets as well.
      say: (line) -> None; shows a line to the user.

    Returns:
      The best parameters and collections, on the host, and what became of the training.

    Raises:
      Diverged: loss or gradient are not finite. The checkpoints until then stay.
      Invalid: the folder belongs to another training or cannot be written.
    """
    model, objective = task.model, task.objective
    transformation = optimizer.build(settings.steps)
    rates = optimizer.learning_rates(settings.steps)
    example = objective.inputs(next(iter(task.batches)))
    create = lambda: TrainState.create(  # noqa: E731
        model, transformation, example, settings.seed, task.start
    )
    abstract = jax.eval_shape(create)
    shardings = parallel.shardings(abstract)
    train_step = parallel.compile(
        make_train_step(
            model,
            objective,
            transformation,
            accumulate=settings.accumulate,
            streams=task.streams,
            axis_name=parallel.axis_name,
        ),
        donate=True,
        out=(shardings, parallel.whole),
    )
    validation_step = parallel.compile(
        make_validation_step(model, objective, axis_name=parallel.axis_name)
    )
    data = iter(task.batches)
    where = folder / CHECKPOINTS

    with Checkpoints(where, task.identity) as checkpoints, StopRequest() as stop:
        if checkpoints.latest_step is None:
            start, state, meter = 0, parallel.place(create()), Meter()
        else:
            kept = checkpoints.restore(abstract.kept(), shardings.kept(), checkpoints.latest_step)
            start, state = kept.step, parallel.place(abstract.replace(**kept.state))
            meter = Meter.from_json(kept.meter)
            data.set_state(kept.data)
            say(f"going on after step {start}")
        curve = MetricsFile(folder, after_step=start)
        progress = Progress(settings.steps, start, meter.seconds, objective.shown)

        def add_row(kind: str, step: int, row: dict[str, Any]) -> None:
            row = {"kind": kind, "step": step, **row}
            curve.add(row)
            if on_row is not None:
                on_row(row)

        def read(step: int, pending: Any) -> None:
            metrics = parallel.read(pending)
            require_finite(step, metrics)
            meter.add(metrics)

        def save(step: int, validation: float | None, *, wait: bool) -> None:
            meter.seconds = progress.seconds()
            checkpoints.save(
                step,
                parallel.gather(state).kept(),
                data=data.get_state(),
                meter=meter.to_json(),
                validation=validation,
                wait=wait,
            )

        step, pending = start, None
        stops = False
        while step < settings.steps and not stops:
            state, metrics = train_step(state, parallel.split(next(data)))
            if pending is not None:  # read a step late, so that the device never waits for it
                read(step, pending)
            step, pending = step + 1, metrics

            last, stops = step == settings.steps, stop.asked(step)
            logs = last or step % settings.log_every == 0
            validates = last or step % settings.validate_every == 0
            saves = validates or stops or step % settings.checkpoint_every == 0
            if logs or saves:
                read(step, pending)
                pending = None
            if logs:
                row = meter.row(objective) | {"learning_rate": float(rates(step - 1))}
                row |= progress.rates(step, int(row["tokens"]))
                add_row("training", step, row)
                say(progress.line(step, row))
            headline = None
            if validates:
                sums = validate(validation_step, parallel, state.variables, task.validation())
                means = sums.means(objective)
                headline = means[objective.headline]
                watched = task.watch(parallel.read(state).variables) if task.watch else {}
                add_row("validation", step, means | watched)
                say(progress.validation_line(step, means))
            if saves:
                save(step, headline, wait=last or stops)

        best = checkpoints.best_step
        assert best is not None  # the loop ends with a checkpoint
        whole = jax.tree.map(lambda _: parallel.whole, abstract.kept())
        kept = checkpoints.restore(abstract.kept(), whole, best)
        trained = jax.device_get(abstract.replace(**kept.state))
    return Trained(trained.params, trained.collections, best, step, meter.seconds, stop.signal)


def validate(step: Callable, parallel: Parallel, variables: Any, batches: Iterable[Batch]) -> Meter:
    """The sums over all batches."""
    meter = Meter()
    for batch in batches:
        meter.add(parallel.read(step(variables, parallel.split(batch))))
    return meter
