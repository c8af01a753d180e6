"""Alignments read from attention weights, and their error beside known ones.

A link (t, s) says that target token t comes of source token s. Row t of the weights is the decoder
step that predicts target token t, having read token t − 1: link (t, argmax_s) is about the word
predicted. Weights may be about the word just read instead; then row t + 1 is token t's: pass
`weights[1:]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import ArrayLike

Link = tuple[int, int]  # target index, source index


def strongest_links(weights: ArrayLike, *, targets: Iterable[int] | None = None) -> set[Link]:
    """Links each target token with the source token of largest weight: (t, argmax_s α_ts).

    Of equal weights the first is taken. A row of zeros, a query that saw nothing, has no link.

    >>> sorted(strongest_links([[0.9, 0.1, 0.0], [0.2, 0.2, 0.6]]))
    [(0, 0), (1, 2)]

    Args:
      weights: attention weights [T, S], without the rows and columns of padding.
      targets: target tokens to link, where others stem from nothing; default: all.

    Raises:
      ValueError: another number of axes, or weights that are negative or not finite.

    Source: Luong 2015 §5.4 ("one-to-one": one link a target token, several may share a source).
    """
    alpha = np.asarray(weights)
    if alpha.ndim != 2:
        raise ValueError(f"weights must be [T, S], got shape {alpha.shape}; give one sentence's")
    if not (np.isfinite(alpha) & (alpha >= 0)).all():
        raise ValueError("weights must be finite and not negative; give them after the softmax")
    if alpha.shape[1] == 0:
        return set()
    rows = range(len(alpha)) if targets is None else targets
    best = alpha.argmax(-1)
    return {(int(t), int(best[t])) for t in rows if alpha[t, best[t]] > 0}


def known_links(sources: Sequence[Iterable[int]]) -> tuple[set[Link], set[Link]]:
    """The sure and the possible links of a target whose tokens' origins are known.

    A token that stems from one source token has a sure link. One that stems from several (the 03
    of `March`) has only possible ones: an aligner that names any of them is right.

    >>> sure, possible = known_links([[4], [0, 1], []])
    >>> sorted(sure), sorted(possible)
    ([(0, 4)], [(0, 4), (1, 0), (1, 1)])

    Args:
      sources: indices of the source tokens that each target token stems from.

    Returns:
      The sure links, and the possible ones, which contain them.
    """
    possible = {(t, int(s)) for t, some in enumerate(map(set, sources)) for s in some}
    sure = {(t, int(s)) for t, some in enumerate(map(set, sources)) if len(some) == 1 for s in some}
    return sure, possible


def alignment_error_rate(
    predicted: Sequence[AbstractSet[Link]],
    sure: Sequence[AbstractSet[Link]],
    possible: Sequence[AbstractSet[Link]] | None = None,
) -> float:
    """AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), counted over all sentences together.

    0 is best: every predicted link is possible and every sure link is found.

    Args:
      predicted: predicted links A of each sentence. Leave out those of target tokens that stem from
        nothing (EOS): like everything that is in A and not in P, they count as errors.
      sure: sure links S of each sentence.
      possible: possible links P ⊇ S of each sentence; default: S.

    Raises:
      ValueError: not as many sentences in one as in another, a sure link that is not possible, or
        no link at all.

    Source: Och and Ney 2003.
    """
    allowed = sure if possible is None else possible
    if not len(predicted) == len(sure) == len(allowed):
        raise ValueError(
            f"predicted links are of {len(predicted)} sentences, sure ones of {len(sure)} and"
            f" possible ones of {len(allowed)}; give each for the same sentences"
        )
    hits = total = 0
    for i, (a, s, p) in enumerate(zip(predicted, sure, allowed, strict=True)):
        if not s <= p:
            raise ValueError(
                f"sentence {i}: sure links {sorted(s - p)} are not possible ones; add them there"
            )
        hits += len(a & s) + len(a & p)
        total += len(a) + len(s)
    if not total:
        raise ValueError("there are no links, predicted or sure; give at least one")
    return 1 - hits / total
