"""A side in a process of its own, which measures itself when it is asked.

So neither side shares its thread pool, its allocator or its high-water mark with the other, and a
process that waits for its turn sleeps.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attnlab.bench import environment, inputs, memory
from attnlab.bench.measure import SAMPLE_SECONDS
from attnlab.runs import provenance
from experiments.compare_peers import sides as peers_sides
from experiments.compare_peers.pairs import Side

PACKAGES = ("torch", "keras", "transformers", "reformer-pytorch")


class SideError(Exception):
    """A side did not run; the message says why."""


class Process:
    """A context in which the side's process lives; it does one thing at a time, when asked."""

    def __init__(self, side: Side, log: Path, *, check: bool = False) -> None:
        """`log` gets what it writes; with `check` LSH uses given buckets, to compare values."""
        self._side = side
        context = multiprocessing.get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(self._theirs, side, str(log), check), daemon=True
        )

    def __enter__(self) -> "Process":
        self._process.start()
        self._theirs.close()
        try:
            self.environment: dict[str, Any] = self.ask("environment")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def ask(self, what: str) -> Any:
        """The answer; `SideError` when there is none."""
        try:
            self._pipe.send(what)
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            killed = code == -signal.SIGKILL
            why = "killed (usually the system, out of memory)" if killed else f"exit status {code}"
            raise SideError(f"{self._side}: {why}") from None
        if kind == "failed":
            raise SideError(f"{self._side}: {answer}")
        return answer


def _serve(pipe: Connection, side: Side, log: str, check: bool) -> None:
    """The child's life: builds the program, then answers until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which keeps the rows
    with open(log, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    memory.volunteer_for_the_oom_killer()
    jax.config.update("jax_platforms", "cpu")  # what the peers run on
    memory.dispatch_synchronously()
    try:
        measured = _Measured(peers_sides.build(side, given_buckets=check))
        while True:
            pipe.send(("answer", getattr(measured, pipe.recv())()))
    except (EOFError, ConnectionError):
        return
    except Exception as error:  # noqa: BLE001 - whatever a side raises is a row; the others go on
        traceback.print_exc()
        with contextlib.suppress(ConnectionError):
            pipe.send(("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))


class _Measured:
    """A program and the questions it answers, one method each."""

    def __init__(self, program: peers_sides.Program) -> None:
        self._program = program
        self._warm = False  # the first call also pays for threads
        self._calls = 0  # of one sample

    def environment(self) -> dict[str, Any]:
        """Where this runs."""
        found = environment.describe(inputs.read())
        found["versions"] |= {name: provenance.version(name) for name in PACKAGES}
        return found

    def values(self) -> list[np.ndarray]:
        """What the program computes."""
        self._warm = True
        return self._program.values(self._program.call())

    def memory(self) -> int | None:
        """By how much a call raises the high-water mark."""
        if not self._warm:
            self._program.call()
        self._warm = True
        return memory.peak_of(self._program.call)[1]

    def time(self) -> float:
        """Seconds of a call, averaged over enough of them for the clock."""
        if not self._calls:
            one = self._sample(1)  # also brings back the pages that `memory` gave up
            if one < 20 * SAMPLE_SECONDS:
                one = self._sample(1)
            self._calls = math.ceil(SAMPLE_SECONDS / one)
        return self._sample(self._calls)

    def _sample(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self._program.call()
        return (time.perf_counter() - start) / calls
