"""The processes of one run: they start together, agree, and come down together.

One process is the default, and all of this costs it nothing. Of several all run the same program.
The first (index 0) decides, prints and writes; what is computed together they compute in the same
order. Values travel through the service of `jax.distributed`, so no device is asked for.

A process that ends before its time leaves word of it. The others are interrupted, and ended where
that does not help, within `_GRACE` seconds. One that is killed leaves no word: its collectives
fail, or JAX's service misses its heartbeat and ends the others within a minute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from attnlab.runs.clusters import Cluster
from attnlab.runs.errors import Invalid, Stopped

__all__ = [
    "Ended",
    "Said",
    "agree",
    "alone",
    "barrier",
    "count",
    "ended_by",
    "first_before_others",
    "gather",
    "index",
    "is_first",
    "is_of_devices",
    "join",
    "leave",
    "prints",
    "stop_waiting",
    "tell",
]

_PATIENCE = 300  # seconds in which the others must have started
HEARTBEAT = 30  # seconds without a sign of life after which a process counts as dead
_GRACE = 20.0  # seconds that a process has to end when another one has
LAST = 15.0  # seconds in which all meet at the end where some may be gone
REPORT = 600.0  # seconds that a report may take
_LOOK = 1.0  # seconds that a thread waits at once, deaf to signals
_END = "attnlab/end"
T = TypeVar("T")


class Said(Invalid):
    """What another process says, or the first of all: the others need not."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended before its time.

    Attributes:
      index: index of the process.
      status: exit status of the run.
      words: reason, in one line.
    """

    index: int
    status: int
    words: str

    def line(self) -> str:
        """What another process says of it."""
        return f"process {self.index} of {count()} has ended: {self.words}"


class _Run:
    """What this process knows of the others; of a run of one process, nothing."""

    def __init__(self) -> None:
        self.cluster: Cluster | None = None
        self.client: Any = None
        self.names = itertools.count()
        self.alone = False
        self.leaves = threading.Event()
        self.interrupts = threading.RLock()
        self.watch = threading.Thread(target=lambda: _watch(), daemon=True, name="watch")
        self.ended: Ended | None = None


_run = _Run()


def count() -> int:
    """The number of processes."""
    return 1 if _run.cluster is None or _run.alone else _run.cluster.count


def index() -> int:
    """The index of this process."""
    return 0 if _run.cluster is None or _run.alone else _run.cluster.index


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return index() == 0


def prints() -> bool:
    """Whether this process is the one that prints: the first, also where each is alone."""
    return _run.cluster is None or _run.cluster.index == 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within `with`, this process agrees with itself and writes: a run of its own."""
    _run.alone = True
    try:
        yield
    finally:
        _run.alone = False


def join(cluster: Cluster) -> None:
    """Makes this process one of several; before JAX is asked for a device.

    Raises:
      Stopped: they do not find each other.
    """
    # SIGTERM stays ours: JAX's service would keep it from a run that is not between two steps.
    jax.config.update("jax_enable_preemption_service", False)
    who = f"process {cluster.index} of {cluster.count}"
    # JAX ends a process that waits in vain, with words of its own.
    waits = f"{who} waits for the others at {cluster.coordinator}, {_PATIENCE} s at most"
    patience = threading.Timer(LAST, lambda: print(waits, file=sys.stderr, flush=True))
    patience.start()
    try:
        jax.distributed.initialize(
            coordinator_address=cluster.coordinator,
            num_processes=cluster.count,
            process_id=cluster.index,
            local_device_ids=None if cluster.gpus is None else list(cluster.gpus),
            cluster_detection_method="deactivate",
            initialization_timeout=_PATIENCE,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except Exception as error:
        why = str(error).partition("\n")[0]
        raise Stopped(f"{who} did not find the others at {cluster.coordinator}: {why}") from None
    finally:
        patience.cancel()
    from jax._src import distributed  # the values that it keeps have no public name

    _run.cluster, _run.client = cluster, distributed.global_state.client
    _run.watch.start()


def agree(make: Callable[[], T]) -> T:
    """What the first process makes, on all of them; a value that JSON has.

    Raises:
      Invalid: the first one found it so.
    """
    if count() == 1:
        return make()
    name = _name()
    if not is_first():
        kind, value = json.loads(_get(name))
        if kind == "invalid":
            raise Said(value)
        return value
    try:
        value = make()
    except Invalid as error:
        _run.client.key_value_set(name, json.dumps(["invalid", str(error)]))
        raise
    _run.client.key_value_set(name, json.dumps(["value", value]))
    return value


def gather(value: T) -> list[T]:
    """The values of all processes, in their order; each a value that JSON has."""
    if count() == 1:
        return [value]
    name = _name()
    _run.client.key_value_set(f"{name}/{index()}", json.dumps(value))
    if not is_first():
        return json.loads(_get(f"{name}/all"))
    values = [json.loads(_get(f"{name}/{i}")) for i in range(count())]
    _run.client.key_value_set(f"{name}/all", json.dumps(values))
    return values


def barrier() -> None:
    """Returns when all processes are here."""
    gather(None)


@contextlib.contextmanager
def first_before_others() -> Iterator[None]:
    """Within `with`, the first process is done before the others begin: what it keeps they find."""
    if not is_first():
        barrier()
    yield
    if is_first():
        barrier()


def tell(words: str, status: int) -> None:
    """Leaves word for the others that this process ends before its time, and why."""
    if count() > 1:
        stop_waiting()
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was first, or all is gone
            _run.client.key_value_set(_END, json.dumps([index(), status, words]))


def stop_waiting() -> None:
    """Says that this process waits for no other any more; it is not interrupted for one then."""
    with _run.interrupts:  # an interruption is before this, or is not
        _run.leaves.set()


def ended_by() -> Ended | None:
    """The other process that brings this one down."""
    return _run.ended


def is_of_devices(error: Exception) -> bool:
    """Whether an error may be that of a collective whose other side is gone."""
    # Some of XLA's errors come as ValueError; all begin with the name of a status.
    return count() > 1 and re.match(r"[A-Z_]+: ", str(error)) is not None


def leave(status: int) -> int:
    """Waits for the others' ends; returns the run's exit status, or ends this process with it."""
    if count() == 1:
        return status
    stop_waiting()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        seconds = LAST if status and is_first() else REPORT  # a report may be written meanwhile
        _run.client.wait_at_barrier("attnlab/left", round(1000 * seconds))
        _run.watch.join()  # the interpreter must not end under it
        jax.distributed.shutdown()
    except jax.errors.JaxRuntimeError:
        os._exit(status or 1)  # JAX would wait for those that are gone, for minutes
    return status


def _name() -> str:
    return f"attnlab/{next(_run.names)}"


def _get(name: str, until: threading.Event | None = None) -> Any:
    """The words that a process sets, when it does; between two looks signals are answered."""
    while until is None or not until.is_set():
        try:
            return _run.client.blocking_key_value_get(name, round(1000 * _LOOK))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
    return None


def _watch() -> None:
    """Interrupts this process when another one has ended, and ends it where that does not help."""
    try:
        words = _get(_END, until=_run.leaves)
    except jax.errors.JaxRuntimeError:
        return  # the service is gone: JAX ends this process
    if words is None:
        return
    ended = Ended(*json.loads(words))
    with _run.interrupts:
        if _run.leaves.is_set():
            return
        _run.ended = ended
        os.kill(os.getpid(), signal.SIGTERM)
    if not _run.leaves.wait(_GRACE):  # it waits for a device, which waits for the other
        print(ended.line(), file=sys.stderr, flush=True)
        os._exit(ended.status)
