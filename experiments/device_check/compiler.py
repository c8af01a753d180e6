"""Programs compiled in threads, each once: a default is one of the named implementations."""

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

    With one thread a program is waited for as it is submitted: whoever submits them then knows
    which one it was that killed the process.
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
        """The seconds that are left; None = there is no end."""
        return None if math.isinf(self._until) else max(0.0, self._until - time.monotonic())

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        # What still compiles goes on, and nobody waits for it.
        self._pool.shutdown(wait=False, cancel_futures=True)


def _compile(lowered: jax.stages.Lowered) -> Compiled:
    start = time.perf_counter()
    return Compiled(lowered.compile(), time.perf_counter() - start)
