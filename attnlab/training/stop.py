"""SIGTERM and Ctrl-C as a request that the loop answers between two steps."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

__all__ = ["StopRequest"]


class StopRequest:
    """Within `with`, the first SIGTERM or SIGINT only asks; a second SIGINT interrupts at once.

    With several processes JAX's own service hears SIGTERM and agrees with all of them on the step
    after which they stop (`jax.distributed.initialize` starts it).

    Attributes:
      signal: signal that asked, if one did.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if jax.process_count() == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)

    def asked(self, step: int) -> bool:
        """Whether to stop after `step`."""
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.signal = signal.SIGTERM
        return self.signal is not None
