"""The process of a side: builds its program and measures it when `measure` asks for it.

python -m experiments.compare_peers.worker FD
"""

import math
import time
import traceback
from typing import Any

import numpy as np

from attnlab.bench import environment, inputs, memory, workers
from attnlab.bench.case import Case
from attnlab.bench.measure import SAMPLE_SECONDS
from attnlab.runs.errors import one_line
from experiments.compare_peers import sides
from experiments.compare_peers.pairs import PACKAGES, Side


def main() -> None:
    """Sends a description of the machine, then answers questions."""
    questions = Questions()

    def answer(order: dict[str, Any], send: workers.Send) -> None:
        try:
            send(answer=getattr(questions, order.pop("ask"))(**order))
        except Exception as error:  # noqa: BLE001 - it becomes a row; others go on
            traceback.print_exc()
            send(failed=one_line(error))

    packages = list(PACKAGES.values())
    workers.serve(lambda: environment.describe(inputs.read(), packages), answer)


class Questions:
    """What a side can be asked: one method for each question. `build` comes first."""

    def __init__(self) -> None:
        self._warm = False  # the first call also starts threads
        self._calls = 0  # in one sample; 0 = not known yet

    def build(self, program: str, case: dict[str, Any], given_buckets: bool) -> None:
        """Makes the program of a side, as `sides.build` does."""
        self._program = sides.build(Side(program, Case(**case)), given_buckets=given_buckets)

    def values(self, file: str) -> None:
        """Writes the values that the program computes to a .npz file."""
        self._warm = True
        np.savez(file, *self._program.values(self._program.call()))

    def memory(self) -> int | None:
        """Bytes by which a call raises the high-water mark of the process."""
        if not self._warm:
            self._program.call()
        self._warm = True
        return memory.peak_of(self._program.call)[1]

    def time(self) -> float:
        """Seconds of a call, averaged over as many calls as the clock needs."""
        if not self._calls:
            one = self._sample(1)  # also brings back the pages that `memory` gave up
            if one < 20 * SAMPLE_SECONDS:
                one = self._sample(1)
            self._calls = math.ceil(SAMPLE_SECONDS / one)
        return self._sample(self._calls)

    def _sample(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self._program.call()
        return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    main()
