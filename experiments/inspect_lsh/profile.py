"""One profile: LSH attention of one length and pass, timed, then run under the profiler.

The program is the library's, hashing included; the inputs are the same as in `compare_lengths`. The
code's named scopes (`lsh_hash`, …) are in the `op_name` that XLA keeps with each instruction,
through fusion, differentiation and the bodies of loops; the innermost scope is the stage.
"""

import collections
import dataclasses
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.bench import hlo, inputs, memory, programs
from attnlab.bench.case import Case
from attnlab.bench.mechanisms import Mechanism
from attnlab.ops import routes
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.runs.errors import Invalid
from attnlab.runs.units import human
from attnlab.scores import Dot
from experiments.inspect_lsh import trace

STAGES = ("hash", "sort", "gather", "attend", "merge", "other")
_SCOPE = re.compile(r"\blsh_(hash|sort|gather|attend|merge)\b")
_KEPT = 40  # number of instructions that a row keeps, the largest ones


@dataclasses.dataclass(frozen=True)
class Profile:
    """Where one call's time goes.

    Attributes:
      case: case that was profiled.
      num_buckets: number of buckets B of a hash round.
      status: "ok", "too_large" (known before running) or "failed" (an exception).
      message: reason why the status is not "ok", or "".
      seconds: seconds of one call without the profiler, one number per repetition.
      traced_seconds: seconds of the fastest call under the profiler, of as many repetitions: what
        else the machine does disturbs it least.
      stages: seconds of each of `STAGES` in that call. Each moment is divided equally between the
        instructions that run in it, so the stages add up to the time in which any runs.
      instructions: largest instructions of that call: name, op_name, stage and seconds.
    """

    case: Case
    num_buckets: int
    status: str = "ok"
    message: str = ""
    seconds: tuple[float, ...] = ()
    traced_seconds: float | None = None
    stages: dict[str, float] = dataclasses.field(default_factory=dict)
    instructions: tuple[dict[str, Any], ...] = ()

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the stages, which add up to 1."""
        total = sum(self.stages.values())
        return {stage: seconds / total for stage, seconds in self.stages.items()}

    @property
    def median_seconds(self) -> float | None:
        """The median time without the profiler, or None if nothing ran."""
        return statistics.median(self.seconds) if self.seconds else None


def num_buckets_of(case: Case, num_buckets: int | None) -> int:
    """The number of buckets that was asked for; else the library's choice for the length."""
    if num_buckets is not None:
        return num_buckets
    return default_num_buckets(case.length, case.chunk_size)


def mechanism(case: Case, num_buckets: int) -> Mechanism:
    """LSH attention as `routes.LSH` computes it, with that many buckets."""
    rounds, mask = case.attention.number or 1, masks.Causal() if case.causal else None
    route = routes.LSH(num_hashes=rounds, num_buckets=num_buckets, chunk_size=case.chunk_size)

    def apply(parameters: Any, qk: jax.Array, v: jax.Array) -> jax.Array:
        del parameters
        return route(Dot(), qk, qk, v, mask=mask)

    return Mechanism(lambda key: {}, apply, ("query", "value"), split_heads=True)


def check(cases: Sequence[Case], num_buckets: int | None) -> None:
    """Traces a case of each length without compiling it.

    Raises:
      Invalid: the library refuses these sizes.
    """
    for case in {case.length: case for case in cases}.values():
        shape = (case.batch, case.length, case.num_heads, case.head_dim)
        x = jax.ShapeDtypeStruct(shape, jnp.dtype(case.dtype))
        try:
            way = mechanism(case, num_buckets_of(case, num_buckets))
            jax.eval_shape(way.apply, {}, x, x)
        except ValueError as error:
            raise Invalid(str(error)) from None


def profile(case: Case, text: inputs.Text, *, num_buckets: int | None, repeats: int) -> Profile:
    """Profiles one case.

    Args:
      case: case to profile; its `mechanism` and `ops_only` do not matter.
      text: source of the input.
      num_buckets: number of buckets of a round; None = the library's own choice.
      repeats: number of timed calls, and of calls under the profiler.

    Returns:
      A profile with the status "ok" or "too_large". Exceptions of the program are raised.
    """
    known = Profile(case, num_buckets_of(case, num_buckets))
    way, devices = mechanism(case, known.num_buckets), jax.local_devices()[:1]
    lowered = programs.lower(case, way, devices)
    compiled = lowered.compile()
    need = memory.analyze(lowered, compiled, devices[0].platform).total
    free = memory.available(devices[0])
    if free is not None and need > free:
        message = f"needs {human(need)} of {human(free)}"
        return dataclasses.replace(known, status="too_large", message=message)

    streams = inputs.streams(text, batch=case.batch, length=case.length, width=case.width)
    arguments = jax.block_until_ready(programs.arguments(case, way, devices, streams, lowered))

    def call() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return time.perf_counter() - start

    call()  # not timed: it also starts threads and gets memory
    seconds = tuple(call() for _ in range(repeats))
    program = instructions(compiled.as_text() or "")
    runs = {name: one.runs for name, one in program.items()}
    traced = [trace.traced(call, runs) for _ in range(repeats)]
    fastest, spans = min(traced, key=lambda one: one[0])
    taken = trace.divide(spans)
    largest = sorted(taken, key=lambda name: -taken[name])[:_KEPT]
    return dataclasses.replace(
        known,
        seconds=seconds,
        traced_seconds=fastest,
        stages=by_stage(taken, program),
        instructions=tuple(
            {
                "name": name,
                "op_name": program[name].op_name,
                "stage": program[name].stage,
                "seconds": taken[name],
            }
            for name in largest
        ),
    )


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of the program.

    Attributes:
      op_name: path of scopes in the source; "" = XLA itself added it.
      stage: one of `STAGES`.
      runs: instructions of the computations that this one calls.
    """

    op_name: str
    stage: str
    runs: frozenset[str]


def instructions(program: str) -> dict[str, Instruction]:
    """Every instruction of a compiled program, `compiled.as_text()`, by its name."""
    computations = hlo.parsed(program)
    of_program = {}
    for computation in computations.values():
        stages = _stages(computation)
        for name, one in computation.instructions.items():
            runs = frozenset(part for c in one.calls for part in computations[c].instructions)
            of_program[name] = Instruction(one.op_name, stages.get(name, "other"), runs)
    return of_program


def stage_of(op_name: str) -> str:
    """The innermost scope of an `op_name`; "other" outside all of them.

    >>> stage_of("jit(f)/jvp(lsh_merge)/while/body/lsh_attend/lsh_gather/gather")
    'gather'
    """
    scopes = _SCOPE.findall(op_name)
    return scopes[-1] if scopes else "other"


def _stages(computation: hlo.Computation) -> dict[str, str]:
    """The stages of its instructions.

    What XLA itself adds (copies, parts of a split reduction) has no `op_name` and gets the stage of
    its first operand with one, else of a user. Instructions come after their operands, so one pass
    forwards follows a chain of operands to its beginning, and one backwards a chain of users.
    """
    inside = computation.instructions
    stages = {name: stage_of(one.op_name) for name, one in inside.items() if one.op_name}
    users = collections.defaultdict[str, list[str]](list)
    for name, one in inside.items():
        for operand in one.operands:
            users[operand].append(name)

    def inherit(name: str, near: Iterable[str]) -> None:
        known = [stages[other] for other in near if other in stages]
        if name not in stages and known:
            stages[name] = known[0]

    for name, one in inside.items():
        inherit(name, one.operands)
    for name in reversed(inside):
        inherit(name, users[name])
    return stages


def by_stage(seconds: dict[str, float], program: dict[str, Instruction]) -> dict[str, float]:
    """Seconds of each of `STAGES`: the sums over its instructions."""
    stages = dict.fromkeys(STAGES, 0.0)
    for name, taken in seconds.items():
        stages[program[name].stage] += taken
    return stages
