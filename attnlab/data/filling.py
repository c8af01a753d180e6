"""How the batches of a pool are made: pairs of alike lengths together, or several in a row.

Bucketing (Bahdanau 2014, App. B.2) sorts a pool by length and pads to few shapes; packing puts
several sequences into a row and tells them apart by segment ids and positions.
"""

import functools
import random
from collections.abc import Sequence

import numpy as np

from attnlab.data.encoding import Piece
from attnlab.data.parts import WHOLE, Part
from attnlab.data.pools import Reader
from attnlab.tokens import PAD

__all__ = ["FillBuckets", "FillRows", "by_length", "padded"]


def by_length(piece: Piece) -> tuple[int, ...]:
    """The key by which pieces are sorted: their longest length, then each length."""
    lengths = tuple(len(tokens) for tokens in piece.values())
    return (max(lengths), *lengths)


def padded(
    pieces: Sequence[Piece],
    *,
    pad_to: int,
    rows: int,
    same_length: bool = False,
    part: Part = WHOLE,
) -> dict[str, np.ndarray]:
    """Pieces as the rows of int32 arrays [rows, length].

    Args:
      pieces: pieces, at least one and at most `rows`; the rows that remain are all PAD.
      pad_to: multiple to which every length is rounded up.
      rows: number of rows of each array.
      same_length: whether all arrays have the length of the longest, so that shapes are fewer.
      part: part of the rows to make; the lengths are those of all rows.
    """
    batch = {}
    longest = {name: max(len(piece[name]) for piece in pieces) for name in pieces[0]}
    mine = pieces[part.rows(rows)]
    for name, length in longest.items():
        length = max(longest.values()) if same_length else length
        shape = rows // part.count, -(-length // pad_to) * pad_to
        batch[name] = np.full(shape, PAD, np.int32)
        for row, piece in zip(batch[name], mine, strict=False):
            row[: len(piece[name])] = piece[name]
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
        part: Part = WHOLE,
    ) -> None:
        self.batch_size, self.pool_batches, self.seed = batch_size, pool_batches, seed
        self._padded = functools.partial(
            padded, pad_to=pad_to, rows=batch_size, same_length=same_length, part=part
        )

    def __call__(self, reader: Reader) -> list[dict[str, np.ndarray]]:
        rng = random.Random(f"buckets {self.seed} {reader.cursor.example} {reader.cursor.piece}")
        pool = []
        for _ in range(self.pool_batches * self.batch_size):
            pool.append(reader.peek())
            reader.advance()
        pool.sort(key=by_length)
        starts = list(range(0, len(pool), self.batch_size))
        rng.shuffle(starts)
        return [self._padded(pool[i : i + self.batch_size]) for i in starts]


class FillRows:
    """One batch [batch_size, length]: each piece goes into the first row with room for it.

    The first piece that fits nowhere begins the next batch. A piece of several sequences (source
    and target) is in the same row, under the same segment id, in each of the arrays. Beside an
    array `name` there are `name_segments`, from 1 on and 0 where there is padding, and
    `name_positions`, which begin at 0 in each segment; `segments` and `positions` beside `tokens`.
    """

    def __init__(self, batch_size: int, length: int, part: Part = WHOLE) -> None:
        self.batch_size, self.length, self.part = batch_size, length, part

    def __call__(self, reader: Reader) -> list[dict[str, np.ndarray]]:
        rows: list[list[Piece]] = [[] for _ in range(self.batch_size)]
        room = [dict.fromkeys(reader.peek(), self.length) for _ in rows]
        while True:
            piece = reader.peek()
            fits = (
                row
                for row, left in enumerate(room)
                if all(len(tokens) <= left[name] for name, tokens in piece.items())
            )
            row = next(fits, None)
            if row is None:
                return [self.batch(rows[self.part.rows(self.batch_size)], list(room[0]))]
            rows[row].append(piece)
            for name, tokens in piece.items():
                room[row][name] -= len(tokens)
            reader.advance()

    def batch(self, rows: list[list[Piece]], names: list[str]) -> dict[str, np.ndarray]:
        """The arrays of rows that hold these pieces."""
        batch: dict[str, np.ndarray] = {}
        for name in names:
            prefix = "" if name == "tokens" else f"{name}_"
            tokens = np.full((len(rows), self.length), PAD, np.int32)
            segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
            for i, row in enumerate(rows):
                start = 0
                for segment, piece in enumerate(row, 1):
                    stop = start + len(piece[name])
                    tokens[i, start:stop] = piece[name]
                    segments[i, start:stop] = segment
                    positions[i, start:stop] = np.arange(stop - start)
                    start = stop
            batch |= {name: tokens, f"{prefix}segments": segments, f"{prefix}positions": positions}
        return batch
