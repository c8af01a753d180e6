"""A case compiled for an accelerator that is not there: what it would need, without times."""

import dataclasses
import re
import time
from collections.abc import Sequence

import jax

from attnlab import platforms
from attnlab.bench import (
    mechanisms,
    memory,
    model_programs,
    network,
    programs,
    targets,
    topology,
    work,
)
from attnlab.bench.case import ATTENTION, DECODE, Case, Result, Sent
from attnlab.bench.targets import Target
from attnlab.runs.units import human

NO_CUDNN = "cuDNN not found"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def lower(case: Case, devices: Sequence[jax.Device]) -> jax.stages.Lowered:
    """The program that a case names."""
    if case.program == ATTENTION:
        return programs.lower(case, mechanisms.build(case), devices)
    return model_programs.lower(case, devices)


def analyze(case: Case) -> Result:
    """Compiles the case for its target.

    Where the device would choose cuDNN's attention and cuDNN is not installed here, it is compiled
    blockwise, and the row's message says so.

    Returns:
      A result "ok" or "too_large". Whatever the mechanism or the compiler raises, it raises.
    """
    assert case.target is not None
    target = targets.parse(case.target)
    devices = topology.devices(target)
    try:
        return _compiled(case, case, target, devices)
    except RuntimeError as error:
        if NO_CUDNN not in str(error) or case.implementation is not None:
            raise
    blockwise = dataclasses.replace(case, implementation="blockwise")
    result = _compiled(case, blockwise, target, devices)
    note = "compiled blockwise: cuDNN, which the device would choose, is not installed"
    return dataclasses.replace(result, message="; ".join(filter(None, [result.message, note])))


def _compiled(case: Case, built: Case, target: Target, devices: Sequence[jax.Device]) -> Result:
    start = time.perf_counter()
    with platforms.compiling_for(target.platform):
        lowered = lower(built, devices)
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            refused = refused_sizes(str(error))
            if refused is None:
                raise
            return Result(
                case,
                "too_large",
                _needs(*refused),
                compile_seconds=time.perf_counter() - start,
                refused_bytes=refused[0],
                available_bytes=refused[1],
            )
    seconds = time.perf_counter() - start
    need = memory.analyze(lowered, compiled, devices[0].platform)
    fits = need.total <= target.memory_bytes  # XLA's GPU compiler leaves that to the allocator
    sent, note = _sent(compiled, target)
    return Result(
        case,
        "ok" if fits else "too_large",
        note if fits else _needs(need.total, target.memory_bytes),
        compile_seconds=seconds,
        argument_bytes=need.argument_bytes,
        output_bytes=need.output_bytes,
        temporary_bytes=need.temporary_bytes,
        available_bytes=target.memory_bytes,
        sent=sent,
    )


def _sent(compiled: jax.stages.Compiled, target: Target) -> tuple[Sent | None, str]:
    """What a device of a slice sends to the others, or why that is not known."""
    if target.devices == 1:
        return None, ""
    sizes = {"devices": target.devices, "devices_per_host": target.devices_per_host}
    try:
        return network.sent(compiled.as_text() or "", **sizes), ""
    except NotImplementedError as error:
        return None, f"bytes over the network are not counted: {error}"


def counted(result: Result) -> Result:
    """The row of `analyze` with the operations of one device, where the program fits."""
    case = result.case
    if case.target is None or result.status != "ok" or case.passes == DECODE:
        return result  # what of a cache is read, and so how long that takes, nobody counts
    traceable = work.attention if case.program == ATTENTION else model_programs.traceable
    with platforms.compiling_for(targets.parse(case.target).platform):
        try:
            operations, what = work.counted(case, traceable)
        except RuntimeError as error:
            if NO_CUDNN not in str(error):
                raise
            blockwise = dataclasses.replace(case, implementation="blockwise")  # as it was compiled
            operations, what = work.counted(blockwise, traceable)
    return dataclasses.replace(result, operations=operations, operations_of=what)


def refused_sizes(message: str) -> tuple[int, int] | None:
    """What a program needs and what there is, from the TPU compiler's refusal; None for others.

    >>> refused_sizes("RESOURCE_EXHAUSTED: … (128.50G) exceeds available HBM (15.75G).")
    (137975824384, 16911433728)
    >>> refused_sizes("INVALID_ARGUMENT: (3)") is None
    True
    """
    sizes = re.findall(r"\(([\d.]+)([KMGT]?)\)", message)
    if "RESOURCE_EXHAUSTED" not in message or len(sizes) < 2:
        return None
    need, limit = (round(float(number) * _UNITS[unit]) for number, unit in sizes[:2])
    return need, limit


def _needs(need: int, limit: int) -> str:
    return f"needs {human(need)} of {human(limit)}"
