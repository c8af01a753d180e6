"""Does hashing find what is far? A word, a thousand tokens of noise, and the word again.

    w_1 … w_n   noise … noise   1 w_1 2 w_2 … n w_n

Each w_i is an id of its own, one of `SYMBOLS` that may stand at place i, and before its copy stands
the place's number. So one layer can find it by what it is, not by where it is: it is to learn that
the query of a number hashes as the keys of its place's symbols. Only the copies are predicted, and
nothing but the word itself says what they are: a window that does not reach it can only guess.
"""

import dataclasses
from typing import Any

import grain
import numpy as np

from attnlab.core.tokens import NUM_SPECIAL, PAD
from attnlab.data.parts import WHOLE, Part
from attnlab.data.tasks import ENDLESS
from attnlab.models.transformer import LanguageModel
from attnlab.training.curve import means_of
from attnlab.training.loop import Task
from attnlab.training.objective import Batch, TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from experiments.language_model.models import Sizes, build, streams
from experiments.language_model.settings import COPY_LAYERS, Settings

WORD, SYMBOLS, NOISE = 16, 16, 32  # places of a word, symbols of a place, ids of noise
FIRST_NUMBER = NUM_SPECIAL + WORD * SYMBOLS
FIRST_NOISE = FIRST_NUMBER + WORD
BATCH = 8
HELD_OUT = 8  # batches to validate and to test on


class OfTheTarget(TokenCrossEntropy):
    """Cross entropy of the target's tokens that are not PAD; the model reads the tokens alone."""

    def inputs(self, batch: Batch) -> Batch:
        """The tokens."""
        return {"tokens": batch["tokens"]}


def task(name: str, settings: Settings, seed: int, part: Part = WHOLE) -> Task[LanguageModel]:
    """The model of a name, and words for it to copy; those to validate on are of seed + 1."""
    distance = settings.copy_distance
    return Task(
        model(name, settings),
        OfTheTarget(),
        words(distance, seed).map(part.of).to_iter_dataset(grain.ReadOptions(num_threads=0)),
        lambda: map(part.of, held_out(distance, seed + 1)),
        streams=streams(name),
    )


def optimizer(steps: int) -> OptimizerSettings:
    """Adam, whatever the run's other models are trained with."""
    return OptimizerSettings(
        learning_rate=3e-3,
        schedule="linear",
        warmup_steps=min(50, steps // 2),
        b2=0.98,
        clip_norm=1.0,
    )


def model(name: str, settings: Settings) -> LanguageModel:
    """The model of a name, for words at the distance of the settings."""
    length = settings.copy_distance + 2 * WORD
    return build(name, sizes_of(settings), vocab_size=FIRST_NOISE + NOISE, length=length)


def sizes_of(settings: Settings) -> Sizes:
    """One small layer, with the chunks of the run's models."""
    return dataclasses.replace(
        settings.sizes(),
        num_layers=COPY_LAYERS,
        num_heads=2,
        head_dim=64,
        hidden=512,
        positions="sinusoid",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )


def words(distance: int, seed: int) -> grain.MapDataset:
    """Endless batches {"tokens", "target"}, int32 [BATCH, distance + 2 · WORD].

    `distance` is from the beginning of the word to the first number, in tokens.
    """
    places = np.arange(WORD)

    def draw(_: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        word = NUM_SPECIAL + places * SYMBOLS + rng.integers(SYMBOLS, size=WORD)
        noise = FIRST_NOISE + rng.integers(NOISE, size=distance - WORD)
        copy = np.stack([FIRST_NUMBER + places, word], axis=1).ravel()
        tokens = np.concatenate([word, noise, copy]).astype(np.int32)
        target = np.full_like(tokens, PAD)
        target[distance + 1 :: 2] = word
        return {"tokens": tokens, "target": target}

    return grain.MapDataset.range(ENDLESS).seed(seed).random_map(draw).batch(BATCH)


def held_out(distance: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Some batches, the same each time."""
    batches = words(distance, seed)
    return [batches[i] for i in range(HELD_OUT)]


def accuracy(model: LanguageModel, variables: Any, distance: int, seed: int) -> float:
    """The share of the copies that no other symbol is likelier than."""
    return means_of(model, OfTheTarget(), variables, held_out(distance, seed))["accuracy"]
