"""Ctrl-C and SIGTERM while an experiment runs."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["interruptible", "uninterrupted"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LATER = 0.05  # seconds, longer than a callback takes


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within `with`, Ctrl-C and a polite kill both raise KeyboardInterrupt, and none is lost.

    Python prints and drops what is raised while it runs a callback, of a weak reference or of its
    garbage collector, where JAX has one: a program that waits is often just there when a signal
    wakes it. What was dropped is sent again.
    """

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def send_again(dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(_LATER, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(dropped)

    before, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        with _handled_by(interrupt):
            yield
    finally:
        sys.unraisablehook = before


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
