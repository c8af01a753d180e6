"""The process that has the device: it reads checks and writes what came of them to a pipe.

    python -m tests.device.worker FD [small]

While a check is done, programs of those to come compile; equal ones, as of a default and its
implementation, compile once. Before the worker does anything with a check it says what it will do.
"""

import concurrent.futures
import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from attnlab.bench.workers import Send, serve
from attnlab.ops.lsh.hashing import hash_buckets
from attnlab.runs import provenance
from tests.device import judging, problems
from tests.device.judging import Arrays
from tests.device.problems import Problem
from tests.device.scenarios import BUCKETS, CONTRACT, LARGE, MESH, Check, scenario_of

Tell = Callable[[str], None]  # (what is done next): "compiling", "running" or "judging"


class Checker:
    """Does checks; `small` ones, with interpreted Pallas kernels, if asked to."""

    def __init__(self, small: bool = False) -> None:
        self._small = small
        self._pool = concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2))
        self._compiled: dict[str, concurrent.futures.Future[Any]] = {}  # by a program's text
        self._pending: dict[tuple[Problem, str, str], Any] = {}
        # Checks of one scenario follow each other, if not in every dtype.
        self.problem = functools.lru_cache(8)(self._problem)
        self._plainly = functools.lru_cache(8)(self._plain_outputs)
        self._plain_ratios = functools.lru_cache(8)(self._ratios_of_plain)

    def answer(self, order: dict[str, Any], send: Send) -> None:
        """Does the first check of an order, and compiles for the others."""
        check, *ahead = (Check(**one) for one in order["checks"])
        status, message, ratios = self.result(check, ahead, lambda stage: send(stage=stage))
        send(row={"status": status, "message": message, "ratios": ratios})

    def result(
        self, check: Check, ahead: list[Check], tell: Tell
    ) -> tuple[str, str, dict[str, float]]:
        """Its status, in words the worst of its errors or why there is none, and its ratios."""
        try:
            tell("compiling")
            for one in (check, *ahead):
                if one.scenario not in (BUCKETS, CONTRACT):
                    self._program(one)
            ratios = self.ratios(check, tell)
        except NotImplementedError as error:
            return "refused", _words(error), {}
        except Exception as error:  # it becomes a row
            traceback.print_exception(error)
            return "crashed", f"{type(error).__name__}: {_words(error)}", {}
        worst = max(ratios, key=ratios.__getitem__)
        status = "pass" if ratios[worst] <= 1 else "fail"
        return status, f"{worst}: {ratios[worst]:.2g} of what is allowed", ratios

    def ratios(self, check: Check, tell: Tell) -> dict[str, float]:
        """Errors over what is allowed, by name.

        Of the context and each gradient, in the mean and in the worst row; "plain": the worst ratio
        of the plain version that judges them; "past": how far a change of the future moved the
        past, over rounding; "elsewhere": how far rows that the oracle does not know are from the
        plain version; "buckets": how much nearer another axis is than the bucket's, over rounding.
        """
        dtype = check.dtype
        if check.scenario == CONTRACT:
            tell("running")
            return problems.against_itself(check)
        if check.scenario == BUCKETS:
            x, rotations = problems.hash_arguments(dtype)
            tell("running")
            buckets = jax.jit(hash_buckets)(x, rotations)
            return {"buckets": problems.judge_buckets(buckets, x, rotations)}
        problem = self.problem(check.mechanism, check.scenario)
        run = _known(self._program(check))
        tell("running")
        got = jax.block_until_ready(run(*problem.given(problem.arrays, dtype)))
        after = None
        if problem.other_future is not None:
            changed = problem.other_future(problem.arrays, problem.cut)
            after = np.asarray(run(*problem.given(changed, dtype))["context"])
        plain = self._plainly(problem, dtype)
        tell("judging")  # NumPy's truth of large arrays takes longer than any kernel may
        ratios = self._plain_ratios(problem, dtype)
        if check.implementation != problem.plain_is:  # the plain version is not judged by itself
            parts = (_part(problem, outputs) for outputs in (got, plain))
            worst = max(ratios.values())
            ratios = judging.judge(*parts, problem.answer, dtype) | {"plain": worst}
            if check.scenario == LARGE.name:
                apart = judging.elsewhere(got, plain, problem.part, problem.answer)
                ratios["elsewhere"] = apart
        if after is not None:
            past = judging.past_moved(got["context"], after, problem.cut, dtype)
            ratios = ratios | {"past": past}
        return ratios

    def _problem(self, mechanism: str, name: str) -> Problem:
        scenario = scenario_of(mechanism, name)
        scenario = scenario.small() if self._small else scenario
        return problems.problem(mechanism, scenario, interpreted=self._small)

    def _plain_outputs(self, problem: Problem, dtype: str) -> Arrays:
        """The outputs of the plain version."""
        run = _known(self._submitted(problem, problem.plain, dtype))
        return jax.block_until_ready(run(*problem.given(problem.arrays, dtype)))

    def _ratios_of_plain(self, problem: Problem, dtype: str) -> dict[str, float]:
        """The errors of the plain version over what it is allowed."""
        arrays = judging.moved(problem.arrays, judging.rounding(dtype))
        off = problem.truth(arrays, problem.dcontext).values
        plain = _part(problem, self._plainly(problem, dtype))
        return judging.judge_plain(plain, off, problem.answer, dtype)

    def _program(self, check: Check) -> Any:
        """The future of a check's program, or why there is none; also of its plain version's."""
        devices = jax.local_device_count()
        if check.scenario == MESH.name and MESH.sharers(devices) < 2:
            return NotImplementedError(f"a mesh needs several devices that share 8; got {devices}")
        problem = self.problem(check.mechanism, check.scenario)
        key = problem, check.implementation, check.dtype
        if key not in self._pending:
            self._submitted(problem, problem.plain, check.dtype)
            apply = functools.partial(problem.apply, check.implementation)
            self._pending[key] = self._submitted(problem, apply, check.dtype)
        return self._pending[key]

    def _submitted(self, problem: Problem, apply: Callable[..., Any], dtype: str) -> Any:
        try:
            given = problem.given(problem.arrays, dtype)
            lowered = problems.program(apply, dtype).lower(*given)
        except Exception as error:  # it becomes a row
            return error
        text = lowered.as_text()
        if text not in self._compiled:
            self._compiled[text] = self._pool.submit(lowered.compile)
        return self._compiled[text]


def _known(pending: Any) -> Any:
    """The executable; an exception is raised."""
    if isinstance(pending, Exception):
        raise pending
    return pending.result()


def _part(problem: Problem, outputs: Arrays) -> Arrays:
    return {name: problem.part(x) for name, x in outputs.items()}


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def main() -> None:
    """Says what its machine is, then does checks until its input ends."""
    checker = Checker(small=sys.argv[2:] == ["small"])
    serve(lambda: provenance.describe() | {"devices": jax.local_device_count()}, checker.answer)


if __name__ == "__main__":
    main()
