"""SIGTERM and Ctrl-C as a request that the loop answers between two steps."""

from __future__ import annotations

import functools
import signal
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attnlab.runs import processes


class StopRequest:
    """Within `with`, the first SIGTERM or SIGINT only asks; a second SIGINT interrupts at once.

    Several processes stop after the same step. With each step goes a vote, the maximum of a number
    from each device, and its result is read a step late, when it is there: the devices never wait,
    and a signal to any process counts one step later for all. What the last vote missed is sent
    again behind the `with`.

    Attributes:
      signal: signal that asked, if one did.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._heard: signal.Signals | None = None
        self._pending: jax.Array | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if jax.process_count() == 1:
            self.signal = self._heard
        elif kind is None and self._heard is not None and self.signal is None:
            signal.raise_signal(self._heard)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        first, self._heard = self._heard is None, signal.Signals(number)
        if (number == signal.SIGINT and not first) or processes.ended_by() is not None:
            raise KeyboardInterrupt  # for a process that has ended no vote can be waited

    def asked(self) -> bool:
        """Whether to stop after this step; all processes ask after each step."""
        if jax.process_count() == 1:
            self.signal = self._heard
            return self.signal is not None
        before, self._pending = self._pending, _maximum()(_number(self._heard))
        if before is not None and (number := int(before.addressable_data(0))):
            self.signal = signal.Signals(number)
        return self.signal is not None


@functools.cache
def _places() -> NamedSharding:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("all",))
    return NamedSharding(mesh, PartitionSpec("all"))


@functools.cache
def _number(heard: signal.Signals | None) -> jax.Array:
    """This process's number on its devices; made once, because a copy a step costs time."""
    mine = np.full(1, heard or 0, np.int32)
    return jax.make_array_from_callback((jax.device_count(),), _places(), lambda _: mine)


@functools.cache
def _maximum() -> Any:
    whole = NamedSharding(_places().mesh, PartitionSpec())
    return jax.jit(jnp.max, out_shardings=whole)
