"""The training of one model, its test, and what a step of it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attnlab.attentions import Surroundings, pattern, streams
from attnlab.bench import memory
from attnlab.bench.training_programs import lower_step
from attnlab.models.classifier import EncoderClassifier
from attnlab.models.transformer import TransformerConfig
from attnlab.ops.routes import LSH
from attnlab.training.classes import ClassCrossEntropy
from attnlab.training.loop import Task
from attnlab.training.parallel import ShardedJit
from experiments.long_range.examples import Examples, batches, fixed_batches
from experiments.long_range.settings import Cell, Settings

__all__ = ["accuracy", "build", "memory_of_step", "task"]

# Settings that must be the same to go on from a checkpoint.
_IDENTITY = (
    "pooling",
    "length",
    "num_layers",
    "width",
    "hidden",
    "num_heads",
    "chunk_size",
    "dropout_rate",
    "steps",
    "batch_size",
    "learning_rate",
    "warmup_steps",
    "weight_decay",
    "validate_every",
    "log_every",
    "accumulate",
    "dtype",
)


def build(cell: Cell, settings: Settings, examples: Examples) -> EncoderClassifier:
    """The classifier with the cell's attention."""
    config = TransformerConfig(
        examples.vocab_size,
        num_layers=settings.num_layers,
        width=settings.width,
        hidden=settings.hidden,
        num_heads=settings.num_heads,
        pre_norm=True,
        activation=nn.gelu,
        dropout_rate=settings.dropout_rate,
        dtype=jnp.dtype(settings.dtype),
    )
    around = Surroundings(length=settings.length, lsh=LSH(chunk_size=settings.chunk_size))
    attention = pattern(cell.mechanism, config, around)
    return EncoderClassifier(config, examples.num_classes, settings.pooling, attention)


def task(cell: Cell, settings: Settings, examples: Examples) -> Task[EncoderClassifier]:
    """Model, objective and examples of a training."""
    validation = list(fixed_batches(examples, "validation", settings.batch_size))
    kept = settings.as_json()
    identity = {
        **cell._asdict(),
        **{name: kept[name] for name in _IDENTITY},
        "examples": examples.digest,
    }
    return Task(
        build(cell, settings, examples),
        ClassCrossEntropy(),
        batches(examples, cell.seed, settings.batch_size),
        lambda: validation,
        identity,
        streams=streams(cell.mechanism),
    )


def accuracy(
    model: EncoderClassifier, variables: Any, found: Iterable[Mapping[str, np.ndarray]]
) -> float:
    """The share of examples whose label no other class is likelier than."""
    objective = ClassCrossEntropy()

    @jax.jit
    def of_batch(variables, batch):
        outputs = model.apply(variables, batch["tokens"], deterministic=True)
        assert isinstance(outputs, jax.Array)
        return objective.sums(outputs, batch)["correct"], objective.counts(batch)["labels"]

    sums = np.sum([jax.device_get(of_batch(variables, dict(one))) for one in found], axis=0)
    return float(sums[0] / sums[1])


def memory_of_step(cell: Cell, settings: Settings, examples: Examples) -> int:
    """Bytes that a training step needs on one device, by the compiler's count."""
    batch = {
        name: jax.ShapeDtypeStruct((settings.batch_size, *x.shape), x.dtype)
        for name, x in examples.encode(examples.splits(cell.seed)["test"][0]).items()
    }
    device = jax.local_devices()[0]
    lowered = lower_step(
        build(cell, settings, examples),
        ClassCrossEntropy(),
        settings.optimizer(),
        batch,
        ShardedJit([device]),
        streams=streams(cell.mechanism),
    )
    return memory.analyze(lowered, lowered.compile(), device.platform).total
