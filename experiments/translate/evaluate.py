"""A trained model on a split: its translations, and on the test split where it looks."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from attnlab.core import tokens as tok
from attnlab.core.tokens import lengths, shift_right
from attnlab.data.batching import evaluation_batches
from attnlab.data.dates import Dates
from attnlab.models.seq2seq import Seq2Seq
from attnlab.runs import processes
from attnlab.training.alignment import Link, alignment_error_rate, known_links, strongest_links
from attnlab.training.decode import beam_search, greedy
from attnlab.training.evaluation_figures import Alignment
from experiments.translate.corpus import Corpus, Tokenizers

BATCH_SIZE = 50
Batch = dict[str, np.ndarray]  # "source" and "target", ids [B, S] and [B, T]
T = TypeVar("T")


def translate(
    model: Seq2Seq,
    variables: Any,
    corpus: Corpus,
    tokenizers: Tokenizers,
    *,
    split: str,
    beam_size: int,
    length_penalty: float,
    max_length: int,
) -> list[str]:
    """The translations of a split, in its order, of at most `max_length` tokens.

    A beam of 1 is greedy; `length_penalty` is the exponent α.
    """
    search: Any = functools.partial(greedy, max_length=max_length)
    if beam_size > 1:
        search = functools.partial(
            beam_search, beam_size=beam_size, length_penalty=length_penalty, max_length=max_length
        )

    def translate_batch(_: np.ndarray, batch: Batch) -> list[str]:
        tokens = np.asarray(search(model, variables, batch["source"]).tokens)
        return [tokenizers.target.decode(row.tolist()) for row in tokens]

    return _of_each(corpus, tokenizers, translate_batch, split)


@functools.partial(jax.jit, static_argnums=0)
def attention_weights(
    model: Seq2Seq, variables: Any, source: jax.Array, target: jax.Array
) -> jax.Array:
    """The weights [B, T, S] of the steps that predict the tokens of the target [B, T]."""
    memory = model.apply(variables, source, method="encode")
    tokens = shift_right(target)
    outputs: Any = model.apply(variables, memory, tokens, return_weights=True, method="decode")
    return outputs[1]


def alignments(
    model: Seq2Seq, variables: Any, corpus: Corpus, tokenizers: Tokenizers
) -> list[Alignment]:
    """The weights on the pairs that are drawn; empty for a model without attention."""
    if not model.attends or not corpus.drawn:
        return []
    pairs = [{"source": one.source, "target": one.target} for one in corpus.drawn]
    ((order, batch),) = evaluation_batches(pairs, *tokenizers, batch_size=len(pairs))
    weights = np.asarray(attention_weights(model, variables, batch["source"], batch["target"]))
    made = {}
    for row, place in enumerate(order):
        source, target = batch["source"][row], batch["target"][row]
        s, t = int(lengths(source)), int(lengths(target))
        made[int(place)] = Alignment(
            tokenizers.source.pieces(source[:s]),
            tokenizers.target.pieces(target[:t]),
            weights[row, :t, :s],
            known=corpus.drawn[place].known,
        )
    return [made[place] for place in range(len(pairs))]


def date_alignment_error(
    model: Seq2Seq, variables: Any, corpus: Corpus, tokenizers: Tokenizers
) -> float | None:
    """Alignment error rate of the strongest weights, when the model reads the right targets.

    None where no alignments are known, or the model has no attention.
    """
    test = corpus.splits["test"]
    if not isinstance(test, Dates) or not model.attends:
        return None

    def link(indices: np.ndarray, batch: Batch) -> list[list[Link]]:
        weights = np.asarray(attention_weights(model, variables, batch["source"], batch["target"]))
        found = []
        for row, index in enumerate(indices):
            origins = test.alignment(int(index))
            tokens = len(test[int(index)]["source"])  # a token is a character
            targets = [t for t, some in enumerate(origins) if some]
            links = strongest_links(weights[row, : len(origins), :tokens], targets=targets)
            found.append(sorted((int(t), int(s)) for t, s in links))  # JSON has no sets
        return found

    found = [{(t, s) for t, s in one} for one in _of_each(corpus, tokenizers, link)]
    known = [known_links(test.alignment(i)) for i in range(len(test))]
    sure = [links for links, _ in known]
    possible = [links for _, links in known]
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

    def entropies(_: np.ndarray, batch: Batch) -> list[tuple[float, int]]:
        """Of each row the sum of the entropies of its tokens, and how many they are."""
        weights = np.asarray(attention_weights(model, variables, batch["source"], batch["target"]))
        sums = weights.sum(-1, keepdims=True)  # [B, T, S] -> [B, T, 1]
        looks = (batch["target"] != tok.PAD) & (batch["target"] != tok.EOS) & (sums[..., 0] != 0)
        # looks [B, T] leaves out what does not count; shares [B, T, S] sum to 1 or are 0.
        shares = np.where(looks[..., None], weights / np.where(sums != 0, sums, 1), 0)
        of_rows = -np.sum(shares * np.log(np.where(shares > 0, shares, 1)), axis=(1, 2))
        return list(zip(of_rows.tolist(), looks.sum(1).tolist(), strict=True))

    totals, tokens = zip(*_of_each(corpus, tokenizers, entropies), strict=True)
    return sum(totals) / sum(tokens)


def _of_each(
    corpus: Corpus,
    tokenizers: Tokenizers,
    of_batch: Callable[[np.ndarray, Batch], Sequence[T]],
    split: str = "test",
) -> list[T]:
    """What a function makes of each example of a split, in the order of the split.

    Of several processes each takes some of the batches: what it makes must be of JSON.

    `of_batch` makes of the indices [n] and a batch a value for each row; those behind the first n
    do not count.
    """
    batches = evaluation_batches(corpus.splits[split], *tokenizers, batch_size=BATCH_SIZE)
    found: list[tuple[int, T]] = []
    for indices, batch in itertools.islice(batches, processes.index(), None, processes.count()):
        found += zip(indices.tolist(), of_batch(indices, batch), strict=False)
    every = itertools.chain.from_iterable(processes.gather(found))
    return [one for _, one in sorted(every, key=lambda numbered: numbered[0])]
