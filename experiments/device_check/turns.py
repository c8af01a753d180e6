"""Programs of one length timed in turns, so that what slows the device slows them all alike."""

import dataclasses
import datetime
import functools
import math
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

from attnlab.bench import inputs, memory, programs
from attnlab.bench.case import Case, Result
from attnlab.bench.measure import SAMPLE_SECONDS, sample
from attnlab.runs.units import human
from experiments.device_check import functions
from experiments.device_check.compiler import Compiler

REFUSED = "refused: "  # begins the message of a row that a second try would not change


@dataclasses.dataclass
class _Ready:
    """A compiled case with its arguments."""

    index: int
    known: Result
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    one_call: float = 0.0
    calls: int = 1
    seconds: list[float] = dataclasses.field(default_factory=list)


def run(
    cases: Sequence[Case],
    text: inputs.Text,
    *,
    repeats: int,
    case_seconds: float,
    threads: int,
    seconds: float = math.inf,
    tell: Callable[[int, str], None],
    give: Callable[[int, Result], None],
) -> None:
    """Compiles all, then takes one sample of each in turn, `repeats` times.

    Args:
      cases: cases of one length, batch and pass.
      text: source of the inputs.
      repeats: number of samples; entry i of every row's `seconds` was taken in turn i.
      case_seconds: limit for a case: one whose first call takes more than a third of it has only
        that sample, and no turn begins that would take all cases together beyond this average.
      threads: number of programs that are compiled at once.
      seconds: seconds for the job; cases that have not compiled after two thirds of it get no row.
      tell: (index of a case, what is done with it next) -> None; "compiling", "preparing" or
        "running".
      give: (index of a case, its row) -> None; called as soon as the row is known.
    """
    device = jax.local_devices()[0]
    compiled = _compile(cases, device, threads, seconds * 2 / 3, tell, give)
    arrays = functools.cache(
        lambda dtype: functions.arrays(dataclasses.replace(cases[0], dtype=dtype), text)
    )
    cycled = text.cycles(cases[0].batch, functions.shape(cases[0])[1])
    ready: list[_Ready] = []
    for i, (known, call, mechanism) in compiled.items():
        known = dataclasses.replace(known, input_cycled=cycled)
        used, free = known.analysis_bytes or 0, known.available_bytes
        if free is not None and used > free:
            message = f"needs {human(used)} of {human(free)}"
            give(i, dataclasses.replace(known, status="too_large", message=message))
            continue
        tell(i, "preparing")
        parameters = jax.jit(mechanism.init)(jax.random.key(0))
        given = arrays(known.case.dtype)
        rows = [given[name] for name in mechanism.streams]
        if known.case.passes == "forward_backward":
            rows.append(given["cotangent"])
        one = _Ready(i, known, call, (parameters, *rows))
        tell(i, "running")
        try:
            _warm_up(one, case_seconds)
        except Exception as error:  # a case's failure is a row; the others go on
            give(i, _failed(known, error))
            continue
        ready.append(one)
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    _take_turns(ready, repeats, case_seconds, device.platform == "cpu", tell, give)
    for one in ready:
        note = "" if len(one.seconds) == repeats else f"{len(one.seconds)} of {repeats} repeats"
        row = dataclasses.replace(
            one.known,
            seconds=tuple(one.seconds),
            calls_per_sample=one.calls,
            message=note,
            turns=began,
        )
        give(one.index, row)


def _compile(
    cases: Sequence[Case],
    device: jax.Device,
    threads: int,
    seconds: float,
    tell: Callable[[int, str], None],
    give: Callable[[int, Result], None],
) -> dict[int, tuple[Result, Any, Any]]:
    """For each case that compiled: its row so far, its program and its mechanism."""
    free = memory.available(device)
    pending, found = {}, {}
    with Compiler(threads, seconds) as compiler:
        for i, case in enumerate(cases):
            tell(i, "compiling")
            try:
                mechanism = functions.build(case, device.platform)
                shaped = functions.lowered_case(case)
                lowered = programs.lower(shaped, mechanism, [device])
                pending[i] = mechanism, lowered, compiler.submit(lowered)
            except Exception as error:  # a case's failure is a row; the others go on
                give(i, _failed(Result(case, "failed"), error))
        for i, (mechanism, lowered, future) in pending.items():
            tell(i, "compiling")
            try:
                compiled = future.result(compiler.left())
                need = memory.analyze(lowered, compiled.program, device.platform)
            except TimeoutError:
                continue
            except Exception as error:  # it becomes a row; the others go on
                give(i, _failed(Result(cases[i], "failed"), error))
                continue
            known = Result(
                cases[i],
                "ok",
                compile_seconds=compiled.seconds,
                available_bytes=free,
                **dataclasses.asdict(need),
            )
            found[i] = known, compiled.program, mechanism
    return found


def _failed(known: Result, error: Exception) -> Result:
    words = " ".join(str(error).split())[:300]
    if isinstance(error, NotImplementedError):
        return dataclasses.replace(known, status="failed", message=REFUSED + words)
    traceback.print_exc()
    if "RESOURCE_EXHAUSTED" in words:
        return dataclasses.replace(known, status="too_large", message=words)
    return dataclasses.replace(known, status="failed", message=f"{type(error).__name__}: {words}")


def _warm_up(one: _Ready, case_seconds: float) -> None:
    run = functools.partial(sample, one.call, one.arguments, block_each=True)
    one.one_call = run(1)
    if one.one_call > case_seconds / 3:
        one.seconds.append(one.one_call)  # so long that one sample is enough
        return
    one.one_call = run(1)
    one.calls = max(1, math.ceil(SAMPLE_SECONDS / one.one_call))


def _take_turns(
    ready: list[_Ready],
    repeats: int,
    case_seconds: float,
    host: bool,
    tell: Callable[[int, str], None],
    give: Callable[[int, Result], None],
) -> None:
    """Adds samples to `ready`; a case that fails gets its row and is taken out."""
    in_turn = [one for one in ready if not one.seconds]
    began = time.perf_counter()
    for turn in range(repeats):
        used = time.perf_counter() - began
        if turn and used * (turn + 1) / turn > case_seconds * len(in_turn):
            break
        for one in in_turn[:: -1 if turn % 2 else 1]:
            tell(one.index, "running")
            try:
                one.seconds.append(sample(one.call, one.arguments, one.calls, block_each=host))
            except Exception as error:  # a case's failure is a row; the others go on
                give(one.index, _failed(one.known, error))
                in_turn.remove(one)
                ready.remove(one)
