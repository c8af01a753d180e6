"""Pairs of segments with masked tokens, as BERT is pre-trained on (Devlin et al. 2018, §3.1, A.1).

    tokens  [CLS] a [MASK] of one segment [SEP] and a word of another [SEP]
    types     0   0    0   0   0     0      0    1  1   1   1     1     1

[CLS] is BOS, [SEP] is EOS, and [MASK] the id behind the tokenizer's. Pairs and masks are drawn as
the data is read, by the number of the example in the endless order, so that they differ from epoch
to epoch and neither a resumed run nor another number of processes changes them.

Beside the released code: documents need not be long (a chunk is at least two lines). A segment that
does not follow is the second one of another document's chunk, of about as many tokens, and the end
of its document where that which follows is: so neither lengths nor ends tell the two apart. A
random word is any id but PAD, which here says where a row ends.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np

from attnlab.core.checks import require
from attnlab.core.tokens import BOS, EOS, PAD
from attnlab.data.batching import filled_batches
from attnlab.data.parts import WHOLE, Part
from attnlab.runs.errors import Invalid

__all__ = [
    "MaskedPairs",
    "Masking",
    "fixed_batches",
    "join_segments",
    "masked_batches",
    "statistics",
]

Row = dict[str, Any]

_ENDS = 2**40  # more than any segment has tokens


def join_segments(a: np.ndarray, b: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """[CLS] a [SEP] b [SEP], or [CLS] a [SEP], and the segment of each token, 0 or 1; int32."""
    parts = [np.array([BOS, *a, EOS], np.int32)]
    if b is not None:
        parts.append(np.array([*b, EOS], np.int32))
    types = [np.full(len(part), i, np.int32) for i, part in enumerate(parts)]
    return np.concatenate(parts), np.concatenate(types)


@dataclasses.dataclass(frozen=True)
class Masking:
    """What becomes of a token that is to be predicted.

    Attributes:
      mask: percent of them that [MASK] replaces.
      same: percent that stays.
      random: percent that a random word replaces.
      share: part of all tokens that is to be predicted.

    Raises:
      ValueError: the percents do not make 100, or the share is not in (0, 1].
    """

    mask: int = 80
    same: int = 10
    random: int = 10
    share: float = 0.15

    def __post_init__(self) -> None:
        percents = (self.mask, self.same, self.random)
        require(
            sum(percents) == 100 and min(percents) >= 0,
            f"mask, same and random must be percents that make 100; got {percents}",
        )
        require(0 < self.share <= 1, f"share must be in (0, 1]; got {self.share}")


@dataclasses.dataclass(frozen=True)
class MaskedPairs:
    """Chunks of documents, each a pair of segments when it is drawn.

    Attributes:
      documents: token ids of each line of each document.
      vocab_size: number of ids of the tokenizer, which is the id of [MASK]; the model has one more.
      max_length: number of tokens of a row.
      masking: replacement of the tokens that are to be predicted.
      max_predictions: number of tokens of a row that are predicted at most; None = all of the
        masking's share.

    Raises:
      ValueError: max_length is less than 5, or max_predictions less than 1.
      Invalid: fewer than two documents have two lines, or a line has no tokens.
    """

    documents: Sequence[Sequence[np.ndarray]]
    vocab_size: int
    max_length: int
    masking: Masking = Masking()
    max_predictions: int | None = None

    def __post_init__(self) -> None:
        require(self.max_length >= 5, f"a pair has 5 tokens at least; got {self.max_length}")
        most = self.max_predictions
        require(
            most is None or most >= 1, f"max_predictions must be at least 1, or None; got {most}"
        )
        for number, lines in enumerate(self.documents):
            if not all(map(len, lines)):
                raise Invalid(
                    f"a line has a token at least; got none of a line of document {number} (leave "
                    "the line out)"
                )
        usable = len({document for document, _, _ in self.chunks})
        if usable < 2:
            raise Invalid(
                f"pre-training needs two documents of two lines; got {len(self.documents)} "
                f"documents, {usable} with two lines (blank lines separate documents)"
            )

    @property
    def num_masked(self) -> int:
        """How many positions to predict each row has room for, M."""
        wanted = max(1, round(self.masking.share * self.max_length))
        return min(wanted, self.max_predictions or wanted)

    @functools.cached_property
    def chunks(self) -> list[tuple[int, int, int]]:
        """(document, first line, line behind the last): two lines at least, and as fill a row."""
        chunks = []
        for number, lines in enumerate(self.documents):
            start = length = 0
            for end, line in enumerate(lines, 1):
                length += len(line)
                full = length >= self.max_length - 3
                if full and end - start >= 2 and len(lines) - end >= 2:
                    chunks.append((number, start, end))
                    start, length = end, 0
            if len(lines) - start >= 2:
                chunks.append((number, start, len(lines)))
        return chunks

    @functools.cached_property
    def _segments(self) -> np.ndarray:
        """(rank, document, first line, line behind the last) of all second segments, by rank.

        The rank is the number of tokens. Segments that end their document come behind all others:
        those of a row that is not full always do.
        """
        found = []
        for document, start, stop in self.chunks:
            rank = _ENDS if stop == len(self.documents[document]) else 0
            for first in range(stop - 1, start, -1):
                rank += len(self.documents[document][first])
                found.append((rank, document, first, stop))
        return np.array(sorted(found))

    def __len__(self) -> int:
        return len(self.chunks)

    def draw(self, index: int, rng: np.random.Generator) -> Row:
        """An example of a chunk: "tokens", "types" [T], "masked", "target" [M] and "next"."""
        document, start, stop = self.chunks[index]
        lines = self.documents[document]
        middle = int(rng.integers(start + 1, stop))
        follows = rng.random() < 0.5
        a = np.concatenate(lines[start:middle])
        b = np.concatenate(lines[middle:stop])
        if not follows:
            rank = len(b) + (_ENDS if stop == len(lines) else 0)
            b = self._of_another(document, rank, rng)
        tokens, types = join_segments(*cut(a, b, self.max_length - 3, rng))
        return self._masked(tokens, types, rng) | {"next": np.int32(follows)}

    def _of_another(self, document: int, rank: int, rng: np.random.Generator) -> np.ndarray:
        """A second segment of another document's chunk: one of the nearest in rank."""
        ranks = self._segments[:, 0]
        first_equal = np.searchsorted(ranks, rank)
        behind_equal = np.searchsorted(ranks, rank, side="right")
        place = int(rng.integers(first_equal, behind_equal + 1))
        reach = 4
        near = self._segments[:0]
        while not len(near):
            near = self._segments[max(0, place - reach) : place + reach]
            near = near[near[:, 1] != document]
            reach *= 2
        _, other, first, stop = rng.choice(near)
        return np.concatenate(self.documents[other][first:stop])

    def _masked(self, tokens: np.ndarray, types: np.ndarray, rng: np.random.Generator) -> Row:
        words = np.flatnonzero((tokens != BOS) & (tokens != EOS))
        count = min(self.num_masked, max(1, round(self.masking.share * len(tokens))), len(words))
        chosen = np.sort(rng.permutation(words)[:count])
        row = self.empty()
        row["masked"][:count], row["target"][:count] = chosen, tokens[chosen]
        kind = rng.random(count) * 100
        others = rng.integers(PAD + 1, self.vocab_size + 1, count)  # with [MASK]
        tokens = tokens.copy()
        tokens[chosen] = np.where(kind < self.masking.mask, self.vocab_size, tokens[chosen])
        is_random = kind >= 100 - self.masking.random
        tokens[chosen[is_random]] = others[is_random]
        row["tokens"][: len(tokens)], row["types"][: len(types)] = tokens, types
        return row

    def empty(self) -> Row:
        """A row that only fills a batch, with -1 as "next"."""
        made: Row = {name: np.zeros(self.max_length, np.int32) for name in ("tokens", "types")}
        made |= {name: np.zeros(self.num_masked, np.int32) for name in ("masked", "target")}
        return made | {"next": np.int32(-1)}


def cut(
    a: np.ndarray, b: np.ndarray, most: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Takes tokens off the longer segment, at either end, until both together fit."""
    while len(a) + len(b) > most:
        at_start = rng.random() < 0.5
        if len(a) > len(b):
            a = a[1:] if at_start else a[:-1]
        else:
            b = b[1:] if at_start else b[:-1]
    return a, b


def masked_batches(
    pairs: MaskedPairs, *, batch_size: int, seed: int, part: Part = WHOLE
) -> grain.IterDataset:
    """Endless batches, shuffled anew in every epoch, with a state as `train_batches` has it.

    Args:
      pairs: chunks to draw from.
      batch_size: number of pairs in a global batch.
      seed: seed of the order, the pairs and the masks.
      part: part of each batch that this process computes.

    Returns:
      A dataset of {"tokens", "types": [B, T], "masked", "target": [B, M], "next": [B]}, int32,
      B = batch_size / part.count; PAD fills rows, and "target" where fewer are masked.
    """
    part.require_divides(batch_size)
    order = grain.MapDataset.range(len(pairs)).seed(seed).shuffle().repeat()
    rows = order.random_map(pairs.draw).batch(batch_size)
    return rows.map(part.of).to_iter_dataset(grain.ReadOptions(num_threads=0))


def fixed_batches(pairs: MaskedPairs, *, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Each chunk once, always as the same pair with the same masks; the last batch is filled.

    Args:
      pairs: chunks to draw from.
      batch_size: number of rows of every batch.
    """
    rows = [pairs.draw(i, np.random.default_rng((0, i))) for i in range(len(pairs))]
    return filled_batches(rows, pairs.empty(), batch_size)


def statistics(batches: Iterable[Mapping[str, np.ndarray]], mask_id: int) -> dict[str, float]:
    """Shares that were drawn: "predicted" of all tokens; "mask", "same", "random"; "next".

    A random word that is the same, or [MASK], by chance counts as that.

    Args:
      batches: batches of `masked_batches`.
      mask_id: id of [MASK].
    """
    counts = dict.fromkeys(("tokens", "predicted", "mask", "same", "pairs", "next"), 0)
    for batch in batches:
        real = batch["target"] != PAD
        now = np.take_along_axis(batch["tokens"], batch["masked"], axis=1)[real]
        counts["tokens"] += int((batch["tokens"] != PAD).sum())
        counts["predicted"] += int(real.sum())
        counts["mask"] += int((now == mask_id).sum())
        counts["same"] += int((now == batch["target"][real]).sum())
        counts["pairs"] += int((batch["next"] >= 0).sum())
        counts["next"] += int((batch["next"] == 1).sum())
    shares = {name: counts[name] / counts["predicted"] for name in ("mask", "same")}
    return {
        "predicted": counts["predicted"] / counts["tokens"],
        **shares,
        "random": 1 - sum(shares.values()),
        "next": counts["next"] / counts["pairs"],
    }
