"""The training loop, for every model and task."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import flax.linen as nn
import grain
import jax
import jax.numpy as jnp
import numpy as np

from attnlab.core.checks import as_size, require
from attnlab.devices.split import Uneven
from attnlab.runs.errors import Invalid
from attnlab.training.checkpoint import Checkpoints
from attnlab.training.curve import (
    METRICS,
    Meter,
    MetricsFile,
    Progress,
    is_plateau,
    read_metrics,
    require_finite,
)
from attnlab.training.objective import Batch, Objective
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import Parallel, on_host
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
        A study adds its flags, the cell and the digest of the data.
      streams: names of the model's random numbers, as `make_train_step` takes them.
      start: (parameters that `init` drew) -> parameters to start from; None = those of `init`.
      watch: (variables) -> numbers by name, added to each validation's row of the curve; None =
        nothing is added.
    """

    model: M
    objective: Objective
    batches: grain.IterDataset
    validation: Callable[[], Iterable[Batch]]
    identity: dict[str, Any] = dataclasses.field(default_factory=dict)
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
      average: number of the last checkpoints whose parameters' mean is the result, as in Vaswani et
        al. 2017, §6.1; 1 = those of the last alone; None = those of the best.
      plateau: share by which the headline metric of the validations must fall over the last fifth
        of the steps (`curve.is_plateau`), else the training ends; None = it has all steps.
    """

    steps: int
    log_every: int = 50
    validate_every: int = 500
    checkpoint_every: int = 500
    accumulate: int = 1
    seed: int = 0
    average: int | None = None
    plateau: float | None = None

    def __post_init__(self):
        counts = ("steps", "log_every", "validate_every", "checkpoint_every", "accumulate")
        for name in (*counts, *(["average"] if self.average is not None else [])):
            as_size(name, getattr(self, name))
        made = len(self.averaged)
        require(
            made == (self.average or 0),
            f"average must be at most the number of checkpoints, {made}; got {self.average}",
        )
        require(
            self.average is None or self.plateau is None,
            "average counts the checkpoints before the last step, which plateau leaves open; got"
            " both (leave one out)",
        )

    def validates(self, step: int) -> bool:
        """Whether there is a validation after a step."""
        return step == self.steps or step % self.validate_every == 0

    def saves(self, step: int) -> bool:
        """Whether there is a checkpoint after a step, of a training that nothing interrupts."""
        return self.validates(step) or step % self.checkpoint_every == 0

    def last_saved(self, count: int) -> tuple[int, ...]:
        """The steps of the last `count` checkpoints, or of all if there are fewer."""
        backwards = filter(self.saves, range(self.steps, 0, -1))
        return tuple(itertools.islice(backwards, count))[::-1]

    @property
    def averaged(self) -> tuple[int, ...]:
        """The steps of the checkpoints whose mean is the result."""
        return self.last_saved(self.average or 0)


@dataclasses.dataclass(frozen=True)
class Trained:
    """How a training ended.

    Attributes:
      params: parameters of the best checkpoint, the one with the smallest headline metric in
        validation; with `LoopSettings.average` the mean of those of the last ones, unless a signal
        ended the training before.
      collections: the model's other variables in that checkpoint, or in the last one.
      step: number of the step after which that checkpoint was saved.
      steps: number of steps that were done in all.
      seconds: time of all steps and validations, added up over the runs of this training.
      stopped_by: signal that ended the training early, if one did.
      plateau: number of the step, the last one, after which the training was at the plateau of
        `LoopSettings.plateau`; None = it was not.
      validation: means of the validation with these parameters, by name; empty where a training was
        ended before its first validation.
    """

    params: Any
    collections: dict[str, Any]
    step: int
    steps: int
    seconds: float
    stopped_by: signal.Signals | None = None
    plateau: int | None = None
    validation: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def variables(self) -> dict[str, Any]:
        """What the model is applied with."""
        return {"params": self.params, **self.collections}

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the model, frozen ones too."""
        return sum(x.size for x in jax.tree.leaves(self.params))


def train(
    task: Task[Any],
    *,
    settings: LoopSettings,
    optimizer: OptimizerSettings,
    parallel: Parallel,
    folder: Path,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    writes: bool = True,
    say: Callable[[str], None] = print,
) -> Trained:
    """Trains until the last step or a plateau, from the folder's last readable checkpoint.

    A run that is killed and started again goes on to the same numbers, bit for bit: parameters,
    other collections, optimizer, step, key, place in the data and the sums of an unfinished row
    are in the checkpoint. SIGTERM and Ctrl-C are answered after a step, by a checkpoint more, which
    no mean counts.

    Args:
      task: model, objective and data.
      settings: numbers of steps: of the whole training, and between rows, validations, checkpoints.
      optimizer: optimizer of the parameters.
      parallel: devices, and how they share the work.
      folder: place for this training alone: checkpoints and metrics.jsonl.
      on_row: (row) -> None; called with each row of the curve, which metrics.jsonl gets as well.
      writes: whether this process writes metrics.jsonl; of several the first does.
      say: (line) -> None; shows a line to the user.

    Returns:
      The best parameters and collections, or the mean, on the host, and what became of the
      training.

    Raises:
      Diverged: loss or gradient are not finite. The checkpoints until then stay.
      Invalid: the folder belongs to another training or cannot be written, or a training that
        ended there did not keep the checkpoints to average; the devices cannot share the model's
        heads, or its positions, evenly.
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

    kept_steps = settings.averaged
    with Checkpoints(where, task.identity, steps=kept_steps) as checkpoints, StopRequest() as stop:
        kept = checkpoints.restore_latest(abstract.kept(), shardings.kept(), say)
        if kept is None:
            # What another training left to begin with is here already, and belongs in no program.
            state = parallel.make(create) if task.start is None else parallel.place(create())
            start, meter = 0, Meter()
        else:
            start, state = kept.step, parallel.place(abstract.replace(**kept.state))
            meter = Meter.from_json(kept.meter)
            data.set_state(kept.data)
            kept = None  # whose arrays would stay beside those of the training
            say(f"going on after step {start}")
        found = {
            row["step"]: {name: x for name, x in row.items() if name not in ("kind", "step")}
            for row in read_metrics(folder)
            if row["kind"] == "validation" and row["step"] <= start and objective.headline in row
        }
        lost = [at for at in range(1, start + 1) if settings.validates(at) and at not in found]
        if lost:
            say(
                f"{folder / METRICS}: rows until step {lost[-1]} are gone, {len(lost)} validations"
                " among them: the curve, its rates and a plateau are judged without them"
            )
        curve = MetricsFile(folder, after_step=start) if writes else None
        progress = Progress(settings.steps, start, meter, objective.shown)

        def add_row(kind: str, step: int, row: dict[str, Any]) -> None:
            row = {"kind": kind, "step": step, **row}
            if curve is not None:
                curve.add(row)
            if on_row is not None:
                on_row(row)

        def read(step: int, pending: Any) -> None:
            metrics = parallel.read(pending)
            require_finite(step, metrics)
            meter.add(metrics)
            if line := progress.stepped(step):
                say(line)

        def save(step: int, validation: float | None, *, wait: bool) -> None:
            meter.seconds = progress.seconds()
            with progress.beside():
                checkpoints.save(
                    step,
                    parallel.gather(state).kept(),
                    data=data.get_state(),
                    meter=meter.to_json(),
                    validation=validation,
                    wait=wait,
                )

        def validated(variables: Any) -> dict[str, float]:
            sums = Meter()
            with progress.beside(), _evenly():
                for batch in task.validation():
                    sums.add(parallel.read(validation_step(variables, parallel.split(batch))))
                watched = task.watch(parallel.read(variables)) if task.watch else {}
            return sums.means(objective) | watched

        def restored(step: int) -> dict[str, Any]:
            """What the model is applied with after a step, on the host."""
            # On the devices it is divided as in the training.
            state = checkpoints.restore(abstract.kept(), shardings.kept(), step).state
            return on_host({"params": state["params"], **state.get("collections", {})})

        def ended() -> bool:
            """Whether the training has come to its plateau."""
            if settings.plateau is None:
                return False
            losses = {at: means[objective.headline] for at, means in found.items()}
            return is_plateau(losses, settings.plateau)

        step, pending = start, None
        stops = False
        while step < settings.steps and not stops and not ended():
            batch = parallel.split(next(data))
            with _evenly():
                state, metrics = train_step(state, batch)
            if pending is not None:  # read a step late, so that the device never waits for it
                read(step, pending)
            step, pending = step + 1, metrics

            last, stops = step == settings.steps, stop.asked()
            logs = last or step % settings.log_every == 0
            validates, saves = settings.validates(step), stops or settings.saves(step)
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
                means = found[step] = validated(state.variables)
                headline = means[objective.headline]
                add_row("validation", step, means)
                say(progress.validation_line(step, means))
            if saves:
                save(step, headline, wait=last or stops or ended())

        state = None  # which makes room for the parameters of another step
        if settings.average is None or step < settings.steps:
            best = checkpoints.best_step
            assert best is not None  # the loop ends with a checkpoint
            try:
                variables = restored(best)
            except Invalid as error:
                remedy = "delete its folder, and the best of the others is taken"
                raise Invalid(f"{error}; {remedy}") from error
            validation = found.get(best, {})
            if best in lost:
                validation = validated(parallel.place(variables))
        else:
            best = step
            if missing := [
                str(earlier) for earlier in kept_steps if earlier not in checkpoints.steps
            ]:
                raise Invalid(
                    f"{where}: the mean of the last {settings.average} checkpoints needs those of "
                    f"step {', '.join(missing)}, which were not kept; train in another folder"
                )
            mean = _mean(restored(earlier)["params"] for earlier in kept_steps)
            variables = {**restored(step), "params": mean}
            validation = validated(parallel.place(variables))
            line = progress.validation_line(step, validation)
            say(f"{line}  mean of {settings.average} checkpoints")
    return Trained(
        variables.pop("params"),
        variables,
        best,
        step,
        meter.seconds,
        stop.signal,
        step if ended() else None,
        validation,
    )


def _mean(trees: Iterable[Any]) -> Any:
    """The mean of trees of arrays, in their dtypes, summed in float32 at least."""
    total, count, dtypes = None, 0, None
    for tree in trees:
        dtypes = jax.tree.map(lambda x: x.dtype, tree)
        wide = jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
        count += 1
    return jax.tree.map(lambda x, dtype: (x / count).astype(dtype), total, dtypes)


@contextlib.contextmanager
def _evenly() -> Iterator[None]:
    """Only when a step is traced it shows whether the mesh divides heads and positions."""
    try:
        yield
    except Uneven as error:
        raise Invalid(f"--mesh: {error}") from error
