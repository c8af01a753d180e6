"""Batches of sentences of alike lengths (Bahdanau 2014, App. B.2), padded to few shapes."""

import random
from collections.abc import Sequence

import numpy as np

from attnlab.data.encoding import Piece
from attnlab.data.pools import Reader
from attnlab.tokens import PAD

__all__ = ["FillBuckets", "by_length", "padded"]


def by_length(piece: Piece) -> tuple[int, ...]:
    """The key by which pieces are sorted: their longest length, then each length."""
    lengths = tuple(len(tokens) for tokens in piece.values())
    return (max(lengths), *lengths)


def padded(pieces: Sequence[Piece], *, pad_to: int, rows: int) -> dict[str, np.ndarray]:
    """Pieces as the rows of int32 arrays [rows, length].

    Args:
      pieces: pieces, at least one and at most `rows`; the rows that remain are all PAD.
      pad_to: multiple to which every length is rounded up.
      rows: number of rows of each array.
    """
    batch = {}
    for name in pieces[0]:
        longest = max(len(piece[name]) for piece in pieces)
        batch[name] = np.full((rows, -(-longest // pad_to) * pad_to), PAD, np.int32)
        for row, piece in zip(batch[name], pieces, strict=False):
            row[: len(piece[name])] = piece[name]
    return batch


class FillBuckets:
    """A pool of `pool_batches` batches: sorted by length, cut into batches, in a random order.

    All of a pool's examples are in its batches, so nothing is lost between one pool and the next.
    """

    def __init__(self, batch_size: int, pool_batches: int, pad_to: int, seed: int) -> None:
        self.batch_size, self.pool_batches = batch_size, pool_batches
        self.pad_to, self.seed = pad_to, seed

    def __call__(self, reader: Reader) -> list[dict[str, np.ndarray]]:
        rng = random.Random(f"buckets {self.seed} {reader.cursor.example} {reader.cursor.piece}")
        pool = []
        for _ in range(self.pool_batches * self.batch_size):
            pool.append(reader.peek())
            reader.advance()
        pool.sort(key=by_length)
        starts = list(range(0, len(pool), self.batch_size))
        rng.shuffle(starts)
        return [
            padded(pool[i : i + self.batch_size], pad_to=self.pad_to, rows=self.batch_size)
            for i in starts
        ]
