"""Cases in a worker process: one that dies, or takes too long, becomes a row and the rest go on."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnlab.bench.case import Case, Result
from attnlab.bench.roofline import Peak, Unit
from attnlab.bench.workers import Workers, death
from attnlab.mechanisms.attentions import kind_of
from attnlab.runs.flags import build

PAUSE_SECONDS = 0.01  # between turns: OpenMP's threads spin for milliseconds after their work
# Allowed difference over the largest value: sums of some thousand terms.
SAME = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}
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
        self._make_other = functools.partial(
            Runner,
            devices=devices,
            input_path=input_path,
            repeats=repeats,
            case_seconds=case_seconds,
            case_bytes=case_bytes,
            variables=variables,
        )
        self._base: Case | None = None
        super().__init__(
            "experiments.compare_lengths.worker",
            [] if input_path is None else [input_path],
            devices=devices,
            variables=variables,
        )
        self._repeats, self._case_seconds, self._case_bytes = repeats, case_seconds, case_bytes

    def run(
        self, case: Case, *, run: bool = True, tell: Callable[[str], None] = lambda words: None
    ) -> Result:
        """One case's row, whatever happens to it; without `run` it is only compiled.

        `tell` is told what is going on, at each change and every ten seconds.
        """
        result, _ = self._do(case, tell, run=run, in_turns=False)
        return result

    def run_against(
        self, case: Case, base: Case, tell: Callable[[str], None] = lambda words: None
    ) -> Result:
        """The row of a case that is timed in turns with another.

        Each has a process of its own, so that neither shares its thread pool or its allocator with
        the other; one that waits for its turn sleeps. The turns are short and alternate in order,
        so what else the machine does falls on both alike.
        """
        other = self._other
        if self._base != base or other.pid is None:
            self._base = base
            self._base_row, self._base_ready = other._do(base, tell, run=True, in_turns=True)
        row, ready = self._do(case, tell, run=True, in_turns=True)
        if ready is None:
            return row
        if self._base_ready is None:
            alone = self.run(case, tell=tell)
            why = f"not timed against {base.label}: {self._base_row.message}"
            return dataclasses.replace(alone, message=alone.message or why)
        if (apart := difference(case, base, ready["values"], self._base_ready["values"])) != 0:
            words = f"its values differ from those of {base.label} by {apart:.1e} of the largest"
            return dataclasses.replace(row, status="failed", message=words)
        repeats = 1 if ready["slow"] or self._base_ready["slow"] else self._repeats
        seconds: dict[Runner, list[float]] = {self: [], other: []}
        began = time.monotonic()
        for turn in range(repeats):
            used = time.monotonic() - began
            if turn and used * (turn + 1) / turn > 2 * self._case_seconds:
                break
            for side in (self, other) if turn % 2 else (other, self):
                time.sleep(PAUSE_SECONDS)
                side.ready().send(sample=True)
                message = side._wait(self._case_seconds * 1.2 + 5, tell)
                if message is None or "seconds" not in message:
                    whose = case if side is self else base
                    why = f"{whose.label}: {death(side.retire())} while running"
                    return dataclasses.replace(row, status="killed", message=why)
                seconds[side].append(message["seconds"])
        few = f"{len(seconds[self])} of {self._repeats} turns in the time limit"
        return dataclasses.replace(
            row,
            seconds=tuple(seconds[self]),
            base_seconds=tuple(seconds[other]),
            calls_per_sample=ready["calls"],
            message="" if len(seconds[self]) == self._repeats else few,
        )

    @functools.cached_property
    def _other(self) -> Runner:
        """The runner of what cases are timed against; it ends with this one."""
        return self._make_other().__enter__()

    def _do(
        self, case: Case, tell: Callable[[str], None], *, run: bool, in_turns: bool
    ) -> tuple[Result, dict[str, Any] | None]:
        """The row of a case, and the worker's message where it is ready for its turns."""
        if self.pid is None:
            tell("starting a process …")
        worker = self.ready()
        worker.send(
            case=dataclasses.asdict(case),
            run=run,
            in_turns=in_turns,
            repeats=self._repeats,
            limit_seconds=self._case_seconds,
            limit_bytes=self._case_bytes,
        )
        so_far = Result(case, "ok")
        stage, limit = "compiling", self._case_seconds + COMPILE_SECONDS
        tell(f"{stage} …")
        while True:
            # The worker keeps to the limit by itself, but cannot end a call that hangs.
            message = self._wait(limit * 1.2 + 5, tell)
            if message is None:
                stopped = worker.running()
                code = self.retire()
                why = (
                    f"stopped after {limit:g} s while {stage}"
                    if stopped
                    else f"{death(code)} while {stage}"
                )
                slow = "too_slow" if stage == "running" else "failed"  # --resume tries again
                status = slow if stopped else "killed"
                return dataclasses.replace(so_far, status=status, message=why), None
            if "ready" in message:
                return build(Result, message["ready"]), message
            if "result" in message:
                result = build(Result, message["result"])
                if result.status == "failed" or result.message.startswith("RESOURCE_EXHAUSTED"):
                    self.retire()  # the process may hold memory that the next case needs
                return result, None
            so_far = build(Result, message["compiled"])
            stage, limit = "running", self._case_seconds
            took = so_far.compile_seconds
            tell(f"{'' if took is None else f'compiled in {took:.1f} s, '}{stage} …")

    def peak(self, unit: Unit) -> Peak:
        """The peak of a unit, or why it was not measured."""
        worker = self.ready()
        worker.send(unit=dataclasses.asdict(unit), repeats=self._repeats)
        message = self._wait(COMPILE_SECONDS, lambda words: None)
        if message is not None:
            return build(Peak, message["peak"])
        stopped = worker.running()
        code = self.retire()
        return Peak(unit, 0.0, message="took too long" if stopped else death(code))

    def retire(self) -> int:
        if "_other" in self.__dict__:
            self._other.retire()
        return super().retire()

    def __exit__(self, *_: object) -> None:
        if "_other" in self.__dict__:
            self._other.__exit__()
        super().__exit__()

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


def difference(
    case: Case, base: Case, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> float:
    """How far the values of two programs of one function differ, over the largest, if too far.

    0 where they may differ so much, or compute different functions; NaN where one of them has it.
    """
    one = kind_of(case.attention.kind).computes or case.mechanism
    two = kind_of(base.attention.kind).computes or base.mechanism
    if one != two or not ours or not theirs:
        return 0.0
    pairs = [(np.array(x), np.array(y)) for x, y in zip(ours, theirs, strict=True)]
    apart = float(np.max([np.max(np.abs(x - y)) / (np.max(np.abs(y)) or 1.0) for x, y in pairs]))
    return 0.0 if apart <= SAME[case.dtype] else apart
