"""One case in this process: compile, see whether it fits, run, watch the memory, time."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import inputs, mechanisms, memory, peers, programs
from attnlab.bench.case import ACCURACY, ATTENTION, DECODE, SEARCHES, Case, Result
from attnlab.mechanisms.attentions import kind_of
from attnlab.runs.allocator import keep_freed_memory
from attnlab.runs.units import human

_ROWS = 512  # of queries that NumPy attends with at a time
_LARGE_BYTES = 2**26  # beside which what a process begins with is nothing
SAMPLE_SECONDS = 5e-3  # shorter calls are batched: a clock read and a thread wake-up cost ~20 µs
# Threads that slept wake up on one core, and the system moves them apart while they work: of the
# first 25 ms a call of 23 ms took 31 on two cores, after 100 ms it took 24.
WAKE_SECONDS = 0.1


@dataclasses.dataclass
class Program:
    """A compiled program: what is known of it, and how it is run and timed.

    Attributes:
      known: result without times.
      run: () -> what the program returns, once it is computed.
      again: function of a number of calls -> seconds of one, on average; None = a call took too
        long for another one, and `one_call` is the sample.
      values: () -> the output [B, L, N, H] or the gradients of the inputs; none of modules.
      one_call: seconds of a call, of one that has run.
    """

    known: Result
    run: Callable[[], Any]
    again: Callable[[int], float] | None
    values: Callable[[], list[np.ndarray]]
    one_call: float = math.nan

    @property
    def calls(self) -> int:
        """The number of calls of a sample."""
        return max(1, math.ceil(SAMPLE_SECONDS / self.one_call))

    def wake(self) -> float:
        """Runs for `WAKE_SECONDS`, unless one call takes as long: before samples after a pause.

        Returns:
          The seconds of the fastest call.
        """
        fastest, began = self.one_call, time.perf_counter()
        while fastest < WAKE_SECONDS and time.perf_counter() - began < WAKE_SECONDS:
            fastest = min(fastest, time_run(self.run))
        return fastest

    def sample(self) -> float:
        """Seconds of one call, averaged over `calls`."""
        return self.one_call if self.again is None else self.again(self.calls)


def measure(
    case: Case,
    text: inputs.Text,
    *,
    repeats: int,
    limit_seconds: float = math.inf,
    on_compiled: Callable[[Result], None] = lambda result: None,
    **limits: Any,
) -> Result:
    """Measures one case.

    Args:
      case: case to measure.
      text: text that the inputs are made of.
      repeats: number of timed samples.
      limit_seconds: time after the start of the first run by which every sample must be expected to
        end, or it is not started.
      on_compiled: function of the result as it is known before the first run.
      **limits: `limit_bytes` and `run` of `prepare`.

    Returns:
      A result "ok", "too_large" or "too_slow". Whatever the mechanism raises, it raises.
    """
    began = time.perf_counter()

    def restart_clock(known: Result) -> None:
        nonlocal began
        on_compiled(known)
        began = time.perf_counter()

    ready = prepare(case, text, limit_seconds=limit_seconds, on_compiled=restart_clock, **limits)
    if isinstance(ready, Result):
        return ready
    if case.passes == ACCURACY:
        return dataclasses.replace(ready.known, error=distance(case, text, ready.values()[0]))
    seconds: list[float] = []
    while len(seconds) < repeats:
        expected = ready.calls * (seconds[-1] if seconds else ready.one_call)
        if seconds and time.perf_counter() - began + expected > limit_seconds:
            break
        seconds.append(ready.sample())
        if ready.again is None:
            break
    few = f"{len(seconds)} of {repeats} repeats in the time limit"
    note = "" if len(seconds) == repeats else few
    return dataclasses.replace(
        ready.known, message=note, seconds=tuple(seconds), calls_per_sample=ready.calls
    )


def prepare(
    case: Case,
    text: inputs.Text,
    *,
    limit_seconds: float = math.inf,
    limit_bytes: float = math.inf,
    run: bool = True,
    on_compiled: Callable[[Result], None] = lambda result: None,
) -> Program | Result:
    """Compiles, sees whether it fits, watches the memory of a run or two, and wakes its threads.

    Args:
      case: case to prepare.
      text: text that the inputs are made of.
      limit_seconds: time of a call above a third of which it is not called again.
      limit_bytes: size of a CPU's memory that the case may take; an accelerator has a limit of its
        own.
      run: whether to run the program; False stops after compiling.
      on_compiled: function of the result as it is known before the first run.

    Returns:
      The program, or its row where it is not run.
    """
    devices = jax.local_devices()[: case.devices]
    host = devices[0].platform == "cpu"
    sharers = len(devices) if host else 1  # devices that share one memory
    program: Program | Result
    if kind_of(case.attention.kind).written_in == "torch":
        if not run:  # nor does anything say what it would need
            return Result(case, "too_slow", message="not run")
        program = _torch(case, text)
    else:
        program = _jax(case, text, devices, limit_bytes, run)
    if isinstance(program, Result):
        return program
    on_compiled(program.known)
    device_peak_before = _device_peak(devices[0])
    # Timed inside of what watches it, which takes longer than short calls.
    timed = functools.partial(time_run, program.run)
    one_call, extra = memory.peak_of(timed)
    is_large = one_call > 1.0 and (extra or 0) > _LARGE_BYTES
    if one_call <= limit_seconds / 3 and not is_large:  # the first run also paid for threads
        one_call, extra = memory.peak_of(timed)
    if case.keep_memory:
        keep_freed_memory()
        one_call = timed()  # so that there is memory to keep
    device_peak = _device_peak(devices[0])
    arguments = program.known.argument_bytes or 0
    known = dataclasses.replace(
        program.known,
        resident_peak_bytes=arguments + extra // sharers if host and extra else None,
        device_peak_bytes=None if device_peak == device_peak_before else device_peak,
    )
    again = program.again if one_call <= limit_seconds / 3 else None
    ready = dataclasses.replace(program, known=known, again=again, one_call=one_call)
    ready.one_call = ready.wake()
    return ready


def _torch(case: Case, text: inputs.Text) -> Program:
    call = peers.torch_call(_as_run(case), text)
    known = Result(
        case,
        "ok",
        argument_bytes=call.argument_bytes,
        available_bytes=memory.available_on_host(),
        input_cycled=_cycles(case, text),
    )
    again = functools.partial(sample, call.run, (), block_each=False)
    return Program(known, call.run, again, lambda: call.values(call.run()))


def _cycles(case: Case, text: inputs.Text) -> bool:
    """Whether its inputs have a byte twice; source and target of a translation are apart."""
    windows = 2 * case.batch if case.program == "translate" else case.batch
    return text.cycles(windows, case.length)


def _jax(
    case: Case, text: inputs.Text, devices: Sequence[jax.Device], limit_bytes: float, run: bool
) -> Program | Result:
    """The compiled program, or why it does not run."""
    platform = devices[0].platform
    host = platform == "cpu"
    sharers = len(devices) if host else 1
    as_run = _as_run(case)
    mechanism = None if case.program != ATTENTION else mechanisms.build(as_run)
    if mechanism is None:
        from attnlab.bench import model_programs  # takes seconds: the models and the training

        start = time.perf_counter()
        lowered = model_programs.lower(case, devices)
    else:
        start = time.perf_counter()
        lowered = programs.lower(as_run, mechanism, devices)
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
        **dataclasses.asdict(need),
        available_bytes=None if free is None else free // sharers,
        input_cycled=_cycles(case, text),
    )
    if free is not None and need.total * sharers > free:
        word = "allowed" if allowed else "free"
        message = f"needs {human(need.total * sharers)} of {human(free)} {word}"
        return dataclasses.replace(known, status="too_large", message=message)
    if not run:
        return dataclasses.replace(known, status="too_slow", message="not run")
    if mechanism is None:
        return (_search if case.passes in SEARCHES else _training)(case, text, compiled, known)
    streams = inputs.streams(text, batch=case.batch, length=case.length, width=case.width)
    arguments = programs.arguments(as_run, mechanism, devices, streams, lowered)
    jax.block_until_ready(arguments)
    if case.passes == DECODE:
        return _decoding(case, compiled, known, *arguments, block_each=host)

    def values() -> list[np.ndarray]:
        returned = compiled(*arguments)
        arrays = list(returned[2]) if as_run.passes == "forward_backward" else [returned]
        shape = (case.batch, case.length, case.num_heads, case.head_dim)
        wide = jnp.promote_types(case.dtype, jnp.float32)  # NumPy has no bfloat16
        return [np.asarray(x, wide).reshape(shape) for x in arrays]

    return Program(
        known,
        lambda: jax.block_until_ready(compiled(*arguments)),
        lambda calls: sample(compiled, arguments, calls, block_each=host),
        values,
    )


def _training(case: Case, text: inputs.Text, step: Any, known: Result) -> Program:
    """A call is a step of the state that the call before left."""
    from attnlab.bench import model_programs

    batch = model_programs.batch_of(case, text)
    state = jax.block_until_ready(jax.jit(lambda: model_programs.initial_state(case))())
    losses = peers.Losses()

    def run() -> Any:
        nonlocal state
        state, metrics = jax.block_until_ready(step(state, batch))
        losses.add(metrics.sums["loss"] / metrics.counts["tokens"])
        return metrics

    again = functools.partial(sample, run, (), block_each=True)
    return Program(known, run, again, lambda: losses.after(run))


def _search(case: Case, text: inputs.Text, search: Any, known: Result) -> Program:
    """A call is a search of the whole batch; its values are log p of the translations."""
    from attnlab.bench import model_programs

    variables = jax.block_until_ready(jax.jit(lambda: model_programs.initial_variables(case))())
    arguments = variables, model_programs.batch_of(case, text)["source"]
    again = functools.partial(sample, search, arguments, block_each=True)
    return Program(
        known,
        lambda: jax.block_until_ready(search(*arguments)),
        again,
        lambda: [np.asarray(search(*arguments).scores)],
    )


def _decoding(
    case: Case, step: Any, known: Result, variables: Any, token: Any, *, block_each: bool
) -> Program:
    """A call is a token more in the cache, which begins anew, untimed, when it is full."""
    state = variables

    def run() -> Any:
        nonlocal state
        context, state = step(state, token)
        return context

    def begin() -> None:
        nonlocal state
        state = jax.block_until_ready(jax.tree.map(jnp.copy, variables))

    def again(calls: int) -> float:
        room, seconds = programs.new_tokens(case), 0.0
        for done in range(0, calls, room):
            begin()
            tokens = min(room, calls - done)
            seconds += tokens * sample(run, (), tokens, block_each=block_each)
        return seconds / calls

    begin()  # here, so that the copy does not count as memory of the first call
    return Program(known, lambda: jax.block_until_ready(run()), again, lambda: [])


def _as_run(case: Case) -> Case:
    return dataclasses.replace(case, passes="forward") if case.passes == ACCURACY else case


def distance(case: Case, text: inputs.Text, context: np.ndarray) -> float:
    """RMS distance of a context [B, L, N, H] from NumPy's exact attention in float64."""
    streams = inputs.streams(text, batch=case.batch, length=case.length, width=case.width)
    shape = (case.batch, case.length, case.num_heads, case.head_dim)

    def heads_first(stream: np.ndarray) -> np.ndarray:
        # As the mechanism gets it, [B, L, N·H] to [B, N, L, H].
        stream = np.asarray(stream.astype(jnp.dtype(case.dtype)), np.float64)
        return stream.reshape(shape).transpose(0, 2, 1, 3)

    q = heads_first(streams["query"])
    k = heads_first(streams["key"])
    v = heads_first(streams["value"])
    total, n = 0.0, case.length
    for i in range(0, n, _ROWS):
        last = min(i + _ROWS, n)
        seen = last if case.causal else n
        logits = q[:, :, i:last] @ k[:, :, :seen].swapaxes(-1, -2) / math.sqrt(case.head_dim)
        if case.causal:
            logits[..., np.arange(seen) > np.arange(i, last)[:, None]] = -np.inf
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        true = weights @ v[:, :, :seen] / weights.sum(-1, keepdims=True)
        total += float(((context[:, i:last].swapaxes(1, 2) - true) ** 2).sum())
    return math.sqrt(total / context.size)


def time_run(run: Callable[[], Any]) -> float:
    """Seconds of a call of a program's `run`."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


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
