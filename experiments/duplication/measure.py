"""How well a trained model writes the word again, with one attention or another."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.models.transformer import TransformerLM
from attnlab.training.loop import Trained
from attnlab.training.objective import token_sums
from experiments.duplication.attention import Hashing
from experiments.duplication.plan import SINUSOIDS, Training, evaluations, trained_name
from experiments.duplication.settings import Settings
from experiments.duplication.training import TEST, batches, build

__all__ = ["DRAW", "Key", "Row", "measure"]

DRAW = 16  # examples that are hashed with the same rotations
Key = tuple[int, str, Hashing, int, str, str, Hashing]


@dataclasses.dataclass(frozen=True)
class Row:
    """One model, evaluated with one attention.

    Attributes:
      word: number of symbols in a word.
      attention: name of the attention that it was trained with.
      hashing: choices that the literature leaves open, as it was trained.
      seed: seed of the training.
      evaluated: name of the attention that it is evaluated with.
      evaluated_hashing: choices that it is evaluated with.
      accuracy: share of the second half's symbols that no other is likelier than.
      nll: mean −log p of the second half's symbols, in nats.
      symbols: number of symbols that are predicted.
      draws: number of draws of the rotations, each for as many of the examples.
      parameters: number of parameters that are trained.
      step: number of the step with the smallest validation loss, whose parameters are evaluated.
      seconds: time of the training, with compilation and validation.
      positions: name of how its learned positions began.
    """

    word: int
    attention: str
    hashing: Hashing
    seed: int
    evaluated: str
    evaluated_hashing: Hashing
    accuracy: float
    nll: float
    symbols: int
    draws: int
    parameters: int
    step: int
    seconds: float
    positions: str = SINUSOIDS

    @property
    def trained(self) -> str:
        """What tables call the training, beside its hashing."""
        return trained_name(self.attention, self.positions)

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        trained = self.word, self.attention, self.hashing, self.seed, self.positions
        return *trained, self.evaluated, self.evaluated_hashing


def keys(training: Training, settings: Settings) -> list[Key]:
    """The keys of a training's rows."""
    name, hashing = training.attention, training.hashing
    trained = training.size.word, name, hashing, training.seed, training.positions
    return [(*trained, one.attention, one.hashing) for one in evaluations(training, settings)]


def measure(training: Training, trained: Trained, settings: Settings) -> Iterator[Row]:
    """Yields a row for each attention to evaluate with, all on the same examples."""
    size, num_symbols = training.size, settings.recipe().num_symbols
    examples = batches(size, num_symbols, training.seed, TEST, batch_size=DRAW)
    draws = settings.examples // DRAW
    test = list(itertools.islice(examples, draws))
    for one in evaluations(training, settings):
        model = build(size, num_symbols, one.attention, one.hashing)
        found = [
            jax.device_get(sums(model, trained.variables, batch, jax.random.key(i)))
            for i, batch in enumerate(test)
        ]
        symbols = size.word * settings.examples
        yield Row(
            word=size.word,
            attention=training.attention,
            hashing=training.hashing,
            seed=training.seed,
            evaluated=one.attention,
            evaluated_hashing=one.hashing,
            accuracy=sum(float(x["correct"]) for x in found) / symbols,
            nll=sum(float(x["nll"]) for x in found) / symbols,
            symbols=symbols,
            draws=draws,
            parameters=trained.num_parameters,
            step=trained.step,
            seconds=trained.seconds,
            positions=training.positions,
        )


@functools.partial(jax.jit, static_argnums=0)  # compiled once for all models of a shape
def sums(
    model: TransformerLM, variables: Any, batch: dict[str, Any], key: jax.Array
) -> dict[str, jax.Array]:
    """The sums of `token_sums` over the second half."""
    tokens = jnp.asarray(batch["tokens"])
    logits: Any = model.apply(variables, tokens, deterministic=True, rngs={"hash": key})
    return token_sums(logits, tokens, weights=batch["weights"])
