"""Does hashing find what is far? A word, a thousand tokens of noise, and the word again.

    w_1 … w_n  x_1 … x_{d−n}  w_1 … w_n        each symbol stands d tokens behind its first

Only the second word is to be predicted, and nothing in between says a word of it. One layer, whose
attention must find the token that stands d − 1 places before the one that it reads: a window of
fewer tokens than that can only guess.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data.tasks import ENDLESS
from attnlab.models.transformer import TransformerLM
from attnlab.tokens import NUM_SPECIAL, PAD
from attnlab.training.loop import LoopSettings, Task
from attnlab.training.objective import Batch, TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import parallel_over
from attnlab.training.run import run_training
from attnlab.training.step import make_validation_step
from experiments.language_model.models import ablated, build, streams
from experiments.language_model.rows import Copied
from experiments.language_model.settings import Settings

__all__ = ["learned"]

WORD, SYMBOLS, BATCH = 32, 32, 8
HELD_OUT = 4  # batches to validate and to test on


class OfTheTarget(TokenCrossEntropy):
    """Cross entropy of the target's tokens that are not PAD; the model reads the tokens alone."""

    def inputs(self, batch: Batch) -> Batch:
        """The tokens."""
        return {"tokens": batch["tokens"]}


def learned(name: str, settings: Settings, parent: Path) -> Iterator[Copied]:
    """Trains a model on the task and yields how much of new words it copies.

    Args:
      name: name of the model.
      settings: settings of the run, with the distance and the number of steps.
      parent: folder of the run.
    """
    distance, seed = settings.copy_distance, settings.seeds[0]
    model = copier(name, settings)
    found = run_training(
        Task(
            model,
            OfTheTarget(),
            words(distance, seed).to_iter_dataset(grain.ReadOptions(num_threads=0)),
            lambda: held_out(distance, seed + 1),
            {"task": "copy", "model": name, "distance": distance, "steps": settings.copy_steps}
            | {"seed": seed, "sizes": dataclasses.asdict(settings.sizes())},
            streams=streams(name),
        ),
        settings=LoopSettings(
            settings.copy_steps, validate_every=max(1, settings.copy_steps // 4), seed=seed
        ),
        optimizer=OptimizerSettings(
            learning_rate=3e-3,
            schedule="linear",
            warmup_steps=min(100, settings.copy_steps // 2),
            b2=0.98,
            clip_norm=1.0,
        ),
        parallel=parallel_over("jit", jax.local_devices()[:1]),
        folder=parent / f"copy-{name}",
    )
    as_it_is, zeroed = (
        accuracy(model, variables, distance, seed + 2)
        for variables in (found.variables, ablated(found.variables))
    )
    yield Copied(name, distance, as_it_is, 1 / SYMBOLS, zeroed, settings.copy_steps, found.seconds)


def copier(name: str, settings: Settings) -> TransformerLM:
    """A model of one layer with learned positions, for words of the task."""
    sizes = dataclasses.replace(settings.sizes(), num_layers=1, positions="learned")
    length = settings.copy_distance + WORD
    return build(name, sizes, vocab_size=NUM_SPECIAL + SYMBOLS, length=length)


def words(distance: int, seed: int) -> grain.MapDataset:
    """Endless batches {"tokens", "target"}, int32 [BATCH, distance + WORD]."""

    def draw(_: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        tokens = rng.integers(NUM_SPECIAL, NUM_SPECIAL + SYMBOLS, distance, np.int32)
        tokens = np.concatenate([tokens, tokens[:WORD]])
        target = np.where(np.arange(tokens.size) < distance, PAD, tokens).astype(np.int32)
        return {"tokens": tokens, "target": target}

    return grain.MapDataset.range(ENDLESS).seed(seed).random_map(draw).batch(BATCH)


def held_out(distance: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Some batches, the same each time."""
    batches = words(distance, seed)
    return [batches[i] for i in range(HELD_OUT)]


def accuracy(model: TransformerLM, variables: Any, distance: int, seed: int) -> float:
    """The share of the copied symbols that no other is likelier than."""
    step = jax.jit(make_validation_step(model, OfTheTarget()))
    found = [step(variables, batch) for batch in held_out(distance, seed)]
    correct, tokens = (
        jnp.stack(x).sum()
        for x in zip(*((one.sums["correct"], one.counts["tokens"]) for one in found), strict=True)
    )
    return float(correct / tokens)
