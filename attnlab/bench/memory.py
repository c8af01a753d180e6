"""Memory: a program's need, the machine's size, and how much a run was seen to take.

The number that XLA reports for a CPU program can be far too small: a fusion of the YNN library
keeps its own scratch memory, up to a whole T x S matrix, out of `temp_size_in_bytes`, and
`peak_memory_in_bytes` is only arguments + outputs. So where a fusion may do that, the analysis is
made of a program compiled without these fusions, and a run is watched through the process's
high-water mark.
"""

import contextlib
import dataclasses
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from attnlab.bench import hlo
from attnlab.runs.allocator import every_block_mapped

# In jaxlib 0.10 to 0.12 alike; an empty list means no such fusion.
WITHOUT_HIDDEN_SCRATCH: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": ""}
# Of what is never run: buffers are the same to the byte, machine code takes half the time.
_QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes on one device, as the compiler counts them."""

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int

    @property
    def total(self) -> int:
        """Arguments + outputs + everything in between."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes


def analyze(lowered: jax.stages.Lowered, compiled: jax.stages.Compiled, platform: str) -> Need:
    """What the program needs on that platform, without running it.

    On CPU a program whose fusions hide scratch memory is compiled a second time without them, for
    its numbers only.
    """
    stats: Any = compiled.memory_analysis()
    total = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    if platform == "cpu" and hides_scratch(compiled.as_text() or "", total):
        options = WITHOUT_HIDDEN_SCRATCH | _QUICK
        stats = lowered.compile(compiler_options=options).memory_analysis()
    output = stats.output_size_in_bytes - stats.alias_size_in_bytes
    temporary = stats.temp_size_in_bytes
    if platform == "tpu":  # there the peak is the compiler's own, and lower than the plain sum
        temporary = stats.peak_memory_in_bytes - stats.argument_size_in_bytes - output
    return Need(stats.argument_size_in_bytes, output, max(temporary, 0))


def hides_scratch(program: str, total: int) -> bool:
    """Whether a YNN fusion may hide more than a tenth of the bytes that its program says to need.

    A fusion of one step, a product or a reduction, streams what is around it; one of several steps
    keeps what is between them, such as the weights of a softmax, T x S.
    """
    computations = hlo.parse_program(program)
    instructions = [x for one in computations.values() for x in one.instructions.values()]
    fusions = [x for x in instructions if x.opcode == "fusion" and "__ynn_fusion" in x.rest]
    hidden = [_largest_inside(computations[name]) for x in fusions for name in x.calls]
    return max(hidden, default=0) > total / 10


def _largest_inside(fusion: hlo.Computation) -> float:
    """Bytes of the largest array that a fusion of several steps neither takes nor returns."""
    instructions = fusion.instructions.values()
    if sum(x.opcode in ("dot", "reduce") for x in instructions) < 2:
        return 0
    inside = [x for x in instructions if x.opcode != "parameter" and x is not fusion.root]
    return max(x.num_bytes for x in inside)


def available(device: jax.Device) -> int | None:
    """Bytes that are free: on the device where it says so, else on the host."""
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return available_on_host()


def available_on_host(root: Path = Path("/")) -> int | None:
    """MemAvailable, or what control groups (v1, v2) leave if that is less; None elsewhere."""
    try:
        meminfo = (root / "proc/meminfo").read_text()
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    match = re.search(r"MemAvailable:\s+(\d+) kB", meminfo)
    free = [int(match[1]) * 1024] if match else []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = base / path.lstrip("/")
        # A limit may sit on any ancestor. In a container the path is often the host's, unseen here.
        for folder in (group, *group.parents):
            if base == folder or base in folder.parents:
                free += _left_in_group(folder, *names)
    return min(free) if free else None


def _left_in_group(folder: Path, limit: str, usage: str, reclaimable: str) -> list[int]:
    try:
        most = (folder / limit).read_text().strip()
        used = int((folder / usage).read_text())
        cached = re.search(rf"^{reclaimable} (\d+)", (folder / "memory.stat").read_text(), re.M)
    except OSError:
        return []
    if not most.isdigit():  # "max"
        return []
    return [max(int(most) - used + (int(cached[1]) if cached else 0), 0)]


def peak_of(run: Callable[[], Any]) -> tuple[Any, int | None]:
    """Runs, and says by how many bytes that raised the process's high-water mark.

    A run that reuses memory which is resident already would seem to need none. So every block is
    mapped and unmapped on its own meanwhile, and CPU programs must be dispatched synchronously, see
    `dispatch_synchronously`.

    Returns:
      What `run` returns, and the bytes; None where the system cannot tell (not Linux, or a
      sandbox that forbids /proc/self/clear_refs).
    """
    gc.collect()
    with every_block_mapped():
        before = _reset_high_water_mark()
        result = run()
        after = _status("VmHWM")
    return result, None if before is None or after is None else max(after - before, 0)


def dispatch_synchronously() -> None:
    """For `peak_of`: else a CPU run frees its memory some time after its result is ready.

    To be called before JAX's first use; accelerators do not notice.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def _reset_high_water_mark() -> int | None:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM to VmRSS
    except OSError:
        return None
    return _status("VmRSS")


def _status(name: str) -> int | None:
    try:
        match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def volunteer_for_the_oom_killer() -> None:
    """If the machine runs out of memory, this process is the one to go, not the user's editor."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
