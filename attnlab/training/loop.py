"""The training loop, for every model and task."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
from attnlab.runs import processes
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

    @property
    def averaged(self) -> tuple[int, ...]:
        """The steps of the checkpoints whose mean is the result, of all if there are fewer."""
        backwards = filter(self.saves, range(self.steps, 0, -1))
        return tuple(itertools.islice(backwards, self.average or 0))[::-1]


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
    session = _Session(task, settings, optimizer, parallel, folder, on_row, say)
    where = folder / CHECKPOINTS
    with (
        Checkpoints(where, task.identity, steps=settings.averaged) as checkpoints,
        StopRequest() as stop,
    ):
        session.begin(checkpoints)
        while not session.is_over():
            session.do_step(stop)
        trained = session.result()
    return dataclasses.replace(trained, stopped_by=stop.signal)


@dataclasses.dataclass
class _Session:
    """A run of a training: its programs and its state, and where its numbers go.

    The fields are arguments of `train`.
    """

    task: Task[Any]
    settings: LoopSettings
    optimizer: OptimizerSettings
    parallel: Parallel
    folder: Path
    on_row: Callable[[dict[str, Any]], None] | None
    say: Callable[[str], None]

    def __post_init__(self):
        """Traces the model, and touches no file."""
        task = self.task
        settings = self.settings
        parallel = self.parallel
        self.rates = self.optimizer.learning_rates(settings.steps)
        transformation = self.optimizer.build(settings.steps)
        # Parameters are made of one row of zeros: any mesh takes one, where it may not divide the
        # rows of this process, and every process compiles the same program.
        batch = next(iter(task.batches))
        row = {name: np.zeros((1, *x.shape[1:]), x.dtype) for name, x in batch.items()}
        example = task.objective.inputs(row)
        self.create = functools.partial(
            TrainState.create, task.model, transformation, example, settings.seed, task.start
        )
        self.abstract = jax.eval_shape(self.create)
        self.shardings = parallel.shardings(self.abstract)
        self.train_step = parallel.compile(
            make_train_step(
                task.model,
                task.objective,
                transformation,
                accumulate=settings.accumulate,
                streams=task.streams,
                axis_name=parallel.axis_name,
            ),
            donate=True,
            out=(self.shardings, parallel.whole),
        )
        self.validation_step = parallel.compile(
            make_validation_step(task.model, task.objective, axis_name=parallel.axis_name)
        )
        self.data = iter(task.batches)
        self.pending: Any = None  # metrics of the last step, not read yet
        self.stops = False

    def begin(self, checkpoints: Checkpoints) -> None:
        """Takes up the last readable checkpoint, or the parameters to start from."""
        self.checkpoints = checkpoints
        kept = checkpoints.restore_latest(self.abstract.kept(), self.shardings.kept(), self.say)
        if kept is not None:
            self.step = kept.step
            self.state = self.parallel.place(self.abstract.replace(**kept.state))
            self.meter = Meter(**kept.meter)
            self.data.set_state(kept.data)
            self.say(f"going on after step {self.step}")
        else:
            self.step = 0
            self.meter = Meter()
            # What another training left to begin with is here already, and belongs in no program.
            if self.task.start is None:
                with _evenly():
                    self.state = self.parallel.make(self.create)
            else:
                self.state = self.parallel.place(self.create())
        self._read_validations()
        self.curve = None
        if processes.is_first():
            self.curve = MetricsFile(self.folder, after_step=self.step)
        shown = self.task.objective.shown
        self.progress = Progress(self.settings.steps, self.step, self.meter, shown)

    def is_over(self) -> bool:
        """Whether no step is left to do."""
        return self.step >= self.settings.steps or self.stops or self._is_at_plateau()

    def do_step(self, stop: StopRequest) -> None:
        """A step, and the row, the validation and the checkpoint that are due after it."""
        batch = self.parallel.split(next(self.data))
        with _evenly():
            self.state, metrics = self.train_step(self.state, batch)
        self._read_pending()  # a step late, so that the device never waits for it
        self.step += 1
        self.pending = metrics

        self.stops = stop.asked()
        is_last = self.step == self.settings.steps
        logs = is_last or self.step % self.settings.log_every == 0
        saves = self.stops or self.settings.saves(self.step)
        if logs or saves:
            self._read_pending()
        if logs:
            self._log()
        headline = self._validate() if self.settings.validates(self.step) else None
        ends = is_last or self._is_at_plateau()
        if ends and not logs:  # else the steps behind the last row are in none
            self._log()
        if saves:
            self._save(headline, wait=ends or self.stops)

    def result(self) -> Trained:
        """The parameters that the training ends with, on the host."""
        self.state = None  # which makes room for the parameters of another step
        if self.settings.average is None or self.step < self.settings.steps:
            step, variables, validation = self._best()
        else:
            step, variables, validation = self._averaged()
        return Trained(
            variables.pop("params"),
            variables,
            step,
            self.step,
            self.meter.seconds,
            plateau=self.step if self._is_at_plateau() else None,
            validation=validation,
        )

    def _read_validations(self) -> None:
        """What the curve has of the steps before; the user is told if rows are gone."""
        self.validations: dict[int, dict[str, float]] = {
            row["step"]: {name: x for name, x in row.items() if name not in ("kind", "step")}
            for row in read_metrics(self.folder)
            if row["kind"] == "validation"
            and row["step"] <= self.step
            and self.task.objective.headline in row
        }
        due = [at for at in range(1, self.step + 1) if self.settings.validates(at)]
        self.lost = [at for at in due if at not in self.validations]
        if self.lost:
            self.say(
                f"{self.folder / METRICS}: rows until step {self.lost[-1]} are gone,"
                f" {len(self.lost)} validations among them: the curve, its rates and a plateau are"
                " judged without them"
            )

    def _is_at_plateau(self) -> bool:
        if self.settings.plateau is None:
            return False
        headline = self.task.objective.headline
        losses = {at: means[headline] for at, means in self.validations.items()}
        return is_plateau(losses, self.settings.plateau)

    def _read_pending(self) -> None:
        if self.pending is None:
            return
        metrics = self.parallel.read(self.pending)
        self.pending = None
        require_finite(self.step, metrics)
        self.meter.add(metrics)
        if line := self.progress.stepped(self.step):
            self.say(line)

    def _log(self) -> None:
        row = self.meter.row(self.task.objective) | {
            "learning_rate": float(self.rates(self.step - 1))
        }
        row |= self.progress.rates(self.step, int(row["tokens"]))
        self._add_row("training", row)
        self.say(self.progress.line(self.step, row))

    def _add_row(self, kind: str, row: dict[str, Any]) -> None:
        row = {"kind": kind, "step": self.step, **row}
        if self.curve is not None:
            self.curve.add(row)
        if self.on_row is not None:
            self.on_row(row)

    def _validate(self) -> float:
        """The headline metric of a validation, which gets a row."""
        means = self._means(self.state.variables)
        self.validations[self.step] = means
        self._add_row("validation", means)
        self.say(self.progress.validation_line(self.step, means))
        return means[self.task.objective.headline]

    def _means(self, variables: Any) -> dict[str, float]:
        """The means over the validation, and what is watched."""
        sums = Meter()
        with self.progress.beside(), _evenly():
            for batch in self.task.validation():
                metrics = self.validation_step(variables, self.parallel.split(batch))
                sums.add(self.parallel.read(metrics))
            watch = self.task.watch
            watched = {} if watch is None else watch(self.parallel.read(variables))
        return sums.means(self.task.objective) | watched

    def _save(self, headline: float | None, *, wait: bool) -> None:
        self.meter.seconds = self.progress.seconds()
        with self.progress.beside():
            self.checkpoints.save(
                self.step,
                self.parallel.gather(self.state).kept(),
                data=self.data.get_state(),
                meter=dataclasses.asdict(self.meter),
                validation=headline,
                wait=wait,
            )

    def _restore(self, step: int) -> dict[str, Any]:
        """What the model is applied with after a step, on the host."""
        # On the devices it is divided as in the training.
        kept = self.checkpoints.restore(self.abstract.kept(), self.shardings.kept(), step)
        collections = kept.state.get("collections", {})
        return on_host({"params": kept.state["params"], **collections})

    def _best(self) -> tuple[int, dict[str, Any], dict[str, float]]:
        """The step of the best checkpoint, its variables and its validation."""
        step = self.checkpoints.best_step
        assert step is not None  # the loop ends with a checkpoint
        try:
            variables = self._restore(step)
        except Invalid as error:
            remedy = "delete its folder, and the best of the others is taken"
            raise Invalid(f"{error}; {remedy}") from error
        if step in self.lost:
            return step, variables, self._means(self.parallel.place(variables))
        return step, variables, self.validations.get(step, {})

    def _averaged(self) -> tuple[int, dict[str, Any], dict[str, float]]:
        """The last step, its variables with the mean of the last parameters, and a validation."""
        steps = self.settings.averaged
        missing = [str(step) for step in steps if step not in self.checkpoints.steps]
        if missing:
            raise Invalid(
                f"{self.folder / CHECKPOINTS}: the mean of the last {self.settings.average}"
                f" checkpoints needs those of step {', '.join(missing)}, which were not kept; train"
                " in another folder"
            )
        mean = _mean(self._restore(step)["params"] for step in steps)
        variables = {**self._restore(self.step), "params": mean}
        validation = self._means(self.parallel.place(variables))
        line = self.progress.validation_line(self.step, validation)
        self.say(f"{line}  mean of {self.settings.average} checkpoints")
        return self.step, variables, validation


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
