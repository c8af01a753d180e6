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
from tests.device import problems
from tests.device.problems import Problem
from tests.device.scenarios import BUCKETS, MESH, Check, count_sharers

Tell = Callable[[str], None]  # (what is done next): "compiling", "running" or "judging"


class Checker:
    """Does checks; `small` ones, with interpreted Pallas kernels, if asked to."""

    def __init__(self, small: bool = False) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2))
        self._compiled: dict[str, concurrent.futures.Future[Any]] = {}  # by a program's text
        # Checks of one scenario follow each other, if not in every dtype.
        self.problem = functools.lru_cache(8)(functools.partial(problems.problem, small=small))
        self._program = functools.cache(self._lower)

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
                if one.scenario != BUCKETS:
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

        Of the context and each gradient, in the mean and in the worst row; "past": how far a change
        of the future moved the past, over rounding; "buckets": how much nearer another axis is than
        the bucket's, over rounding.
        """
        if check.scenario == BUCKETS:
            x, rotations = problems.hash_arguments(check.dtype)
            tell("running")
            buckets = jax.jit(hash_buckets)(x, rotations)
            return {"buckets": problems.judge_buckets(buckets, x, rotations)}
        pending = self._program(check)
        if isinstance(pending, Exception):
            raise pending
        run, problem = pending.result(), self._problem_of(check)
        tell("running")
        got = jax.block_until_ready(run(*problem.given(problem.arrays, check.dtype)))
        after = None
        if problem.causal:
            changed = problem.with_another_future()
            after = np.asarray(run(*problem.given(changed, check.dtype))["context"])
        tell("judging")  # the truth of large arrays takes longer than any kernel may
        ratios = problem.judge(got, check.dtype)
        if after is not None:
            ratios["past"] = problem.judge_past(got["context"], after, check.dtype)
        return ratios

    def _problem_of(self, check: Check) -> Problem:
        return self.problem(check.mechanism, check.scenario)

    def _lower(self, check: Check) -> concurrent.futures.Future[Any] | Exception:
        """A check's program, which compiles in the pool, or why there is none."""
        devices = jax.local_device_count()
        if check.scenario == MESH.name and count_sharers(devices) < 2:
            return NotImplementedError(f"a mesh needs several devices that share 8; got {devices}")
        try:
            problem = self._problem_of(check)
            apply = functools.partial(problem.apply, check.implementation)
            given = problem.given(problem.arrays, check.dtype)
            lowered = problems.program(apply, check.dtype).lower(*given)
        except Exception as error:  # it becomes a row
            return error
        text = lowered.as_text()
        if text not in self._compiled:
            self._compiled[text] = self._pool.submit(lowered.compile)
        return self._compiled[text]


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def main() -> None:
    """Says what its machine is, then does checks until its input ends."""
    checker = Checker(small=sys.argv[2:] == ["small"])
    serve(lambda: provenance.describe() | {"devices": jax.local_device_count()}, checker.answer)


if __name__ == "__main__":
    main()
