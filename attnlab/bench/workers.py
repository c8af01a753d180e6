"""Programs in a process of their own: one that dies takes what it was at with it, and no more.

The parent (`Workers`) writes orders to the standard input of a worker (`serve`), a line of JSON
each, and reads messages on a pipe. It never initializes a device: an accelerator belongs to the
worker alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from attnlab.bench import memory
from attnlab.devices import platforms
from attnlab.runs.errors import Invalid

# JAX 0.10's CUDA plugin says at each start, whatever the platform, that there is no driver.
_CHATTER = re.compile(r"^.*(cudart_stub\.cc|before absl::InitializeLog).*\n?", re.MULTILINE)
_START_SECONDS = 300.0  # importing JAX from a cold network disk, or waking an accelerator

Send = Callable[..., None]  # (**message)


class Worker:
    """One process that runs a module which calls `serve`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Any,
        *,
        devices: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the process.

        Args:
          module: full name of the module that calls `serve`.
          arguments: arguments of its command line, behind the pipe's number.
          log: file that gets what the process writes.
          devices: number of devices of a CPU; None = as the environment says.
          variables: environment variables.
        """
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(writing), *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=_environment(devices) | dict(variables or {}),
            pass_fds=[writing],
            start_new_session=True,  # Ctrl-C is for the parent, which keeps the rows
        )
        os.close(writing)
        self.pid = self._process.pid
        self._reading = reading
        self._rest = b""

    def send(self, **order: Any) -> None:
        """Gives the worker an order."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died between two orders: `receive` tells
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, or None at the end of the time or of the process."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], left)[0]:
                return None
            part = os.read(self._reading, 1 << 16)
            if not part:
                self._process.wait()
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def end(self) -> int:
        """Kills the process if it still runs; its exit status."""
        self._process.kill()
        code = self._process.wait()
        os.close(self._reading)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return code


class Workers:
    """One worker at a time, a fresh one where the last is gone; a context that ends it.

    Attributes:
      environment: environment that the first worker told of its machine.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        devices: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Takes the arguments of `Worker`; nothing starts before the context is entered."""
        self._make = lambda log: Worker(
            module, arguments, log, devices=devices, variables=variables
        )
        self._worker: Worker | None = None
        self._last = 0  # where in the log the last worker began
        self.environment: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()  # what workers write, one after the other
        try:
            self.ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.retire()
        self._log.close()

    @property
    def pid(self) -> int | None:
        """The process of the worker that is there."""
        return self._worker.pid if self._worker else None

    def ready(self) -> Worker:
        """The worker, started where there is none.

        Raises:
          Invalid: it did not start; the message says why.
        """
        if self._worker is None:
            self._last = os.fstat(self._log.fileno()).st_size
            self._worker = self._make(self._log)
            message = self._worker.receive(_START_SECONDS)
            if message is None or "hello" not in message:
                self.retire()
                text = message["refused"] if message else last_line(self.last_words())
                raise Invalid(text or "the worker process did not start")
            self.environment = self.environment or message["hello"]
        return self._worker

    def retire(self) -> int:
        """Ends the worker, if there is one; its exit status. The next is a fresh one."""
        code = 0 if self._worker is None else self._worker.end()
        self._worker = None
        return code

    def errors(self) -> str:
        """What all workers wrote."""
        return self._written(0)

    def last_words(self) -> str:
        """What the last worker wrote."""
        return self._written(self._last)

    def _written(self, start: int) -> str:
        log = self._log.fileno()
        text = os.pread(log, os.fstat(log).st_size - start, start)  # they write where the file is
        return without_chatter(text.decode(errors="replace"))


def serve(
    hello: Callable[[], dict[str, Any]], answer: Callable[[dict[str, Any], Send], None]
) -> None:
    """A worker's life: says what its machine is, then answers orders until the parent is gone.

    Args:
      hello: () -> the environment; a ValueError or RuntimeError is why it cannot work here.
      answer: function of an order and of a function that sends messages, from any thread.
    """
    memory.volunteer_for_the_oom_killer()
    memory.dispatch_synchronously()
    out, lock = os.fdopen(int(sys.argv[1]), "w", buffering=1), threading.Lock()

    def send(**message: Any) -> None:
        with lock:
            out.write(json.dumps(message) + "\n")

    orders = _orders()
    try:
        send(hello=hello())
    except (ValueError, RuntimeError) as error:  # RuntimeError: JAX found no such backend
        send(refused=str(error).splitlines()[0])
        return
    while True:
        answer(orders.get(), send)


def death(code: int) -> str:
    """Why a process ended, from its exit status."""
    if code == -signal.SIGKILL:
        return "killed (SIGKILL: usually the system, out of memory)"
    if code < 0:
        return f"killed ({signal.Signals(-code).name})"
    return f"its process ended with status {code}"


def without_chatter(text: str) -> str:
    """What a process wrote to stderr, less what a plugin for absent devices adds.

    >>> print(without_chatter("I0 cudart_stub.cc:31] Could not find cuda drivers" + chr(10) + "!"))
    !
    """
    return _CHATTER.sub("", text)


def last_line(text: str) -> str:
    """What a process said last."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _environment(devices: int | None) -> dict[str, str]:
    """A worker's environment: these sources importable, no memory taken in advance."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    variables = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return variables if devices is None else platforms.variables_for_cpu_devices(devices, variables)


def _orders() -> queue.SimpleQueue[dict[str, Any]]:
    """Lines of standard input as they come. When it ends the parent is gone: so is this process."""
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        os._exit(0)  # not after the order: that may take an hour

    threading.Thread(target=read, daemon=True).start()
    return orders
