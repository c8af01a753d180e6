"""An endless iterator of batches that are cut from pools, whose state is two integers.

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
from typing import Any

import grain
from absl import flags

from attnlab.data.encoding import Example
from attnlab.runs.errors import Invalid

__all__ = ["Ahead", "Batches", "Fill", "Reader"]

Batch = dict[str, Any]  # name → int32 array [B, length]
_BLOCK = 256  # examples that a worker sends together: each sending costs more than to encode one


class Reader:
    """Reads encoded examples one after the other, without those that are left out.

    Args:
      order: the endless order of encoded examples.
      epoch: number of examples.
      example: place of the first example to read.
      num_workers: number of processes that read and encode.

    Attributes:
      example: place of the example that `peek` returns.
    """

    def __init__(
        self, order: grain.MapDataset, epoch: int, example: int, num_workers: int = 0
    ) -> None:
        self.example = example - 1
        self._epoch = epoch
        self._examples = _examples(order, example, num_workers)
        self.advance()

    def peek(self) -> Example:
        """Returns the example where the reader stands."""
        return self._current

    def advance(self) -> None:
        """Moves on to the next example that is not left out."""
        for _ in range(self._epoch + 1):
            self.example += 1
            self._current = next(self._examples)
            if self._current:
                return
        raise Invalid(f"all {self._epoch} examples are longer than max_length; raise it")

    def close(self) -> None:
        """Ends the workers."""
        self._examples.close()


def _examples(order: grain.MapDataset, start: int, num_workers: int) -> Generator[Example]:
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
      order: the endless order of encoded examples.
      epoch: number of examples.
      fill: function of a reader that takes examples from it and returns the batches of a pool, at
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

    def _reader(self, example: int) -> Reader:
        return Reader(self._order, self._epoch, example, self._num_workers)


class _PoolIterator(grain.DatasetIterator):
    def __init__(self, make_reader: Callable[[int], Reader], fill: Fill) -> None:
        super().__init__()
        self._make_reader, self._fill = make_reader, fill
        self._reader: Reader | None = None
        self._example, self._gone = 0, 0
        self._pool: Sequence[Batch] = ()

    def __next__(self) -> Batch:
        self._assert_not_closed()
        if not self._pool:
            self._reader = self._reader or self._make_reader(self._example)
            self._pool = self._fill(self._reader)
        batch = self._pool[self._gone]
        self._gone += 1
        if self._gone == len(self._pool):
            assert self._reader is not None
            self._example, self._gone, self._pool = self._reader.example, 0, ()
        return batch

    def get_state(self) -> dict[str, int]:
        return {"example": self._example, "batches": self._gone}

    def set_state(self, state: dict[str, int]) -> None:
        self._leave()
        self._example, self._gone = state["example"], state["batches"]

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
