"""Ctrl-C and SIGTERM while an experiment runs."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LATER = 0.05  # seconds, longer than a callback takes


class Terminated(KeyboardInterrupt):
    """SIGTERM, as Ctrl-C is a KeyboardInterrupt."""


def signal_of(error: KeyboardInterrupt) -> signal.Signals:
    """The signal that raised it; a process that it ends has the status 128 + its number."""
    return signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within `with`, Ctrl-C raises KeyboardInterrupt and SIGTERM `Terminated`; none is lost.

    Python prints and drops what is raised while it runs a callback, of a weak reference or of its
    garbage collector, where JAX has one: a program that waits is often just there when a signal
    wakes it. What was dropped is sent again.
    """

    def interrupt(number: int, _: Any) -> None:
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def send_again(dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            terminated = issubclass(dropped.exc_type, Terminated)
            number = signal.SIGTERM if terminated else signal.SIGINT
            threading.Timer(_LATER, os.kill, (os.getpid(), number)).start()
        else:
            before(dropped)

    before, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        with _handled_by(interrupt):
            yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
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
