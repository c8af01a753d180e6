"""Programs compiled for an accelerator that is not there: what they need, without times."""

import dataclasses
import functools
import re
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

from attnlab.bench import mechanisms, memory, network, programs, targets, topology, work
from attnlab.bench.case import ATTENTION, DECODE, Case, Result, Sent
from attnlab.bench.targets import Target
from attnlab.devices import platforms
from attnlab.runs.units import human

T = TypeVar("T")

_NO_CUDNN = "cuDNN not found"  # as JAX says it
_WITHOUT_CUDNN = "compiled without cuDNN, which the device would choose: it is not installed here"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Program:
    """What a program takes on each of its devices.

    Attributes:
      seconds: seconds that compiling took.
      need: bytes of its memory; None = the compiler refused it.
      refused: bytes that it needs and that there are, where the compiler refused it.
      sent: bytes that a device sends to others; None = there are no others, or they are not known.
      note: warning for a reader, or "".
    """

    seconds: float
    need: memory.Need | None = None
    refused: tuple[int, int] | None = None
    sent: Sent | None = None
    note: str = ""

    def lacks(self, target: Target) -> tuple[int, int] | None:
        """The bytes that it needs, and that the target has, where these are fewer."""
        # XLA's GPU compiler leaves that to the allocator.
        if self.need is not None and self.need.total > target.memory_bytes:
            return self.need.total, target.memory_bytes
        return self.refused


def on_target(target: Target, compute: Callable[[], T]) -> tuple[T, str]:
    """What `compute` traces and compiles for a target, and a note where it is not as there.

    Attention that would choose cuDNN is computed in another way where cuDNN is not installed.
    """
    with platforms.compiling_for(target.platform):
        try:
            return compute(), ""
        except RuntimeError as error:
            if _NO_CUDNN not in str(error):
                raise
    with platforms.compiling_for(target.platform._replace(has_cudnn=False)):
        return compute(), _WITHOUT_CUDNN


def compile_for(
    lower: Callable[[], jax.stages.Lowered], target: Target, devices: Sequence[jax.Device]
) -> Program:
    """Compiles what `lower` makes, for devices of a target.

    An error of the compiler that is not a refusal for want of memory is raised.
    """

    def compute() -> Program:
        start = time.perf_counter()
        lowered = lower()
        try:
            done = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            refused = refused_sizes(str(error))
            if refused is None:
                raise
            return Program(time.perf_counter() - start, refused=refused)
        seconds = time.perf_counter() - start
        need = memory.analyze(lowered, done, devices[0].platform)
        sent, note = _sent(done, target)
        return Program(seconds, need, None, sent, note)

    program, note = on_target(target, compute)
    return dataclasses.replace(program, note="; ".join(filter(None, [program.note, note])))


def analyze(case: Case) -> Result:
    """Compiles the case for its target, and counts the operations of one device where it fits.

    Returns:
      A result "ok" or "too_large". Whatever the mechanism or the compiler raises, it raises.
    """
    assert case.target is not None
    target = targets.parse(case.target)
    devices = topology.devices(target)
    if case.program == ATTENTION:
        lower = functools.partial(_lower_attention, case, devices)
        traceable = work.attention
    else:
        from attnlab.bench import model_programs  # its training needs packages that others do not

        lower = functools.partial(model_programs.lower, case, devices)
        traceable = model_programs.traceable
    program = compile_for(lower, target, devices)
    lacks, need = program.lacks(target), program.need
    said = needs(*lacks) if lacks else ""
    known = Result(
        case,
        "too_large" if lacks else "ok",
        "; ".join(filter(None, [said, program.note])),
        compile_seconds=program.seconds,
        available_bytes=lacks[1] if lacks else target.memory_bytes,
    )
    if need is None:
        return dataclasses.replace(known, refused_bytes=lacks[0] if lacks else None)
    known = dataclasses.replace(known, **dataclasses.asdict(need), sent=program.sent)
    if lacks or case.passes == DECODE:
        return known  # what of a cache is read, and so how long that takes, nobody counts
    return on_target(target, lambda: work.with_operations(known, traceable))[0]


def _lower_attention(case: Case, devices: Sequence[jax.Device]) -> jax.stages.Lowered:
    return programs.lower(case, mechanisms.build(case), devices)


def _sent(program: jax.stages.Compiled, target: Target) -> tuple[Sent | None, str]:
    """What a device of a slice sends to the others, or why that is not known."""
    if target.devices == 1:
        return None, ""
    sizes = {"devices": target.devices, "devices_per_host": target.devices_per_host}
    try:
        return network.sent(program.as_text() or "", **sizes), ""
    except NotImplementedError as error:
        return None, f"bytes over the network are not counted: {error}"


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

    def read_bytes(number: str, unit: str) -> int:
        return round(float(number) * _UNITS[unit])

    need, limit = sizes[:2]
    return read_bytes(*need), read_bytes(*limit)


def needs(need: int, limit: int) -> str:
    """What a program needs, of what there is."""
    return f"needs {human(need)} of {human(limit)}"
