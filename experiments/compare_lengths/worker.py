"""The process that measures: cases come in on its standard input, results go out on a pipe.

    python -m experiments.compare_lengths.worker FD INPUT

A worker that dies takes one case with it; `runner` turns that into a row and starts another. The
parent never initializes a device, so an accelerator belongs to its worker alone.
"""

import json
import os
import queue
import sys
import threading
import traceback
from typing import Any

from attnlab.bench import environment, inputs, memory
from attnlab.bench.case import Case, Result, to_json
from attnlab.bench.measure import measure


def main(pipe: int, path: str | None) -> None:
    """Says what the machine is, then measures what it is told to until its input ends."""
    memory.volunteer_for_the_oom_killer()
    memory.dispatch_synchronously()
    out = os.fdopen(pipe, "w", buffering=1)

    def send(kind: str, value: Any) -> None:
        out.write(json.dumps({kind: value}) + "\n")

    orders = _orders()
    try:
        text = inputs.read(path)
        send("hello", environment.describe(text))
    except (ValueError, RuntimeError) as error:  # RuntimeError: JAX found no such backend
        send("refused", str(error).splitlines()[0])
        return
    while (order := orders.get()) is not None:
        case = Case(**order.pop("case"))
        result = _guarded(case, text, on_compiled=lambda r: send("compiled", to_json(r)), **order)
        send("result", to_json(result))


def _guarded(case: Case, text: inputs.Text, **options: Any) -> Result:
    """`measure`, or `deviceless.analyze`, with whatever it raises as a row."""
    try:
        if case.target is not None:
            from attnlab.bench import deviceless  # with the models and the training: seconds

            return deviceless.analyze(case)
        return measure(case, text, **options)
    except Exception as error:  # noqa: BLE001 - any mechanism's mistake is a row; the others go on
        traceback.print_exc()
        words = " ".join(str(error).split())[:300]
        if "RESOURCE_EXHAUSTED" in words:  # the compiler or the allocator refused
            return Result(case=case, status="too_large", message=words)
        return Result(case=case, status="failed", message=f"{type(error).__name__}: {words}")


def _orders() -> "queue.SimpleQueue[dict[str, Any] | None]":
    """Lines of standard input as they come. When it ends the parent is gone: so is this process."""
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        os._exit(0)  # not after the case: that may be an hour

    threading.Thread(target=read, daemon=True).start()
    return orders


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
