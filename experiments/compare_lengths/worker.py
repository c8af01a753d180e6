"""The process that measures: cases come in, results go out.

python -m experiments.compare_lengths.worker FD INPUT
"""

import dataclasses
import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.bench import deviceless, environment, inputs, peaks, work, workers
from attnlab.bench.case import Case, Result
from attnlab.bench.measure import Program, measure, prepare
from attnlab.bench.roofline import Unit
from attnlab.mechanisms.attentions import KINDS
from attnlab.runs.errors import one_line

PACKAGES = list(dict.fromkeys(filter(None, (kind.package for kind in KINDS.values()))))
_VALUES = 512  # numbers of an array by which two programs are compared


def main() -> None:
    """Says what the machine is, then measures what it is told to."""
    path = sys.argv[2] if len(sys.argv) > 2 else None
    text = functools.cache(lambda: inputs.read(path))
    ready: Program | None = None

    def answer(order: dict[str, Any], send: workers.Send) -> None:
        nonlocal ready

        def told(result: Result) -> None:
            send(compiled=dataclasses.asdict(result))

        if "unit" in order:
            unit = Unit(**order["unit"])
            send(peak=dataclasses.asdict(peaks.measure(unit, repeats=order["repeats"])))
            return
        if "sample" in order:
            assert ready is not None
            ready.wake()
            send(seconds=ready.sample())
            return
        ready = None  # its memory is the next program's
        case, in_turns = Case(**order.pop("case")), order.pop("in_turns")
        if in_turns:
            del order["repeats"]
        made = guard(prepare if in_turns else measure, case, text(), on_compiled=told, **order)
        if isinstance(made, Result):
            send(result=dataclasses.asdict(made))
            return
        ready = made
        send(
            ready=dataclasses.asdict(count_operations(ready.known)),
            slow=ready.again is None,
            calls=ready.calls,
            values=[some_of(x) for x in ready.values()] if case.has_values else [],
        )

    workers.serve(lambda: environment.describe(text(), PACKAGES), answer)


def some_of(values: np.ndarray) -> list[float]:
    """Numbers from everywhere in an array, of all its heads and entries.

    They are not equally far apart: a stride that the width divides would see one entry alone.
    """
    flat = values.ravel()
    places = np.linspace(0, flat.size - 1, min(_VALUES, flat.size)).astype(int)
    return flat[places].astype(float).tolist()


def guard(
    do: Callable[..., Program | Result], case: Case, text: inputs.Text, **options: Any
) -> Program | Result:
    """What `measure`, `prepare` or `deviceless.analyze` makes; an exception becomes a row too."""
    try:
        if case.target is not None:
            return deviceless.analyze(case)
        made = do(case, text, **options)
        return count_operations(made) if isinstance(made, Result) else made
    except Exception as error:  # any mechanism's mistake is a row; the others go on
        traceback.print_exc()
        words = one_line(error)
        if "RESOURCE_EXHAUSTED" in words:  # the compiler or the allocator refused
            return Result(case=case, status="too_large", message=words.partition(": ")[2])
        return Result(case=case, status="failed", message=words)


def count_operations(result: Result) -> Result:
    """The row with the operations of its program, where they are counted."""
    is_counted = result.status == "ok" and result.case.is_counted
    return work.with_operations(result) if is_counted else result


if __name__ == "__main__":
    main()
