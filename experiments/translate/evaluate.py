"""What a trained model does with the test split: its translations, and where it looks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import tokens as tok
from attnlab.data.batching import evaluation_batches
from attnlab.data.dates import Dates
from attnlab.models.seq2seq import Seq2Seq
from attnlab.tokens import shift_right
from attnlab.training.alignment import Link, alignment_error_rate, known_links, strongest_links
from attnlab.training.decode import beam_search, greedy
from experiments.translate.corpus import Corpus, Tokenizers

__all__ = ["attention_entropy", "attention_weights", "date_alignment_error", "translate"]

BATCH_SIZE = 50


def translate(
    model: Seq2Seq,
    variables: Any,
    corpus: Corpus,
    tokenizers: Tokenizers,
    *,
    beam_size: int,
    length_penalty: float,
    max_length: int,
) -> list[str]:
    """The translations of the test split, in its order.

    Args:
      model: trained model.
      variables: variables of the model.
      corpus: corpus whose test split is translated.
      tokenizers: tokenizers of the model.
      beam_size: width of the beam search; 1 = greedy.
      length_penalty: exponent α of the search's length penalty.
      max_length: number of tokens of the longest translation.
    """
    search: Any = functools.partial(greedy, max_length=max_length)
    if beam_size > 1:
        search = functools.partial(
            beam_search, beam_size=beam_size, length_penalty=length_penalty, max_length=max_length
        )
    found: dict[int, str] = {}
    for indices, batch in _test_batches(corpus, tokenizers):
        tokens = np.asarray(search(model, variables, batch["source"]).tokens)
        for index, row in zip(indices, tokens, strict=False):
            found[int(index)] = tokenizers.target.decode(row.tolist())
    return [found[i] for i in range(len(found))]


@functools.partial(jax.jit, static_argnums=0)
def attention_weights(
    model: Seq2Seq, variables: Any, source: jax.Array, target: jax.Array
) -> jax.Array:
    """The weights [B, T, S] for each token of the target [B, T].

    They are of the step that predicts the token or, if the model's weights follow the input
    (`weights_follow_input`), of the step that reads it. No step of training reads EOS, so its
    weights mean nothing then.
    """
    late = int(model.weights_follow_input)
    tokens = shift_right(jnp.pad(target, ((0, 0), (0, late))))
    memory = model.apply(variables, source, method="encode")
    found: Any = model.apply(variables, memory, tokens, return_weights=True, method="decode")
    return found[1][:, late:]


def date_alignment_error(
    model: Seq2Seq, variables: Any, corpus: Corpus, tokenizers: Tokenizers
) -> float | None:
    """Alignment error rate of the strongest weights, when the model reads the right targets.

    None where no alignments are known, or the model has no attention.
    """
    test = corpus.splits["test"]
    if not isinstance(test, Dates) or not model.attends:
        return None
    found: list[set[Link]] = []
    sure: list[set[Link]] = []
    possible: list[set[Link]] = []
    for indices, batch in _test_batches(corpus, tokenizers):
        weights = np.asarray(attention_weights(model, variables, batch["source"], batch["target"]))
        for row, index in enumerate(indices):
            origins = test.alignment(int(index))
            tokens = len(test[int(index)]["source"])
            linked = [t for t, some in enumerate(origins) if some]
            found.append(strongest_links(weights[row, : len(origins), :tokens], targets=linked))
            of_sure, of_possible = known_links(origins)
            sure.append(of_sure)
            possible.append(of_possible)
    return alignment_error_rate(found, sure, possible)


def attention_entropy(
    model: Seq2Seq, variables: Any, corpus: Corpus, tokenizers: Tokenizers
) -> float | None:
    """Mean entropy of the weights of a token, in nats, when the model reads the right targets.

    It is 0 where each token of a target looks at one of the source, and the log of the source's
    length where it looks at all alike. Weights that do not sum to 1 are divided by their sum; EOS,
    and a token that sees nothing, do not count. None if the model has no attention.
    """
    if not model.attends:
        return None
    total, tokens = 0.0, 0
    for _, batch in _test_batches(corpus, tokenizers):
        weights = np.asarray(attention_weights(model, variables, batch["source"], batch["target"]))
        sums = weights.sum(-1, keepdims=True)
        looks = (batch["target"] != tok.PAD) & (batch["target"] != tok.EOS) & (sums[..., 0] > 0)
        shares = (weights / np.where(sums > 0, sums, 1))[looks]
        total -= float(np.sum(shares * np.log(np.where(shares > 0, shares, 1))))
        tokens += len(shares)
    return total / tokens


def _test_batches(
    corpus: Corpus, tokenizers: Tokenizers
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    return evaluation_batches(corpus.splits["test"], *tokenizers, batch_size=BATCH_SIZE)
