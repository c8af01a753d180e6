"""The process that measures: cases come in, results go out.

python -m experiments.compare_lengths.worker FD INPUT
"""

import dataclasses
import functools
import sys
import traceback
from typing import Any

from attnlab.bench import environment, inputs, peaks, work, workers
from attnlab.bench.case import Case, Result
from attnlab.bench.measure import measure
from attnlab.bench.roofline import Unit
from attnlab.runs.errors import one_line


def main() -> None:
    """Says what the machine is, then measures what it is told to."""
    path = sys.argv[2] if len(sys.argv) > 2 else None
    text = functools.cache(lambda: inputs.read(path))

    def answer(order: dict[str, Any], send: workers.Send) -> None:
        def told(result: Result) -> None:
            send(compiled=dataclasses.asdict(result))

        if "unit" in order:
            unit = Unit(**order["unit"])
            send(peak=dataclasses.asdict(peaks.measure(unit, repeats=order["repeats"])))
            return
        case = Case(**order.pop("case"))
        result = guarded(case, text(), on_compiled=told, **order)
        send(result=dataclasses.asdict(result))

    workers.serve(lambda: environment.describe(text()), answer)


def guarded(case: Case, text: inputs.Text, **options: Any) -> Result:
    """The row of `measure` or `deviceless.analyze`; an exception becomes a row too."""
    try:
        if case.target is not None:
            from attnlab.bench import deviceless  # takes seconds: the models and the training

            return deviceless.counted(deviceless.analyze(case))
        result = measure(case, text, **options)
        if result.status != "ok" or case.devices > 1:  # peaks are of one
            return result
        operations, what = work.counted(case)
        return dataclasses.replace(result, operations=operations, operations_of=what)
    except Exception as error:  # noqa: BLE001 - any mechanism's mistake is a row; the others go on
        traceback.print_exc()
        words = one_line(error)
        if "RESOURCE_EXHAUSTED" in words:  # the compiler or the allocator refused
            return Result(case=case, status="too_large", message=words.partition(": ")[2])
        return Result(case=case, status="failed", message=words)


if __name__ == "__main__":
    main()
