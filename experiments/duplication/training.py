"""The model of the duplication task, its endless examples, and its training."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import grain
import numpy as np

from attnlab.data.tasks import ENDLESS
from attnlab.models.transformer import TransformerConfig, TransformerLM
from attnlab.positions import sinusoid_init
from attnlab.training.loop import Task
from attnlab.training.objective import TokenCrossEntropy
from experiments.duplication import attention
from experiments.duplication.attention import Hashing
from experiments.duplication.plan import SINUSOIDS, Training
from experiments.duplication.settings import Settings, Size

__all__ = ["TEST", "batches", "build", "task"]

TRAINING, VALIDATION, TEST = range(3)  # added to the seed of the words
VALIDATION_BATCHES = 4


def build(
    size: Size, num_symbols: int, name: str, hashing: Hashing, positions: str = SINUSOIDS
) -> TransformerLM:
    """The model, as far as published: 1 layer, width 256, 4 heads of 64, nothing shared.

    395,264 parameters and 256 for each position; the released model has 128 more, the biases of its
    softmax. None depends on the attention.

    Args:
      size: task.
      num_symbols: number of different symbols.
      name: name of the attention.
      hashing: choices that the literature leaves open.
      positions: name of how the table of learned positions begins.
    """
    config = TransformerConfig(
        max(128, num_symbols + 1),  # the released model has 128, and 126 symbols
        num_layers=1,
        width=256,
        hidden=256,
        num_heads=4,
        share_embeddings=False,
        positions="learned",
        position_init=sinusoid_init if positions == SINUSOIDS else nn.initializers.normal(1.0),
        max_length=size.length,
        pre_norm=True,
        dropout_rate=0.0,
    )
    told = attention.options(name, hashing, length=size.length, chunk_size=size.chunk_size)
    return TransformerLM(config, config.attention(**told))


def batches(
    size: Size, num_symbols: int, seed: int, part: int, *, batch_size: int
) -> grain.IterDataset:
    """Endless batches of `0w0w`; an example depends on the seed, the part and its index alone.

    Args:
      size: task.
      num_symbols: number of different symbols, which are uniform.
      seed: seed of the words.
      part: TRAINING, VALIDATION or TEST, which have other words.
      batch_size: number of examples in a batch.

    Returns:
      A dataset of {"tokens" [B, L] int32, "weights" [B, L] float32}: 1 for the second word.
    """
    weights = np.zeros(size.length, np.float32)
    weights[size.word + 2 :] = 1

    def draw(_: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        half = np.zeros(size.word + 1, np.int32)
        half[1:] = rng.integers(1, num_symbols + 1, size.word)
        return {"tokens": np.concatenate([half, half]), "weights": weights}

    order = grain.MapDataset.range(ENDLESS).seed(3 * seed + part).random_map(draw)
    return order.batch(batch_size).to_iter_dataset(grain.ReadOptions(num_threads=0))


def task(training: Training, settings: Settings) -> Task[TransformerLM]:
    """The training of one model: model, loss and words."""
    size, recipe = training.size, settings.recipe()

    def examples(part: int) -> grain.IterDataset:
        return batches(size, recipe.num_symbols, training.seed, part, batch_size=size.batch_size)

    validation: Callable[[], Any] = lambda: itertools.islice(  # noqa: E731
        examples(VALIDATION), VALIDATION_BATCHES
    )
    return Task(
        build(size, recipe.num_symbols, training.attention, training.hashing, training.positions),
        TokenCrossEntropy(),
        examples(TRAINING),
        validation,
        {
            "model": training.folder,
            "word": size.word,
            "chunk_size": size.chunk_size,
            "num_symbols": recipe.num_symbols,
            "steps": size.steps,
            "batch_size": size.batch_size,
            "optimizer": dataclasses.asdict(settings.optimizer(size.steps)),
            "validate_every": recipe.validate_every,
            "log_every": settings.log_every,
            "accumulate": settings.accumulate,
        },
        streams=("hash",),
    )
