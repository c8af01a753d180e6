"""The training loop, for every model and task."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import flax.linen as nn
import grain
import jax

from attnlab.checks import require
from attnlab.training.checkpoint import Checkpoints
from attnlab.training.loss import TokenSums
from attnlab.training.meter import Meter
from attnlab.training.metrics_file import MetricsFile
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import Parallel
from attnlab.training.progress import Progress
from attnlab.training.step import Batch, TrainState, make_train_step, make_validation_step
from attnlab.training.stop import StopRequest

__all__ = ["CHECKPOINTS", "LoopSettings", "Trained", "train"]

CHECKPOINTS = "checkpoints"  # the folder within that of a training


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long, and how often what.

    Attributes:
      steps: in all.
      log_every: steps between two rows of the curve.
      validate_every: steps between two validations, each with a checkpoint.
      checkpoint_every: steps between two checkpoints.
      label_smoothing: ε of the loss.
      gradient_mean_over: "tokens" or "sentences", as `make_train_step` has it.
      accumulate: parts of a batch, one after the other.
      streams: of random numbers, as `make_train_step` has it.
      seed: of the parameters and of dropout.
    """

    steps: int
    log_every: int = 50
    validate_every: int = 500
    checkpoint_every: int = 500
    label_smoothing: float = 0.0
    gradient_mean_over: str = "tokens"
    accumulate: int = 1
    streams: tuple[str, ...] = ("dropout",)
    seed: int = 0

    def __post_init__(self):
        for name in ("steps", "log_every", "validate_every", "checkpoint_every", "accumulate"):
            got = getattr(self, name)
            require(got >= 1, f"{name} must be at least 1; got {got}")


@dataclasses.dataclass(frozen=True)
class Trained:
    """How a training ended.

    Attributes:
      params: the best ones: of the checkpoint with the smallest validation −log p.
      collections: the model's other variables there.
      step: at which they were saved.
      steps: done in all.
      seconds: that the steps and validations took, over all its runs.
      stopped_by: the signal that ended it early, if one did.
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
    model: nn.Module,
    batches: grain.IterDataset,
    validation: Callable[[], Iterable[Batch]],
    *,
    settings: LoopSettings,
    optimizer: OptimizerSettings,
    parallel: Parallel,
    folder: Path,
    configuration: dict[str, Any],
    on_row: Callable[[dict[str, Any]], None] | None = None,
    say: Callable[[str], None] = print,
) -> Trained:
    """Trains until the last step, from the folder's last checkpoint if it has one.

    A run that is killed and started again goes on to the same numbers, bit for bit: parameters,
    other collections, optimiser, step, key, place in the data and the sums of an unfinished row
    are in the checkpoint. SIGTERM and Ctrl-C are answered after a step, by a checkpoint.

    Args:
      model: as `make_train_step` takes it.
      batches: endless, with a state that can be saved.
      validation: gives the validation batches, each time from the first.
      settings: of the loop.
      optimizer: of the parameters.
      parallel: over which devices.
      folder: of this training: checkpoints and metrics.jsonl.
      configuration: what makes this training what it is; a folder of another one is refused.
      on_row: takes each row of the curve, besides metrics.jsonl.
      say: takes a line for the user.

    Returns:
      The best parameters and collections, on the host, and what became of the training.

    Raises:
      Diverged: loss or gradient are not finite. The checkpoints until then stay.
      Invalid: the folder belongs to another training or cannot be written.
    """
    transformation = optimizer.build(settings.steps)
    rates = optimizer.learning_rates(settings.steps)
    axis_name = parallel.axis_name
    train_step = parallel.compile(
        make_train_step(
            model,
            transformation,
            label_smoothing=settings.label_smoothing,
            gradient_mean_over=settings.gradient_mean_over,
            accumulate=settings.accumulate,
            streams=settings.streams,
            axis_name=axis_name,
        ),
        donate=True,
    )
    validation_step = parallel.compile(make_validation_step(model, axis_name=axis_name))

    data = iter(batches)
    example = next(iter(batches))
    create = lambda: TrainState.create(model, transformation, example, settings.seed)  # noqa: E731

    with Checkpoints(folder / CHECKPOINTS, configuration) as checkpoints, StopRequest() as stop:
        abstract = jax.eval_shape(create)
        if checkpoints.latest_step is None:
            start, state, meter = 0, parallel.place(create()), Meter()
        else:
            kept = checkpoints.restore(abstract.kept(), parallel.whole, checkpoints.latest_step)
            start, state = kept.step, parallel.place(abstract.replace(**kept.state))
            meter = Meter.from_json(kept.meter)
            data.set_state(kept.data)
            say(f"going on after step {start}")
        curve = MetricsFile(folder, after_step=start)
        progress = Progress(settings.steps, start, meter.seconds)

        def add_row(kind: str, step: int, row: dict[str, Any]) -> None:
            row = {"kind": kind, "step": step, **row}
            curve.add(row)
            if on_row is not None:
                on_row(row)

        def save(step: int, validation_nll: float | None, *, wait: bool) -> None:
            meter.seconds = progress.seconds()
            checkpoints.save(
                step,
                parallel.gather(state).kept(),
                data=data.get_state(),
                meter=meter.to_json(),
                validation_nll=validation_nll,
                wait=wait,
            )

        step, pending = start, None
        stops = False
        while step < settings.steps and not stops:
            state, metrics = train_step(state, parallel.split(next(data)))
            if pending is not None:  # read a step late, so that the device never waits for it
                meter.add(step, parallel.read(pending))
            step, pending = step + 1, metrics

            last, stops = step == settings.steps, stop.asked(step)
            logs = last or step % settings.log_every == 0
            validates = last or step % settings.validate_every == 0
            saves = validates or stops or step % settings.checkpoint_every == 0
            if logs or saves:
                meter.add(step, parallel.read(pending))
                pending = None
            if logs:
                row = meter.row() | {"learning_rate": float(rates(step - 1))}
                row |= progress.rates(step, int(row["tokens"]))
                add_row("training", step, row)
                say(progress.line(step, row))
            found = None
            if validates:
                found = validate(validation_step, parallel, state.variables, validation()).means()
                add_row("validation", step, found)
                say(progress.validation_line(step, found))
            if saves:
                save(step, found["nll"] if found else None, wait=last or stops)

        best = checkpoints.best_step
        assert best is not None  # the loop ends with a checkpoint
        found = checkpoints.restore(abstract.kept(), parallel.whole, best).state
        found = jax.device_get(abstract.replace(**found))
    return Trained(found.params, found.collections, best, step, meter.seconds, stop.signal)


def validate(
    step: Callable, parallel: Parallel, variables: Any, batches: Iterable[Batch]
) -> TokenSums:
    """The sums over all batches."""
    total = TokenSums(0.0, 0.0, 0.0, 0.0)
    for batch in batches:
        sums = parallel.read(step(variables, parallel.split(batch)))
        total = TokenSums(*(a + float(b) for a, b in zip(total, sums, strict=True)))
    return total
