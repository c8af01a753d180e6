"""The process that compiles for absent accelerators, whose compilers want an environment of theirs.

python -m experiments.language_model.compiler FD
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax

from attnlab.bench import deviceless, topology, workers
from attnlab.bench.case import Result
from attnlab.bench.workers import Workers, death
from attnlab.runs.errors import one_line
from attnlab.runs.flags import structured
from experiments.language_model.cost import case_of, cost_of, lower
from experiments.language_model.rows import Cost
from experiments.language_model.settings import Settings

__all__ = ["compiled", "process"]

SECONDS = 900.0  # to compile one step


def process() -> Workers:
    """The process, which starts when its context is entered."""
    return Workers("experiments.language_model.compiler", variables=topology.environment())


def compiled(
    there: Workers, name: str, target: str, settings: Settings, vocab_size: int
) -> Iterator[Cost]:
    """Yields the row of one model at each length for a target; a length that fails is a row too.

    Args:
      there: process that compiles.
      name: name of the model.
      target: name of the accelerator.
      settings: settings of the run.
      vocab_size: number of ids.
    """
    for length in settings.target_lengths:
        order = {"name": name, "target": target, "length": length, "vocab_size": vocab_size}
        worker = there.ready()
        worker.send(settings=settings.as_json(), **order)
        message = worker.receive(SECONDS)
        if message is None:
            stopped = worker.running()
            why = f"stopped after {SECONDS:.0f} s" if stopped else death(there.retire())
            if stopped:
                there.retire()
            failed = Result(case_of(name, length, settings, target), "failed", f"compiling: {why}")
            yield cost_of(failed)
        else:
            yield structured(Cost, message["row"])


def answer(order: dict[str, Any], send: workers.Send) -> None:
    """Compiles one step and sends its row."""
    settings = Settings.from_json(order["settings"])
    name = order["name"]
    case = case_of(name, order["length"], settings, order["target"])
    try:
        result = deviceless.analyze(
            case, functools.partial(lower, name, settings, order["vocab_size"])
        )
    except Exception as error:  # noqa: BLE001 - a compiler's refusal is a row; the others go on
        result = Result(case, "failed", one_line(error))
    send(row=dataclasses.asdict(cost_of(result)))


if __name__ == "__main__":
    workers.serve(lambda: {"jax": jax.__version__}, answer)
