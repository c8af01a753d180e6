"""Compiles programs in threads; equal programs, as of a default and its implementation, once."""

import concurrent.futures
import math
import time
from typing import Any, NamedTuple

import jax


class Compiled(NamedTuple):
    """An executable, and the seconds that XLA took for it."""

    program: Any
    seconds: float


class Compiler:
    """A context in which lowered programs compile beside each other, for `seconds` in all.

    With one thread, `submit` waits until the program has compiled: whoever submits several then
    knows which one killed the process.
    """

    def __init__(self, threads: int, seconds: float = math.inf) -> None:
        self._alone = threads == 1
        self._until = time.monotonic() + seconds
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self._known: dict[str, concurrent.futures.Future[Compiled]] = {}

    def submit(self, lowered: jax.stages.Lowered) -> "concurrent.futures.Future[Compiled]":
        """The future of the program; the same one for the same text."""
        text = lowered.as_text()
        if text not in self._known:
            self._known[text] = self._pool.submit(_compile, lowered)
            if self._alone:
                concurrent.futures.wait([self._known[text]], self.left())
        return self._known[text]

    def left(self) -> float | None:
        """The seconds that are left; None = no limit."""
        return None if math.isinf(self._until) else max(0.0, self._until - time.monotonic())

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        # Programs that still compile go on; nobody waits for them.
        self._pool.shutdown(wait=False, cancel_futures=True)


def _compile(lowered: jax.stages.Lowered) -> Compiled:
    start = time.perf_counter()
    return Compiled(lowered.compile(), time.perf_counter() - start)
