"""The checks of one scenario in this process: compile, run, compare with the oracle."""

import functools
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import attnlab
from experiments.device_check import exact, lsh, timed
from experiments.device_check.cases import (
    AUTO,
    BUCKETS,
    DIVIDED,
    MESH,
    TIMED,
    Check,
    Checked,
    scenario,
)
from experiments.device_check.compiler import Compiler
from experiments.device_check.problem import (
    Arrays,
    Problem,
    elsewhere,
    judge,
    judge_plain,
    moved,
    past_moved,
    program,
    rounding,
)

# (index of the check, what is done with it now) -> None
Tell = Callable[[int, str], None]


def run(
    checks: Sequence[Check],
    *,
    threads: int,
    tell: Tell,
    give: Callable[[int, Checked], None],
    problem_of: Callable[[Check], Problem] | None = None,
) -> None:
    """Checks one scenario of one mechanism.

    Args:
      checks: checks of the same mechanism and scenario.
      threads: number of programs that are compiled at once.
      tell: (index of a check, what is done with it next) -> None; "compiling", "running" on the
        device, or "judging".
      give: (index of a check, its row) -> None.
      problem_of: (check) -> its problem; only for tests.
    """
    tell(0, "judging")  # the oracle's part in making the arrays
    if checks[0].scenario == BUCKETS:
        for i, check in enumerate(checks):
            give(i, _row(check, functools.partial(_hashed, check, functools.partial(tell, i))))
        return
    problem = (problem_of or _problem)(checks[0])
    dtypes = dict.fromkeys(check.dtype for check in checks)

    def lowered(apply: Callable[[Arrays], jax.Array], dtype: str) -> jax.stages.Lowered:
        return program(apply).lower(*problem.given(problem.arrays, dtype))

    with Compiler(threads) as compiler:

        def submitted(apply: Callable[[Arrays], jax.Array], dtype: str) -> Any:
            return _attempt(lambda: compiler.submit(lowered(apply, dtype)))

        plain = {dtype: submitted(problem.plain, dtype) for dtype in dtypes}
        pending = []
        for i, check in enumerate(checks):
            tell(i, "compiling")
            apply = functools.partial(_applied, problem, check.implementation)
            pending.append(submitted(apply, check.dtype))
        truth = functools.cache(lambda: problem.truth(problem.arrays, problem.dcontext))
        if not all(isinstance(one, Exception) for one in pending):
            truth()  # while they compile
        for i in range(len(checks)):
            tell(i, "compiling")
            pending[i] = _attempt(functools.partial(_executable, pending[i]))

    # Nothing compiles any more: what kills the process is the program that runs.
    @functools.cache
    def plainly(dtype: str) -> Arrays:
        given = problem.given(problem.arrays, dtype)
        return jax.block_until_ready(_executable(plain[dtype])(*given))

    @functools.cache
    def of_plain(dtype: str) -> dict[str, float]:
        off = problem.truth(moved(problem.arrays, rounding(dtype)), problem.dcontext)
        return judge_plain(_part(problem, plainly(dtype)), off.values, truth(), dtype)

    def ratios(i: int, check: Check) -> dict[str, float]:
        executable = _known(pending[i])
        tell(i, "running")
        plain = plainly(check.dtype)
        got, after = _outputs(problem, executable, check.dtype)
        tell(i, "judging")
        found = dict(of_plain(check.dtype))
        if check.implementation != problem.plain_is:  # the plain version is not judged by itself
            ours, theirs = _part(problem, got), _part(problem, plain)
            worst = max(found.values())
            found = judge(ours, theirs, truth(), check.dtype) | {"plain": worst}
            if check.scenario == TIMED:
                found["elsewhere"] = elsewhere(got, plain, problem.part, truth())
        if after is not None:
            found["past"] = past_moved(got["context"], after, problem.cut, check.dtype)
        return found

    for i, check in enumerate(checks):
        give(i, _row(check, functools.partial(ratios, i, check)))


def _applied(problem: Problem, implementation: str, arrays: Arrays) -> jax.Array:
    """The context, by the default over a mesh where that is what the implementation is called."""
    if implementation not in DIVIDED:
        return problem.apply(implementation, arrays)
    devices = jax.local_devices()
    mesh = jax.sharding.Mesh(np.array(devices[: MESH.sharers(len(devices))]), ("devices",))
    with attnlab.over(mesh, **{DIVIDED[implementation]: "devices"}):
        return problem.apply(AUTO, arrays)


def _attempt(function: Callable[[], Any]) -> Any:
    """The function's result, or the exception it raises, which becomes a row; others go on."""
    try:
        return function()
    except Exception as error:  # it becomes a row
        return error


def _known(found: Any) -> Any:
    if isinstance(found, Exception):
        raise found
    return found


def _executable(pending: Any) -> Any:
    return _known(pending).result().program


def _outputs(problem: Problem, executable: Any, dtype: str) -> tuple[Arrays, Any]:
    """The outputs of a program, and its context when the inputs have another future."""
    got = jax.block_until_ready(executable(*problem.given(problem.arrays, dtype)))
    if problem.other_future is None:
        return got, None
    changed = problem.other_future(problem.arrays, problem.cut)
    return got, np.asarray(executable(*problem.given(changed, dtype))["context"])


def _part(problem: Problem, outputs: Arrays) -> Arrays:
    return {name: problem.part(np.asarray(x)) for name, x in outputs.items()}


def _hashed(check: Check, tell: Callable[[str], None]) -> dict[str, float]:
    tell("compiling")
    executable = lsh.hash_program(check.dtype).compile()
    tell("running")
    x, rotations = lsh.hash_arguments(check.dtype)
    found = np.asarray(executable(x, rotations))
    tell("judging")
    return {"buckets": lsh.judge_buckets(found, x, rotations)}


def _row(check: Check, ratios: Callable[[], dict[str, float]]) -> Checked:
    try:
        found = ratios()
    except NotImplementedError as error:
        return Checked(check, "refused", _words(error))
    except Exception as error:  # it becomes a row; others go on
        traceback.print_exception(error)
        return Checked(check, "crashed", f"{type(error).__name__}: {_words(error)}")
    worst = max(found, key=lambda name: found[name])
    word = "rounding" if worst in ("past", "buckets") else "budget"
    status = "pass" if found[worst] <= 1 else "fail"
    return Checked(check, status, f"{worst}: {found[worst]:.2g} of its {word}", found)


def _problem(check: Check) -> Problem:
    if check.scenario == TIMED:
        return timed.problem(check)
    where = scenario(check.mechanism, check.scenario)
    if check.mechanism == "lsh":
        return lsh.problem(where)
    return exact.problem(check.mechanism, where)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
