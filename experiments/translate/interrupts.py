"""Ctrl-C and SIGTERM in a run of several parts: what is done stays, and how to go on is said.

A training answers them between two steps, with a checkpoint. Before and after it nothing is to be
saved that is not saved, and the run ends at once.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import jax

__all__ = ["INTERRUPTED", "until_stopped"]

INTERRUPTED = 130


class Terminated(KeyboardInterrupt):
    """SIGTERM, as Ctrl-C is a KeyboardInterrupt."""


def until_stopped(
    work: Callable[[], signal.Signals | None], *, go_on: str, say: Callable[[str], None]
) -> int:
    """The exit status of a run: 0, also after SIGTERM, or 130 after Ctrl-C.

    Args:
      work: does it; returns the signal that a training answered, None at the end.
      go_on: the command line that continues.
      say: takes a line for the user.
    """
    stopped_by: signal.Signals | None
    try:
        with _sigterm_interrupts():
            stopped_by = work()
    except KeyboardInterrupt as error:
        stopped_by = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
    if stopped_by is None:
        return 0
    say(f"{stopped_by.name}: what is done is saved; to go on:\n    {go_on}")
    return INTERRUPTED if stopped_by == signal.SIGINT else 0


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Within `with`, SIGTERM raises `Terminated`."""
    if jax.process_count() > 1:  # there it belongs to JAX's own service
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
