"""Batches for training, endless and resumable, and for evaluation, each example once.

Every process computes the same global batches and takes its part of each, rows that follow one
another. So the order of the data, the shapes of the batches and the state of the iterator do not
depend on how many processes there are, and a run can go on with another number of them.

Bucketing (Bahdanau 2014, App. B.2) sorts a pool of pairs by length and pads to few shapes; packing
puts several sequences into a row and tells them apart by segment ids and positions.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np

from attnlab.core.checks import as_size, require
from attnlab.core.tokens import PAD
from attnlab.data.encoding import Encoded, EncodePair, Example, Source
from attnlab.data.parts import WHOLE, Part
from attnlab.data.pools import Ahead, Batches, Fill, Reader
from attnlab.data.tokenizers import Tokenizer

__all__ = ["evaluation_batches", "filled_batches", "train_batches"]

PREFETCHED = 8  # batches that a thread makes while the step runs


def train_batches(
    source: Source,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    batch_size: int,
    max_length: int,
    seed: int,
    pool_batches: int = 20,
    pad_to: int = 8,
    same_length: bool = False,
    pack: bool = False,
    part: Part = WHOLE,
    num_workers: int = 0,
) -> grain.IterDataset:
    """Endless batches of sentence pairs, shuffled anew in every epoch.

    Pairs with a side of more than `max_length` tokens are left out (`encoding.count_too_long`).
    `iter(…)` has get_state() and set_state() with a small dictionary that JSON can hold, and is
    checkpointable by orbax; resuming is exact. close() ends its thread and its workers.

    Args:
      source: examples {"source", "target"}, by index.
      source_tokenizer: tokenizer of the sources.
      target_tokenizer: tokenizer of the targets.
      batch_size: number of pairs in a global batch; with `pack`, number of rows.
      max_length: number of tokens of the longest source or target, EOS included.
      seed: seed of the order of examples.
      pool_batches: number of batches of pairs that are sorted by length together; 1 is no
        bucketing.
      pad_to: multiple to which every length is rounded up, so that few shapes are compiled.
      same_length: whether both sides of a batch have the length of the longer one: half as many
        shapes, for 1 % more tokens where they are alike (Multi30k; 11 shapes become 6).
      pack: whether to put several pairs into each row of `max_length` tokens, with segments and
        positions.
      part: part of each batch that this process computes, such as `Parallel.part`.
      num_workers: number of processes that read and encode; 0 does it in a thread. The batches and
        the state are the same. Workers import the main program, so it needs its `if __name__ ==
        "__main__"`.

    Returns:
      A dataset of {"source": [B, S], "target": [B, T]}, int32, B = batch_size / part.count; both
      end with EOS and then PAD. With `pack` also "source_segments", "source_positions",
      "target_segments" and "target_positions".

    Raises:
      ValueError: an empty source, or sizes that cannot be.
    """
    _require_sizes(
        batch_size=batch_size, max_length=max_length, pool_batches=pool_batches, pad_to=pad_to
    )
    fill: Fill = (
        FillRows(batch_size, max_length)
        if pack
        else FillBuckets(batch_size, pool_batches, pad_to, seed, same_length)
    )
    encoded = Encoded(source, EncodePair(source_tokenizer, target_tokenizer, max_length))
    require(len(encoded) > 0, "the data set has no examples")
    part.require_divides(batch_size)
    order = grain.MapDataset.source(encoded).seed(seed).shuffle().repeat()

    def fill_part(reader: Reader) -> list[dict[str, np.ndarray]]:
        return [part.of(batch) for batch in fill(reader)]

    return Ahead(Batches(order, len(encoded), fill_part, num_workers), PREFETCHED)


def evaluation_batches(
    source: Source,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    batch_size: int,
    pad_to: int = 8,
    same_length: bool = False,
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields every example exactly once, in batches of alike lengths, shortest first.

    Args:
      source: examples {"source", "target"}, by index.
      source_tokenizer: tokenizer of the sources.
      target_tokenizer: tokenizer of the targets.
      batch_size: number of rows of every batch; those that remain in the last one are all PAD.
      pad_to: multiple to which every length is rounded up.
      same_length: whether both sides of a batch have the length of the longer one.

    Yields:
      (indices [n], {"source": [batch_size, S], "target": [batch_size, T]}): the first n rows are
      the examples at these indices.

    Raises:
      ValueError: sizes that cannot be.
    """
    _require_sizes(batch_size=batch_size, pad_to=pad_to)
    encode = EncodePair(source_tokenizer, target_tokenizer, max_length=None)
    examples = [encode(source[i]) for i in range(len(source))]
    order = sorted(range(len(examples)), key=lambda i: by_length(examples[i]))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        yield (
            np.array(indices),
            pad_examples(
                [examples[i] for i in indices],
                pad_to=pad_to,
                rows=batch_size,
                same_length=same_length,
            ),
        )


def filled_batches(
    rows: Sequence[dict[str, Any]], empty: dict[str, Any], batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields rows of equal shapes once, in their order; the last batch is filled with `empty`."""
    for start in range(0, len(rows), batch_size):
        some = list(rows[start : start + batch_size])
        some += [empty] * (batch_size - len(some))
        yield {name: np.stack([row[name] for row in some]) for name in empty}


def _require_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        as_size(name, size)


def by_length(example: Example) -> tuple[int, ...]:
    """The key by which examples are sorted: their longest length, then each length."""
    lengths = tuple(len(tokens) for tokens in example.values())
    return (max(lengths), *lengths)


def pad_examples(
    examples: Sequence[Example],
    *,
    pad_to: int,
    rows: int,
    same_length: bool = False,
) -> dict[str, np.ndarray]:
    """Examples as the rows of int32 arrays [rows, length].

    Args:
      examples: encoded examples, at least one and at most `rows`; the rows that remain are all PAD.
      pad_to: multiple to which every length is rounded up.
      rows: number of rows of each array.
      same_length: whether all arrays have the length of the longest, so that shapes are fewer.
    """
    batch = {}
    longest = {name: max(len(example[name]) for example in examples) for name in examples[0]}
    for name, length in longest.items():
        length = max(longest.values()) if same_length else length
        batch[name] = np.full((rows, -(-length // pad_to) * pad_to), PAD, np.int32)
        for row, example in zip(batch[name], examples, strict=False):
            row[: len(example[name])] = example[name]
    return batch


class FillBuckets:
    """A pool of `pool_batches` batches: sorted by length, cut into batches, in a random order.

    All of a pool's examples are in its batches, so nothing is lost between one pool and the next.
    """

    def __init__(
        self,
        batch_size: int,
        pool_batches: int,
        pad_to: int,
        seed: int,
        same_length: bool = False,
    ) -> None:
        self.batch_size, self.pool_batches, self.seed = batch_size, pool_batches, seed
        self._padded = functools.partial(
            pad_examples, pad_to=pad_to, rows=batch_size, same_length=same_length
        )

    def __call__(self, reader: Reader) -> list[dict[str, np.ndarray]]:
        # The last 0 says nothing: with it, batches come in the order that kept runs had.
        rng = random.Random(f"buckets {self.seed} {reader.example} 0")
        pool = []
        for _ in range(self.pool_batches * self.batch_size):
            pool.append(reader.peek())
            reader.advance()
        pool.sort(key=by_length)
        starts = list(range(0, len(pool), self.batch_size))
        rng.shuffle(starts)
        return [self._padded(pool[i : i + self.batch_size]) for i in starts]


class FillRows:
    """One batch [batch_size, length]: each example goes into the first row with room for it.

    The first example that fits nowhere begins the next batch. One of several sequences (source and
    target) is in the same row, under the same segment id, in each of the arrays. Beside an array
    `name` there are `name_segments`, from 1 on and 0 where there is padding, and `name_positions`,
    which begin at 0 in each segment.
    """

    def __init__(self, batch_size: int, length: int) -> None:
        self.batch_size, self.length = batch_size, length

    def __call__(self, reader: Reader) -> list[dict[str, np.ndarray]]:
        rows: list[list[Example]] = [[] for _ in range(self.batch_size)]
        room = [dict.fromkeys(reader.peek(), self.length) for _ in rows]
        while True:
            example = reader.peek()
            fits = (
                row
                for row, left in enumerate(room)
                if all(len(tokens) <= left[name] for name, tokens in example.items())
            )
            row = next(fits, None)
            if row is None:
                return [self.batch(rows, list(room[0]))]
            rows[row].append(example)
            for name, tokens in example.items():
                room[row][name] -= len(tokens)
            reader.advance()

    def batch(self, rows: list[list[Example]], names: list[str]) -> dict[str, np.ndarray]:
        """The arrays of rows that hold these examples."""
        batch: dict[str, np.ndarray] = {}
        for name in names:
            tokens = np.full((len(rows), self.length), PAD, np.int32)
            segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
            for i, row in enumerate(rows):
                start = 0
                for segment, example in enumerate(row, 1):
                    stop = start + len(example[name])
                    tokens[i, start:stop] = example[name]
                    segments[i, start:stop] = segment
                    positions[i, start:stop] = np.arange(stop - start)
                    start = stop
            batch |= {name: tokens, f"{name}_segments": segments, f"{name}_positions": positions}
        return batch
