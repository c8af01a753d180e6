"""Measures one pair: compares the values, then measures memory, then times the two in turns.

Each side has a process of its own, so that neither shares its thread pool, its allocator or its
high-water mark with the other; a process that waits for its turn sleeps. The turns are short and
alternate in order, so what else the machine does falls on both sides alike.
"""

import contextlib
import dataclasses
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnlab.bench import inputs, workers
from attnlab.bench.case import Case
from experiments.compare_peers.pairs import Outcome, Pair, Side

WORKER = "experiments.compare_peers.worker"
LONGEST_SECONDS = 3600.0  # to wait for one answer of a side
SAME = 1e-4  # allowed difference over the largest value: float32 sums of some thousand terms
PAUSE_SECONDS = 0.01  # between turns: OpenMP's threads spin for milliseconds after their work


@dataclasses.dataclass(frozen=True)
class Measured:
    """A pair's outcome, the machine it ran on, and what its sides wrote to stderr if it failed."""

    outcome: Outcome
    environment: dict[str, Any]
    errors: str = ""


class SideError(Exception):
    """A side failed; the message says why, `written` is what its process wrote to stderr."""

    def __init__(self, message: str, written: str = "") -> None:
        super().__init__(message)
        self.written = written


class Asked:
    """A side in its own process, which does one thing at a time, when asked."""

    def __init__(self, side: Side, process: workers.Workers) -> None:
        self._side, self._process = side, process
        self.environment = process.environment

    def ask(self, what: str, **arguments: Any) -> Any:
        """The answer of the worker: what its method of this name returns.

        Raises:
          SideError: there is no answer.
        """
        worker = self._process.ready()
        worker.send(ask=what, **arguments)
        message = worker.receive(LONGEST_SECONDS)
        if message is not None and "answer" in message:
            return message["answer"]
        if message is not None:
            why = message["failed"]
        elif worker.running():
            why = f"no answer for {LONGEST_SECONDS:.0f} s"
        else:
            why = workers.death(self._process.retire())
        raise SideError(f"{self._side}: {why}", self._process.last_words())

    def values(self) -> list[np.ndarray]:
        """The values that the side's program computes."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "values.npz"
            self.ask("values", file=str(file))
            with np.load(file) as arrays:
                return list(arrays.values())


def measure(pair: Pair, *, repeats: int, seconds: float) -> Measured:
    """Measures one pair; if a side fails, the outcome says so.

    Args:
      pair: pair to measure.
      repeats: number of timed turns.
      seconds: time for all turns; no turn starts that would end later.

    Raises:
      Invalid: no process can be started.
    """
    known: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    timed = (pair.ours, pair.peer)
    try:
        if pair.checked and pair.checked != timed:
            with _both(*pair.checked, given_buckets=True) as (ours, peer):
                known["difference"] = _difference(ours, peer)
        with _both(*timed) as (ours, peer):
            environment = ours.environment
            if pair.checked == timed:
                known["difference"] = _difference(ours, peer)
            if pair.most_error is not None:
                true = _true(pair.ours.case)
                far = [np.sqrt(np.mean((one.values()[0] - true) ** 2)) for one in (ours, peer)]
                known["ours_error"], known["peer_error"] = map(float, far)
            known["ours_bytes"], known["peer_bytes"] = ours.ask("memory"), peer.ask("memory")
            if pair.timed:
                times = _in_turns(ours, peer, repeats, seconds)
                known["ours_seconds"], known["peer_seconds"] = times
        return Measured(Outcome(pair, **known), environment)
    except SideError as error:
        errors = f"{error}\n{error.written}"
        return Measured(Outcome(pair, "failed", str(error), **known), environment, errors)


@contextlib.contextmanager
def _both(a: Side, b: Side, *, given_buckets: bool = False) -> Iterator[tuple[Asked, Asked]]:
    """A context with two sides, each in a process that ends with the context."""
    with contextlib.ExitStack() as stack:
        asked = []
        for side in (a, b):
            # The peers run on the CPU.
            process = workers.Workers(WORKER, variables={"JAX_PLATFORMS": "cpu"})
            asked.append(Asked(side, stack.enter_context(process)))
            sizes = dataclasses.asdict(side.case)
            asked[-1].ask("build", program=side.program, case=sizes, given_buckets=given_buckets)
        yield asked[0], asked[1]


def _true(case: Case) -> np.ndarray:
    """Causal attention [1, L, N, H] by NumPy in float64, of the inputs as the sides get them."""
    streams = inputs.streams(inputs.read(), batch=1, length=case.length, width=case.width)
    shape = (1, case.length, case.num_heads, case.head_dim)
    given = (streams[name].astype(jnp.dtype(case.dtype)).reshape(shape) for name in streams)
    q, k, v = (x.astype(np.float64) for x in given)

    def rows(i: int) -> np.ndarray:
        n = min(i + 512, case.length)
        logits = np.einsum("btnh,bsnh->bnts", q[:, i:n], k[:, :n]) / case.head_dim**0.5
        logits[..., np.arange(n) > np.arange(i, n)[:, None]] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("bnts,bsnh->btnh", weights, v[:, :n])

    return np.concatenate([rows(i) for i in range(0, case.length, 512)], axis=1)


def _in_turns(
    ours: Asked, peer: Asked, repeats: int, seconds: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of a call: our times and the peer's, one of each per turn."""
    taken: dict[Asked, list[float]] = {ours: [], peer: []}
    began = time.monotonic()
    for turn in range(repeats):
        used = time.monotonic() - began
        if turn and used * (turn + 1) / turn > seconds:
            break
        for side in (ours, peer) if turn % 2 == 0 else (peer, ours):
            time.sleep(PAUSE_SECONDS)
            taken[side].append(side.ask("time"))
    return tuple(taken[ours]), tuple(taken[peer])


def _difference(ours: Asked, peer: Asked) -> float:
    """The largest |ours − peer's| over the largest |peer's|; raises above `SAME`."""
    found = 0.0
    for x, y in zip(ours.values(), peer.values(), strict=True):
        if x.shape != y.shape:
            raise SideError(f"the shapes of the values differ: {x.shape} and {y.shape}")
        error = float(np.max(np.abs(x - y)) / np.max(np.abs(y)))
        found = max(found, error if math.isfinite(error) else math.inf)
    if found > SAME:
        raise SideError(f"the values differ by {found:.1e} of the largest; at most {SAME:.0e} may")
    return found
