"""Several sequences in a row (packing), told apart by segment ids and positions."""

import numpy as np

from attnlab.data.encoding import Piece
from attnlab.data.pools import Reader
from attnlab.tokens import PAD

__all__ = ["FillRows"]


class FillRows:
    """One batch [batch_size, length]: each piece goes into the first row with room for it.

    The first piece that fits nowhere begins the next batch. A piece of several sequences (source
    and target) is in the same row, under the same segment id, in each of the arrays. Beside an
    array `name` there are `name_segments`, from 1 on and 0 where there is padding, and
    `name_positions`, which begin at 0 in each segment; `segments` and `positions` beside `tokens`.
    """

    def __init__(self, batch_size: int, length: int) -> None:
        self.batch_size, self.length = batch_size, length

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
                return [self.batch(rows)]
            rows[row].append(piece)
            for name, tokens in piece.items():
                room[row][name] -= len(tokens)
            reader.advance()

    def batch(self, rows: list[list[Piece]]) -> dict[str, np.ndarray]:
        """The arrays of a batch whose rows hold these pieces."""
        batch: dict[str, np.ndarray] = {}
        for name in rows[0][0]:
            prefix = "" if name == "tokens" else f"{name}_"
            tokens = np.full((self.batch_size, self.length), PAD, np.int32)
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
