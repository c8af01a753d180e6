"""Seconds of a program's instructions, from a trace of its run by `jax.profiler`.

An event names its instruction in the stat `hlo_op`. On a CPU the event ends when the instruction is
launched. Its work may go on in other threads; a mark "end: …" with the same id says until when. But
the thread that completes the instruction first runs what waited for it, and writes the mark after
that: a `ThunkExecutor::Execute` right before the mark is not the instruction's time.

Instructions overlap, so their times would add up to more than the time of the run. Instead each
moment is divided equally between the instructions that run in it, and the seconds add up to the
time in which any runs.
"""

import bisect
import collections
import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

_PROMPT = 20e3  # ns: at most this long before the mark, the thread ended what had waited


@dataclasses.dataclass(frozen=True)
class Span:
    """One execution of an instruction, from `start` to `end` in nanoseconds."""

    instruction: str
    start: float
    end: float


def traced(
    run: Callable[[], Any], program: Mapping[str, Collection[str]]
) -> tuple[Any, list[Span]]:
    """Runs a program under the profiler.

    Args:
      run: () -> any result; runs the program once and waits until it has ended.
      program: names of the program's instructions, each with those of the instructions that it
        runs itself (a loop's body, a fusion's parts); others in the trace are left out.

    Returns:
      What `run` returns, and the spans of the instructions that did work: one that runs others (a
      loop, a branch) is left out if those have spans of their own.

    Raises:
      RuntimeError: the trace has no event of this program.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = run()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        spans = [span for file in files for span in read(file) if span.instruction in program]
    if not spans:
        raise RuntimeError("the profiler's trace has no event of this program on this device")
    seen = {span.instruction for span in spans}
    return result, [span for span in spans if seen.isdisjoint(program[span.instruction])]


def read(file: Path) -> list[Span]:
    """All spans of a trace: those of the devices if there are any, else those of the host."""
    with warnings.catch_warnings():
        # Python 3.13 warns of types in jax 0.12's bindings.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
        on_device = [_spans(p.lines) for p in planes if p.name.startswith("/device:")]
        if any(on_device):
            return [span for spans in on_device for span in spans]
        return [span for p in planes for span in _spans(p.lines)]


def _spans(lines: Iterable[Any]) -> list[Span]:
    launched: list[tuple[str, float, float, int | None]] = []
    marks: dict[int | None, tuple[float, list[tuple[float, float]]]] = {}
    for line in lines:
        resumed: list[tuple[float, float]] = []  # (end, start) of what had waited
        for event in line.events:
            stats = dict(event.stats)
            start, end = event.start_ns, event.start_ns + event.duration_ns
            if "hlo_op" in stats:
                launched.append((stats["hlo_op"], start, end, stats.get("_p")))
            elif event.name.startswith("end: "):
                marks[stats["_c"]] = (start, resumed)
            elif event.name == "ThunkExecutor::Execute":
                resumed.append((end, start))
        resumed.sort()
    return [
        Span(
            name, start, max(end, _completed(start, *marks[producer])) if producer in marks else end
        )
        for name, start, end, producer in launched
    ]


def _completed(start: float, mark: float, resumed: list[tuple[float, float]]) -> float:
    """When an instruction was complete, by its mark and what its thread ran before the mark."""
    while True:
        low = bisect.bisect_left(resumed, (mark - _PROMPT, 0.0))
        high = bisect.bisect_right(resumed, (mark, mark))
        begun = [began for _, began in resumed[low:high] if start <= began < mark]
        if not begun:
            return mark
        mark = min(begun)


def divide(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds of each instruction; a moment is divided equally between those that run in it.

    >>> divide([Span("a", 0, 4e9), Span("b", 2e9, 4e9), Span("b", 9e9, 10e9)])
    {'a': 3.0, 'b': 2.0}
    """
    changes = sorted(
        (time, change, span.instruction)
        for span in spans
        for time, change in ((span.start, 1), (span.end, -1))
    )
    seconds: dict[str, float] = collections.defaultdict(float)
    in_flight: collections.Counter[str] = collections.Counter()
    before = 0.0
    for time, change, name in changes:
        count = in_flight.total()
        if time > before and count:
            for other, times in in_flight.items():
                seconds[other] += (time - before) * 1e-9 * times / count
        before = time
        in_flight[name] += change
        if not in_flight[name]:
            del in_flight[name]
    return dict(seconds)
