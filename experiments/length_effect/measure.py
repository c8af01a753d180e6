"""How well a trained model writes words that it was not trained on, length by length."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnlab.data.batching import evaluation_batches
from attnlab.data.tokenizers import Numbers
from attnlab.models.seq2seq import Seq2Seq
from attnlab.training.decode import greedy
from attnlab.training.loop import Trained
from experiments.length_effect.settings import TEST, Settings

__all__ = ["Row", "measure", "symbols_right"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One model on words of one length.

    Attributes:
      model: title of the model.
      length: number of symbols in each word.
      examples: number of words.
      exact_match: share of the words that are written without an error.
      symbols_right: mean over the words of 1 − edit distance / length.
      parameters: number of parameters that are trained.
      step: number of the step with the smallest validation loss, whose parameters are tested.
      seconds: time of the training, with compilation and validation.
    """

    model: str
    length: int
    examples: int
    exact_match: float
    symbols_right: float
    parameters: int
    step: int
    seconds: float

    def line(self) -> str:
        """The row as a line for the terminal."""
        return (
            f"{self.model}, {self.length} symbols: {self.exact_match:.1%} without an error, "
            f"{self.symbols_right:.1%} of symbols right"
        )


def measure(title: str, model: Seq2Seq, trained: Trained, settings: Settings) -> Iterator[Row]:
    """Yields a row for each length."""
    tokenizer = Numbers(settings.num_symbols + 1)
    longest = settings.lengths[-1]
    for length in settings.lengths:
        words = settings.words(length, length, TEST, size=settings.examples)
        ((_, batch),) = evaluation_batches(
            words,
            tokenizer,
            tokenizer,
            batch_size=settings.examples,
            pad_to=longest + 1,  # one shape, one compilation
        )
        source = jnp.asarray(batch["source"])
        found = greedy(model, trained.variables, source, max_length=2 * longest + 1)
        wanted = [tokenizer.decode(row).split() for row in batch["target"].tolist()]
        written = [tokenizer.decode(row).split() for row in np.asarray(found.tokens).tolist()]
        pairs = list(zip(written, wanted, strict=True))
        yield Row(
            model=title,
            length=length,
            examples=len(pairs),
            exact_match=float(np.mean([a == b for a, b in pairs])),
            symbols_right=float(np.mean([symbols_right(a, b) for a, b in pairs])),
            parameters=trained.num_parameters,
            step=trained.step,
            seconds=trained.seconds,
        )


def symbols_right(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """1 − edit distance / length of `wanted`, at least 0.

    The edit distance is the fewest insertions, deletions and replacements (Levenshtein 1966), so
    that one symbol left out costs one symbol, not all that follow.

    Cost: O(T·S).

    >>> symbols_right("4 1 9 9".split(), "4 9 9 2".split())
    0.5
    """
    distances = list(range(len(wanted) + 1))
    for i, a in enumerate(found, 1):
        diagonal, distances[0] = distances[0], i
        for j, b in enumerate(wanted, 1):
            best = min(diagonal + (a != b), distances[j] + 1, distances[j - 1] + 1)
            diagonal, distances[j] = distances[j], best
    return max(0.0, 1 - distances[-1] / len(wanted))
