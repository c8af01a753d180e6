"""Cases in a worker process: one that dies, or takes too long, becomes a row and the rest go on."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from attnlab.bench.case import Case, Result
from attnlab.bench.roofline import Peak, Unit
from attnlab.bench.workers import Workers, death
from attnlab.runs.flags import structured

SILENCE_SECONDS = 10.0  # after which the progress line goes on
COMPILE_SECONDS = 120.0  # to compile a case, beside the limit for running it


class Runner(Workers):
    """Runs cases one at a time in a worker, which is replaced when it dies."""

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
        """Starts no process yet.

        Args:
          devices: number of devices of a CPU; None = as the environment says.
          input_path: path of a text; None = the project's sources.
          repeats: number of timed samples of a case.
          case_seconds: seconds that a case may run.
          case_bytes: bytes of a CPU's memory that a case may take.
          variables: environment variables of the worker.
        """
        super().__init__(
            "experiments.compare_lengths.worker",
            [] if input_path is None else [input_path],
            devices=devices,
            variables=variables,
        )
        self._limits = {
            "repeats": repeats,
            "limit_seconds": case_seconds,
            "limit_bytes": case_bytes,
        }
        self._case_seconds = case_seconds

    def run(
        self, case: Case, *, run: bool = True, tell: Callable[[str], None] = lambda words: None
    ) -> Result:
        """One case's row, whatever happens to it.

        Args:
          case: case to measure.
          run: False compiles only.
          tell: (words) -> None; told what is going on, at each change and every ten seconds.
        """
        if self.pid is None:
            tell("starting a process …")
        worker = self.ready()
        worker.send(case=dataclasses.asdict(case), run=run, **self._limits)
        so_far = Result(case, "ok")
        # On a CPU programs may be compiled twice, see `memory.analyze`; only one counts.
        stage, limit = "compiling", self._case_seconds + COMPILE_SECONDS
        tell(f"{stage} …")
        while True:
            # The worker keeps to the limit by itself, but cannot end a call that hangs.
            message = self._wait(limit * 1.2 + 5, tell)
            if message is None:
                stopped = worker.running()
                code = self.retire()
                why = (
                    f"stopped after {limit:.0f} s while {stage}"
                    if stopped
                    else f"{death(code)} while {stage}"
                )
                slow = "too_slow" if stage == "running" else "failed"  # --resume tries again
                status = slow if stopped else "killed"
                return dataclasses.replace(so_far, status=status, message=why)
            if "result" in message:
                result = structured(Result, message["result"])
                if result.status == "failed" or result.message.startswith("RESOURCE_EXHAUSTED"):
                    self.retire()  # the process may hold memory that the next case needs
                return result
            so_far = structured(Result, message["compiled"])
            stage, limit = "running", self._case_seconds
            tell(f"compiled in {so_far.compile_seconds:.1f} s, {stage} …")

    def peak(self, unit: Unit) -> Peak:
        """The peak of a unit, or why it was not measured."""
        worker = self.ready()
        worker.send(unit=dataclasses.asdict(unit), repeats=self._limits["repeats"])
        message = self._wait(COMPILE_SECONDS, lambda words: None)
        if message is not None:
            return structured(Peak, message["peak"])
        stopped = worker.running()
        code = self.retire()
        return Peak(unit, 0.0, message="took too long" if stopped else death(code))

    def _wait(self, limit: float, tell: Callable[[str], None]) -> dict[str, Any] | None:
        """The worker's next message, or None if the worker died or the time is up."""
        worker, begun = self.ready(), time.monotonic()
        while (waited := time.monotonic() - begun) < limit:
            if waited >= SILENCE_SECONDS:
                tell(f"{waited:.0f} s …")
            message = worker.receive(min(SILENCE_SECONDS, limit - waited))
            if message is not None or not worker.running():
                return message
        return None
