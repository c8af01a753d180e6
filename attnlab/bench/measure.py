"""One case in this process: compile, see whether it fits, run, watch the memory, time."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax

from attnlab.bench import inputs, mechanisms, memory, programs
from attnlab.bench.case import Case, Result
from attnlab.runs.units import human

SAMPLE_SECONDS = 5e-3  # shorter calls are batched: a clock read and a thread wake-up cost ~20 µs


def measure(
    case: Case,
    text: inputs.Text,
    *,
    repeats: int,
    limit_seconds: float = math.inf,
    limit_bytes: float = math.inf,
    run: bool = True,
    build: Callable[[Case], mechanisms.Mechanism] = mechanisms.build,
    on_compiled: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Measures one case.

    Args:
      case: case to measure.
      text: text that the inputs are made of.
      repeats: number of timed samples.
      limit_seconds: time after the start of the first run by which every sample must be expected to
        end, or it is not started.
      limit_bytes: size of a CPU's memory that the case may take; an accelerator has a limit of its
        own.
      run: whether to run the program; False stops after compiling.
      build: case -> mechanism.
      on_compiled: function of the result as it is known before the first run.

    Returns:
      A result "ok", "too_large" or "too_slow". Whatever the mechanism raises, it raises.
    """
    devices = jax.local_devices()[: case.devices]
    platform = devices[0].platform
    host = platform == "cpu"
    sharers = len(devices) if host else 1  # devices that share one memory
    mechanism = build(case)

    start = time.perf_counter()
    lowered = programs.lower(case, mechanism, devices)
    compiled = lowered.compile()
    compile_seconds = time.perf_counter() - start
    need = memory.analyze(lowered, compiled, platform)
    free = memory.available(devices[0])
    allowed = host and limit_bytes < (math.inf if free is None else free)
    free = int(limit_bytes) if allowed else free
    known = Result(
        case,
        "ok",
        compile_seconds=compile_seconds,
        argument_bytes=need.argument_bytes,
        output_bytes=need.output_bytes,
        temporary_bytes=need.temporary_bytes,
        available_bytes=None if free is None else free // sharers,
        input_cycled=text.cycles(case.batch, case.length),
    )
    if free is not None and need.total * sharers > free:
        word = "allowed" if allowed else "free"
        message = f"needs {human(need.total * sharers)} of {human(free)} {word}"
        return dataclasses.replace(known, status="too_large", message=message)
    if not run:
        return dataclasses.replace(known, status="too_slow", message="not run")
    on_compiled(known)

    streams = inputs.streams(text, batch=case.batch, length=case.length, width=case.width)
    arguments = programs.arguments(case, mechanism, devices, streams, lowered)
    jax.block_until_ready(arguments)
    del streams
    device_peak_before = _device_peak(devices[0])
    began = time.perf_counter()

    def call() -> None:
        jax.block_until_ready(compiled(*arguments))

    _, extra = memory.peak_of(call)  # the first run also pays for threads and pages
    one_call = time.perf_counter() - began
    seconds: list[float] = []
    if one_call > limit_seconds / 3:
        seconds.append(one_call)  # too long for another one, and too long for that to matter
    else:
        start = time.perf_counter()
        _, extra = memory.peak_of(call)
        one_call = time.perf_counter() - start

    device_peak = _device_peak(devices[0])
    known = dataclasses.replace(
        known,
        resident_peak_bytes=need.argument_bytes + extra // sharers if host and extra else None,
        device_peak_bytes=None if device_peak == device_peak_before else device_peak,
    )

    calls = max(1, math.ceil(SAMPLE_SECONDS / one_call))
    while len(seconds) < repeats:
        start = time.perf_counter()
        expected = calls * (seconds[-1] if seconds else one_call)
        if start - began + expected > limit_seconds and seconds:
            break
        seconds.append(sample(compiled, arguments, calls, block_each=host))
    note = (
        "" if len(seconds) == repeats else f"{len(seconds)} of {repeats} repeats in the time limit"
    )
    return dataclasses.replace(known, message=note, seconds=tuple(seconds), calls_per_sample=calls)


def sample(
    compiled: Callable[..., Any], arguments: tuple[Any, ...], calls: int, *, block_each: bool
) -> float:
    """Seconds of one call, averaged over `calls`; `block_each` on a CPU.

    An accelerator's stream runs them in order, so blocking on the last is enough and hides the
    dispatch; on CPU unblocked calls would run side by side.
    """
    start = time.perf_counter()
    for _ in range(calls):
        out = compiled(*arguments)
        if block_each:
            jax.block_until_ready(out)
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / calls


def _device_peak(device: jax.Device) -> int | None:
    """The allocator's peak so far: monotone over the process's life; None on CPU."""
    stats = device.memory_stats()
    return stats.get("peak_bytes_in_use") if stats else None
