"""What a training step costs: time in turns and memory here, memory alone on absent devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import memory
from attnlab.bench.case import TRAIN_STEP, Case, Result
from attnlab.bench.measure import sample
from attnlab.bench.training_programs import lower_step
from attnlab.data.windows import as_tokens
from attnlab.runs.errors import one_line
from attnlab.runs.units import human
from attnlab.tokens import NUM_SPECIAL
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.parallel import ShardedJit
from attnlab.training.step import TrainState
from experiments.language_model.corpus import Corpus
from experiments.language_model.models import build, streams
from experiments.language_model.rows import Cost
from experiments.language_model.settings import Settings

__all__ = ["case_of", "cost_of", "lower", "timed"]


def lower(
    name: str, settings: Settings, vocab_size: int, case: Case, devices: Sequence[jax.Device]
) -> jax.stages.Lowered:
    """The training step of a model for a case's length, batch and implementation."""
    model = build(
        name,
        settings.sizes(),
        vocab_size=vocab_size,
        length=case.length,
        implementation=case.implementation,
    )
    batch = {"tokens": jax.ShapeDtypeStruct((case.batch, case.length), jnp.int32)}
    return lower_step(
        model,
        TokenCrossEntropy(),
        settings.optimizer(),
        batch,
        ShardedJit(devices),
        streams=streams(name),
    )


def case_of(name: str, length: int, settings: Settings, target: str | None = None) -> Case:
    """The case of a step of `settings.cost_tokens`, or of one window for a target."""
    batch = 1 if target else max(1, settings.cost_tokens // length)
    return Case(name, length, TRAIN_STEP, batch=batch, dtype=settings.dtype, target=target)


def cost_of(result: Result) -> Cost:
    """The row of a result."""
    case = result.case
    return Cost(
        case.mechanism,
        case.length,
        case.target or "",
        case.batch * case.length,
        memory=result.memory_bytes,
        status=result.status,
        message=result.message,
    )


@dataclasses.dataclass
class _Ready:
    """A compiled step that has run once, and its state."""

    row: Cost
    step: Callable[..., Any]
    batch: dict[str, jax.Array]
    state: TrainState
    samples: list[float] = dataclasses.field(default_factory=list)

    def call(self) -> Any:
        self.state, metrics = self.step(self.state, self.batch)
        return metrics


def timed(length: int, settings: Settings, corpus: Corpus) -> Iterator[Cost]:
    """Yields a row for each model; samples are taken in turns, so that a busy moment hits all.

    Args:
      length: number of tokens in a window.
      settings: settings of the run.
      corpus: text that the windows are of, from its beginning again at its end.
    """
    ready = []
    for name in settings.models:
        found = _compiled(name, length, settings, corpus)
        if isinstance(found, Cost):
            yield found
        else:
            ready.append(found)
    host = jax.local_devices()[0].platform == "cpu"
    for turn in range(settings.cost_repeats):
        for one in ready[:: -1 if turn % 2 else 1]:
            one.samples.append(sample(one.call, (), 1, block_each=host))
    for one in ready:
        yield dataclasses.replace(one.row, samples=tuple(one.samples))


def _compiled(name: str, length: int, settings: Settings, corpus: Corpus) -> _Ready | Cost:
    """A step that is ready to be timed, or why it is not."""
    case, device = case_of(name, length, settings), jax.local_devices()[0]
    vocab_size = corpus.tokenizer.vocab_size
    row = cost_of(Result(case, "ok"))
    try:
        lowered = lower(name, settings, vocab_size, case, [device])
        step = lowered.compile()
    except Exception as error:  # noqa: BLE001 - a model that does not compile is a row; others go on
        return dataclasses.replace(row, status="failed", message=one_line(error))
    need, free = memory.analyze(lowered, step, device.platform), memory.available(device)
    row = dataclasses.replace(row, memory=need.total)
    if free is not None and need.total > free:
        message = f"needs {human(need.total)} of {human(free)} free"
        return dataclasses.replace(row, status="too_large", message=message)
    try:
        return _started(row, step, case, settings, corpus)
    except Exception as error:  # noqa: BLE001 - nor does one that cannot run
        return dataclasses.replace(row, status="failed", message=one_line(error))


def _started(
    row: Cost, step: Callable[..., Any], case: Case, settings: Settings, corpus: Corpus
) -> _Ready:
    """The step and its state, after one call."""
    length, vocab_size = case.length, corpus.tokenizer.vocab_size
    ids = np.take(corpus.split.training, np.arange(case.batch * length), mode="wrap")
    batch = {"tokens": jnp.asarray(as_tokens(ids, NUM_SPECIAL).reshape(case.batch, length))}
    model = build(case.mechanism, settings.sizes(), vocab_size=vocab_size, length=length)
    optimizer = settings.optimizer().build(settings.steps)
    ready = _Ready(row, step, batch, TrainState.create(model, optimizer, batch, 0))
    jax.block_until_ready(ready.call())
    return ready
