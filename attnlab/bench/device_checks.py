"""The checks of one scenario in this process: compile, run, compare with the oracle."""

import functools
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from attnlab.bench import device_exact, device_lsh
from attnlab.bench.device_cases import Check, Checked, scenario
from attnlab.bench.device_compile import Compiler
from attnlab.bench.device_problem import (
    Arrays,
    Problem,
    judge,
    judge_plain,
    moved,
    past_moved,
    program,
    rounding,
)

# (index of the check, what happens to it now)
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
      checks: of the same mechanism and scenario.
      threads: programs that are compiled at once.
      tell: told what is about to happen.
      give: given each row as it comes.
      problem_of: what to check; for tests.
    """
    problem = (problem_of or _problem)(checks[0])
    truth = functools.cache(lambda: problem.truth(problem.arrays, problem.dcontext))

    def lowered(apply: Callable[[Arrays], jax.Array], dtype: str) -> jax.stages.Lowered:
        return program(apply).lower(*problem.given(problem.arrays, dtype))

    with Compiler(threads) as compiler:
        plain = {
            dtype: compiler.submit(lowered(problem.plain, dtype))
            for dtype in dict.fromkeys(check.dtype for check in checks)
        }
        plains: dict[str, Arrays] = {}
        pending: list[Any] = []
        for i, check in enumerate(checks):
            tell(i, "compiling")
            apply = functools.partial(problem.apply, check.implementation)
            try:
                pending.append(compiler.submit(lowered(apply, check.dtype)))
            except Exception as error:  # noqa: BLE001 - a mechanism's mistake is a row
                pending.append(error)
        for i, (check, compiled) in enumerate(zip(checks, pending, strict=True)):
            try:
                if isinstance(compiled, Exception):
                    raise compiled
                executable = compiled.result().program
                tell(i, "running")
                if check.dtype not in plains:
                    given = problem.given(problem.arrays, check.dtype)
                    found = plain[check.dtype].result().program(*given)
                    plains[check.dtype] = jax.tree.map(np.asarray, found)
                row = _judged(check, problem, executable, plains[check.dtype], truth())
            except NotImplementedError as error:
                row = Checked(check, "refused", _words(error))
            except Exception as error:  # noqa: BLE001 - a mechanism's mistake is a row
                traceback.print_exc()
                row = Checked(check, "crashed", f"{type(error).__name__}: {_words(error)}")
            give(i, row)


def _judged(
    check: Check, problem: Problem, executable: Any, plain: Arrays, true: Arrays
) -> Checked:
    platform = jax.devices()[0].platform
    real, whole, dcontext = problem.given(problem.arrays, check.dtype)
    got = executable(real, whole, dcontext)
    if check.implementation == problem.plain_is:
        off = problem.truth(
            moved(problem.arrays, rounding(check.dtype, platform)), problem.dcontext
        )
        ratios = judge_plain(got, off, true, check.dtype)
    else:
        ratios = judge(got, plain, true, check.dtype)
    if problem.other_future is not None:
        changed = problem.other_future(problem.arrays, problem.cut)
        after = executable(*problem.given(changed, check.dtype))["context"]
        before = got["context"]
        ratios["past"] = past_moved(before, after, problem.cut, check.dtype, platform)
    worst = max(ratios, key=lambda name: ratios[name])
    word = "rounding" if worst == "past" else "budget"
    return Checked(
        check,
        "pass" if ratios[worst] <= 1 else "fail",
        f"{worst}: {ratios[worst]:.2g} of its {word}",
        ratios,
    )


def _problem(check: Check) -> Problem:
    where = scenario(check.mechanism, check.scenario)
    if check.mechanism == "lsh":
        return device_lsh.problem(where)
    return device_exact.problem(check.mechanism, where)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
