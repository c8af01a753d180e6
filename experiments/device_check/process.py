"""Runs jobs in a worker process: if it dies, one member of the job is lost and the others go on.

A worker in which something failed on the device is not used again, because after a CUDA error all
that its process does fails too. Nor is a worker that still compiles programs nobody waits for.
"""

import collections
import dataclasses
import time
from collections.abc import Generator, Iterator
from typing import Any

from attnlab.bench.case import Result
from attnlab.bench.workers import Worker, Workers, death
from attnlab.runs.flags import structured
from experiments.device_check.cases import Check, Checked
from experiments.device_check.jobs import Job, Row, program

COMPILE_SECONDS = 120.0  # to wait for a message while the worker compiles or computes in NumPy
RUN_SECONDS = 20.0  # for a check on the device; one that takes longer is stopped
FIRST_CALL_SECONDS = 5.0  # at least, for a timed program: its first call also loads it
MODULE = "experiments.device_check.worker"


class Device(Workers):
    """The worker that has the device.

    Attributes:
      lost: number of workers that were lost to each program, by `jobs.program`.
    """

    def __init__(self, module: str = MODULE) -> None:
        super().__init__(module)
        self.lost: collections.Counter[tuple[str, str | None]] = collections.Counter()

    def measure(
        self, job: Job, *, deadline: float, repeats: int, case_seconds: float
    ) -> Iterator[Row]:
        """Does a job's members and yields rows as they come, whatever happens to the worker.

        Args:
          job: job with the members to do.
          deadline: `time.monotonic()` at which the job is given up; its other members get no row.
          repeats: number of samples of a program.
          case_seconds: seconds that a program may take.
        """
        left = dict(enumerate(job.members))
        threads = max(1, min(8, int(self.environment["cores"]) // 2))
        while left and time.monotonic() < deadline:
            worker = self.ready()
            indices = list(left)
            worker.send(
                kind=job.kind,
                members=[dataclasses.asdict(left[i]) for i in indices],
                repeats=repeats,
                case_seconds=case_seconds,
                threads=threads,
                seconds=deadline - time.monotonic(),
            )
            run_seconds = RUN_SECONDS
            if job.kind == "time":
                run_seconds = max(case_seconds, FIRST_CALL_SECONDS)
            ended, at, stage = yield from _listen(worker, indices, left, deadline, run_seconds)
            if ended and not left:
                return
            stopped = worker.running()
            code = self.retire()
            if ended or time.monotonic() >= deadline:
                return
            if at is not None and at not in left:  # it has its row: a fresh worker does the others
                self.lost[program(job.members[at])] += 1
                continue
            if stage == "compiling" and threads > 1 and not stopped:
                threads = 1  # several were compiling: one by one shows which one it was
                continue
            took = "stopped: it took too long" if stopped else death(code)
            member = left.pop(at if at is not None else indices[0])
            self.lost[program(member)] += 1
            yield _lost(member, "too_slow" if stopped else "killed", f"{took} while {stage}")


def _listen(
    worker: Worker,
    indices: list[int],
    left: dict[int, Any],
    deadline: float,
    run_seconds: float,
) -> Generator[Row, None, tuple[bool, int | None, str]]:
    """Yields rows and takes their members out of `left`.

    Returns:
      Whether the job came to its end; if not, the index of the member at which it stopped, and what
      was done with it. A job also stops after the row of a member that failed on the device.
    """
    at, stage = None, "starting"
    while True:
        patience = run_seconds if stage == "running" else COMPILE_SECONDS
        message = worker.receive(min(patience, max(0.0, deadline - time.monotonic())))
        if message is None:
            return False, at, stage
        if "done" in message:
            return True, None, ""
        index = indices[message["member"]]
        if "row" not in message:
            at, stage = index, message["stage"]
            continue
        kind = Checked if isinstance(left.pop(index), Check) else Result
        row = structured(kind, message["row"])
        yield row
        if row.status in ("crashed", "failed") and (index, "running") == (at, stage):
            return False, at, stage


def _lost(member: Any, status: str, message: str) -> Row:
    if isinstance(member, Check):
        return Checked(member, "crashed", message)
    return Result(member, status, message)
