"""Jobs in a worker process that may die: one member is lost with it, and the others are done.

A worker in which something failed on the device is not used again: after a CUDA error whatever the
process does next fails too. Nor is one that still compiles what nobody waits for.
"""

import collections
import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from attnlab.bench.case import Result, from_json
from attnlab.runs.errors import Invalid
from experiments.compare_lengths.runner import (
    START_SECONDS,
    Worker,
    death,
    last_line,
    without_chatter,
)
from experiments.device_check.cases import Check, Checked
from experiments.device_check.cases import from_json as checked_from_json
from experiments.device_check.jobs import Job, program

COMPILE_SECONDS = 120.0  # without a word from the worker, which compiles or computes in NumPy
RUN_SECONDS = 20.0  # of a check on the device: what takes longer hangs
FIRST_CALL_SECONDS = 5.0  # the least for a timed program: its first call also loads it
MODULE = "experiments.device_check.worker"
Row = Checked | Result


class Device:
    """The worker process, started anew when it dies.

    Attributes:
      environment: what the worker says of its machine (`environment.describe`).
      lost: how many workers each `device_jobs.program` has cost.
    """

    def __init__(self, module: str = MODULE) -> None:
        self.lost: collections.Counter[tuple[str, str | None]] = collections.Counter()
        self._module = module
        self._log = tempfile.TemporaryFile()  # what workers write to stderr
        self._worker: Worker | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """The process of the worker that is there now."""
        return self._worker.pid if self._worker else None

    def run(
        self,
        job: Job,
        give: Callable[[Row], None],
        *,
        deadline: float,
        repeats: int,
        case_seconds: float,
    ) -> None:
        """Does a job's members and gives each row as it comes, whatever happens to the worker.

        Args:
          job: its members are those to be done.
          give: given the rows.
          deadline: `time.monotonic()` after which nothing is waited for; members without a row
            then get none.
          repeats: samples of a program.
          case_seconds: the most that one may take.
        """
        left = dict(enumerate(job.members))
        threads = max(1, min(8, int(self.environment["cores"]) // 2))
        while left and time.monotonic() < deadline:
            if self._worker is None:
                self._start()
            assert self._worker is not None
            indices = list(left)
            self._worker.send(
                kind=job.kind,
                members=[dataclasses.asdict(left[i]) for i in indices],
                repeats=repeats,
                case_seconds=case_seconds,
                threads=threads,
                seconds=deadline - time.monotonic(),
            )
            timed = job.kind == "time"
            run_seconds = max(case_seconds, FIRST_CALL_SECONDS) if timed else RUN_SECONDS
            ended, at, stage = self._listen(indices, left, give, deadline, run_seconds)
            if ended and not left:
                return
            stopped = self._worker.running()
            code = self._retire()
            if ended or time.monotonic() >= deadline:
                return
            if at is not None and at not in left:  # it said what failed: the others in a fresh one
                self.lost[program(job.members[at])] += 1
                continue
            if stage == "compiling" and threads > 1 and not stopped:
                threads = 1  # several were being compiled: once more, to see whose fault it was
                continue
            took = "stopped: it took too long" if stopped else death(code)
            member = left.pop(at if at is not None else indices[0])
            self.lost[program(member)] += 1
            give(_lost(member, "too_slow" if stopped else "killed", f"{took} while {stage}"))

    def close(self) -> None:
        """Ends the worker."""
        if self._worker is not None:
            self._retire()
        self._log.close()

    def errors(self) -> str:
        """What the workers wrote to stderr."""
        self._log.seek(0)
        return without_chatter(self._log.read().decode(errors="replace"))

    def _listen(
        self,
        indices: list[int],
        left: dict[int, Any],
        give: Callable[[Row], None],
        deadline: float,
        run_seconds: float,
    ) -> tuple[bool, int | None, str]:
        """Whether the job came to its end; else which member it stopped at, and in what.

        It stops at a member that failed on the device, whose row is given.
        """
        assert self._worker is not None
        at, stage = None, "starting"
        while True:
            patience = run_seconds if stage == "running" else COMPILE_SECONDS
            message = self._worker.receive(min(patience, max(0.0, deadline - time.monotonic())))
            if message is None:
                return False, at, stage
            if "done" in message:
                return True, None, ""
            member = indices[message["member"]]
            if "row" in message:
                text = message["row"]
                row = checked_from_json(text) if isinstance(text, dict) else from_json(text)
                give(row)
                left.pop(member)
                if row.status in ("crashed", "failed") and (member, "running") == (at, stage):
                    return False, at, stage
            else:
                at, stage = member, message["stage"]

    def _start(self) -> None:
        worker = self._worker = Worker([], None, self._log, self._module)
        message = worker.receive(START_SECONDS)
        if message is None or "refused" in message:
            self._retire()
            text = message["refused"] if message else last_line(self.errors())
            raise Invalid(text or "the worker process did not start")
        self.environment: dict[str, Any] = message["hello"]

    def _retire(self) -> int:
        assert self._worker is not None
        code = self._worker.end()
        self._worker = None
        return code


def _lost(member: Any, status: str, message: str) -> Row:
    if isinstance(member, Check):
        return Checked(member, "crashed", message)
    return Result(member, status, message)


@contextlib.contextmanager
def started(module: str = MODULE) -> Iterator[Device]:
    """A `Device` that is closed at the end."""
    device = Device(module)
    try:
        yield device
    finally:
        device.close()
