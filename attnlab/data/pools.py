"""An endless iterator of batches that are cut from pools, whose state is three integers.

A pool is a group of examples that batches are made of together: the examples that are sorted by
length, or those that fill the rows of one packed batch. It is a pure function of where it begins in
the endless order of examples. So the state of the iterator is (where its pool begins, how many of
the pool's batches are gone), and resuming is exact.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import grain
from absl import flags

from attnlab.data.encoding import Piece
from attnlab.runs.errors import Invalid

__all__ = ["Ahead", "Batches", "Cursor", "Fill", "Reader"]

Batch = dict[str, Any]  # name → int32 array [B, length]
_BLOCK = 256  # examples that a worker sends together: each sending costs more than to encode one


class Cursor(NamedTuple):
    """Where a reader stands: a piece of an example of the endless order."""

    example: int = 0
    piece: int = 0


class Reader:
    """Reads the pieces of encoded examples one after the other, from a cursor on.

    Args:
      order: the endless order of examples, lists of pieces.
      epoch: number of examples.
      cursor: place of the first piece to read.
      num_workers: number of processes that read and encode.
    """

    def __init__(
        self, order: grain.MapDataset, epoch: int, cursor: Cursor, num_workers: int = 0
    ) -> None:
        self.cursor = cursor
        self._epoch = epoch
        self._examples = _examples(order, cursor.example, num_workers)
        self._pieces: list[Piece] = next(self._examples)
        self._settle()

    def peek(self) -> Piece:
        """Returns the piece at the cursor."""
        return self._pieces[self.cursor.piece]

    def advance(self) -> None:
        """Moves on to the next piece."""
        self.cursor = self.cursor._replace(piece=self.cursor.piece + 1)
        self._settle()

    def close(self) -> None:
        """Ends the workers."""
        self._examples.close()

    def _settle(self) -> None:
        """Goes on to the next example that has a piece left."""
        without = 0
        while self.cursor.piece >= len(self._pieces):
            without = without + 1 if not self._pieces else 0
            if without > self._epoch:
                raise Invalid(f"all {self._epoch} examples are longer than max_length; raise it")
            self._pieces = next(self._examples)
            self.cursor = Cursor(self.cursor.example + 1)


def _examples(order: grain.MapDataset, start: int, num_workers: int) -> Generator[list[Piece]]:
    if num_workers == 0:
        for index in range(start, len(order)):
            yield order[index]
        return
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # grain reads its own; a program without `app.run` has none
    # Which examples come, and in which order, does not depend on the number of workers: only the
    # map over single examples is done by them.
    # A worker that read in threads, as grain's do, would spend its time on Python's lock.
    alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    dataset = order[start:].batch(_BLOCK, batch_fn=pickle.dumps).to_iter_dataset(alone)
    blocks = iter(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers)))
    try:
        for block in blocks:
            yield from pickle.loads(block)
    finally:
        blocks.close()


Fill = Callable[[Reader], Sequence[Batch]]


class Batches(grain.IterDataset):
    """The batches of the pools that `fill` makes, one pool after the other.

    Args:
      order: the endless order of examples, lists of pieces.
      epoch: number of examples.
      fill: function of a reader that takes pieces from it and returns the batches of a pool, at
        least one; a pure function of where the reader stands.
      num_workers: number of processes that read and encode.
    """

    def __init__(
        self, order: grain.MapDataset, epoch: int, fill: Fill, num_workers: int = 0
    ) -> None:
        super().__init__(order)
        self._order, self._epoch = order, epoch
        self._fill, self._num_workers = fill, num_workers

    def __iter__(self) -> _PoolIterator:
        return _PoolIterator(self._reader, self._fill)

    def _reader(self, cursor: Cursor) -> Reader:
        return Reader(self._order, self._epoch, cursor, self._num_workers)


class _PoolIterator(grain.DatasetIterator):
    def __init__(self, make_reader: Callable[[Cursor], Reader], fill: Fill) -> None:
        super().__init__()
        self._make_reader, self._fill = make_reader, fill
        self._reader: Reader | None = None
        self._cursor, self._gone = Cursor(), 0
        self._pool: Sequence[Batch] = ()

    def __next__(self) -> Batch:
        self._assert_not_closed()
        if not self._pool:
            self._reader = self._reader or self._make_reader(self._cursor)
            self._pool = self._fill(self._reader)
        batch = self._pool[self._gone]
        self._gone += 1
        if self._gone == len(self._pool):
            assert self._reader is not None
            self._cursor, self._gone, self._pool = self._reader.cursor, 0, ()
        return batch

    def get_state(self) -> dict[str, int]:
        return {**self._cursor._asdict(), "batches": self._gone}

    def set_state(self, state: dict[str, int]) -> None:
        self._leave()
        self._cursor, self._gone = Cursor(state["example"], state["piece"]), state["batches"]

    def close(self) -> None:
        self._leave()
        super().close()

    def _leave(self) -> None:
        if self._reader:
            self._reader.close()
        self._reader, self._pool = None, ()


class Ahead(grain.IterDataset):
    """Makes batches in a thread before they are asked for; its state is that of the last one given.

    Args:
      parent: data set that makes the batches.
      batches: number of batches made ahead.
    """

    def __init__(self, parent: grain.IterDataset, batches: int) -> None:
        super().__init__(parent)
        self._batches = batches

    def __iter__(self) -> _AheadIterator:
        return _AheadIterator(iter(self._parent), self._batches)


class _AheadIterator(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator, batches: int) -> None:
        super().__init__(parent)
        self._batches = batches
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._ahead: deque[Future[tuple[Batch, dict[str, int]]]] = deque()
        self._state: dict[str, int] = parent.get_state()

    def __next__(self) -> Batch:
        self._assert_not_closed()
        while len(self._ahead) < self._batches:
            self._ahead.append(self._thread.submit(_batch_and_state, self._parent))
        batch, self._state = self._ahead.popleft().result()
        return batch

    def get_state(self) -> dict[str, int]:
        return self._state

    def set_state(self, state: dict[str, int]) -> None:
        self._forget()
        self._parent.set_state(state)
        self._state = state

    def close(self) -> None:
        self._forget()
        self._thread.shutdown()
        super().close()

    def __del__(self) -> None:
        # grain's would close, which waits for the thread and so must not be run by it. Without
        # references the thread ends, and so do the workers.
        pass

    def _forget(self) -> None:
        """Throws away the batches that are not yet asked for."""
        for future in self._ahead:
            future.cancel()
        wait(self._ahead)
        self._ahead.clear()


def _batch_and_state(iterator: grain.DatasetIterator) -> tuple[Batch, dict[str, int]]:
    # not a method of _AheadIterator, so that its thread does not keep it alive
    return next(iterator), iterator.get_state()
