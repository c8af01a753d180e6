"""Ctrl-C and SIGTERM while an experiment runs."""

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["interruptible", "uninterrupted"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LATER = 0.05  # seconds, much longer than a callback takes


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within `with`, Ctrl-C and a polite kill both raise KeyboardInterrupt, and none is lost.

    Python prints and drops what is raised inside a callback of its garbage collector. JAX has such
    a callback, and a program that waits for a worker is often just there when the signal wakes it:
    the signal is then sent again a moment later.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
        while frame is not None:
            if frame.f_code in callbacks:
                threading.Timer(_LATER, os.kill, (os.getpid(), number)).start()
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets an impatient second Ctrl-C wait for the few seconds that a report takes."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled_by(handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
