"""Cases in a worker process: one that dies, or takes too long, becomes a row and the rest go on."""

import contextlib
import dataclasses
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attnlab import platforms
from attnlab.bench.case import Case, Result, from_json
from attnlab.runs.errors import Invalid

# JAX 0.10's CUDA plugin says at each start, whatever the platform, that there is no driver.
_CHATTER = re.compile(r"^.*(cudart_stub\.cc|before absl::InitializeLog).*\n?", re.MULTILINE)
SILENCE_SECONDS = 10.0  # between two words of progress
COMPILE_SECONDS = 120.0  # more than for running, on a busy machine as well
START_SECONDS = 300.0  # importing JAX from a cold network disk, or waking an accelerator


class Runner:
    """Runs cases one at a time in a worker, which it replaces when it dies.

    Attributes:
      environment: what the worker says of its machine (`environment.describe`).
    """

    def __init__(
        self,
        *,
        devices: int | None,
        input_path: str | None,
        repeats: int,
        case_seconds: float,
        case_bytes: float = math.inf,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [] if input_path is None else [input_path]
        self._devices = devices
        self._variables = variables or {}
        self._repeats = repeats
        self._case_seconds = case_seconds
        self._case_bytes = case_bytes
        self._worker: Worker | None = None
        self._log = tempfile.TemporaryFile()  # what workers write to stderr
        try:
            self.environment = self._start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process of the worker that is there now."""
        assert self._worker is not None
        return self._worker.pid

    def run(
        self, case: Case, *, run: bool = True, tell: Callable[[str], None] = lambda words: None
    ) -> Result:
        """One case's row, whatever happens to it; without `environment` and `flags`.

        Args:
          case: what to measure.
          run: False compiles only.
          tell: gets a word on what is going on, when that changes and every ten seconds.
        """
        if self._worker is None:
            self._start()
        assert self._worker is not None
        self._worker.send(
            case=dataclasses.asdict(case),
            repeats=self._repeats,
            limit_seconds=self._case_seconds,
            limit_bytes=self._case_bytes,
            run=run,
        )
        so_far = Result(case, "ok")
        stage, limit = "compiling", self._case_seconds + COMPILE_SECONDS
        tell(f"{stage} …")
        while True:
            # The worker keeps to the limit by itself; this is for one call that does not end.
            message = self._wait(limit * 1.2 + 5, tell)
            if message is None:
                stopped = self._worker.running()
                code = self._retire()
                why = (
                    f"stopped after {limit:.0f} s while {stage}"
                    if stopped
                    else f"{death(code)} while {stage}"
                )
                slow = "too_slow" if stage == "running" else "failed"  # which is tried again
                status = slow if stopped else "killed"
                return dataclasses.replace(so_far, status=status, message=why)
            if "result" in message:
                result = from_json(message["result"])
                if result.status == "failed" or result.message.startswith("RESOURCE_EXHAUSTED"):
                    self._retire()  # its allocator may be in any state
                return result
            so_far = from_json(message["compiled"])
            stage, limit = "running", self._case_seconds
            tell(f"{so_far.compile_seconds:.1f} s, {stage} …")

    def _wait(self, limit: float, tell: Callable[[str], None]) -> dict[str, Any] | None:
        """The worker's next message, or None where it died or the time is over."""
        assert self._worker is not None
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < limit:
            if waited >= SILENCE_SECONDS:
                tell(f"{waited:.0f} s …")
            message = self._worker.receive(min(SILENCE_SECONDS, limit - waited))
            if message is not None or not self._worker.running():
                return message
        return None

    def fresh(self) -> None:
        """Lets the next case start in a new worker, with nothing of the earlier ones in memory."""
        if self._worker is not None:
            self._retire()

    def close(self) -> None:
        """Ends the worker."""
        self.fresh()
        self._log.close()

    def errors(self) -> str:
        """What the workers wrote to stderr."""
        self._log.seek(0)
        return without_chatter(self._log.read().decode(errors="replace"))

    def _start(self) -> dict[str, Any]:
        worker = self._worker = Worker(
            self._command, self._devices, self._log, variables=self._variables
        )
        message = worker.receive(START_SECONDS)
        if message is None or "refused" in message:
            self._retire()
            text = message["refused"] if message else last_line(self.errors())
            raise Invalid(text or "the worker process did not start")
        return message["hello"]

    def _retire(self) -> int:
        assert self._worker is not None
        code = self._worker.end()
        self._worker = None
        return code


class Worker:
    """One worker process and the pipe it answers on."""

    def __init__(
        self,
        command: list[str],
        devices: int | None,
        log: Any,
        module: str = "experiments.compare_lengths.worker",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(writing), *command],
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
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died between two cases: `receive` will tell
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


@contextlib.contextmanager
def started(**settings: Any) -> Iterator[Runner]:
    """A `Runner` that is closed at the end."""
    runner = Runner(**settings)
    try:
        yield runner
    finally:
        runner.close()


def _environment(devices: int | None) -> dict[str, str]:
    """The worker's environment: these sources importable, no memory taken in advance."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    found = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return found if devices is None else platforms.variables_for_cpu_devices(devices, found)


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
