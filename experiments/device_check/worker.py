"""The process of `device_check` that has the device: jobs come in, rows go out on a pipe.

    python -m experiments.device_check.worker FD

Before anything can go wrong with a member of a job, the worker says which it is and what it is
about to do, so that the parent knows whom a death belongs to.
"""

import dataclasses
import json
import os
import queue
import sys
import threading
from typing import Any

from attnlab.bench import environment, inputs, memory
from attnlab.bench.case import Case, to_json
from experiments.device_check import checks as device_checks
from experiments.device_check import turns as device_turns
from experiments.device_check.cases import Check


def main(pipe: int) -> None:
    """Says what the machine is, then does what it is told to until its input ends."""
    memory.volunteer_for_the_oom_killer()
    memory.dispatch_synchronously()
    out, lock = os.fdopen(pipe, "w", buffering=1), threading.Lock()

    def send(**message: Any) -> None:
        with lock:  # programs are compiled in threads
            out.write(json.dumps(message) + "\n")

    def tell(member: int, stage: str) -> None:
        send(member=member, stage=stage)

    orders = _orders()
    text = inputs.read()
    try:
        send(hello=environment.describe(text))
    except RuntimeError as error:  # JAX found no such backend
        send(refused=str(error).splitlines()[0])
        return
    while True:
        order = orders.get()
        if order["kind"] == "check":
            device_checks.run(
                [Check(**member) for member in order["members"]],
                threads=order["threads"],
                tell=tell,
                give=lambda i, row: send(member=i, row=dataclasses.asdict(row)),
            )
        else:
            device_turns.run(
                [Case(**member) for member in order["members"]],
                text,
                repeats=order["repeats"],
                case_seconds=order["case_seconds"],
                threads=order["threads"],
                seconds=order["seconds"],
                tell=tell,
                give=lambda i, row: send(member=i, row=to_json(row)),
            )
        send(done=True)


def _orders() -> "queue.SimpleQueue[dict[str, Any]]":
    """Lines of standard input as they come. When it ends the parent is gone: so is this process."""
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return orders


if __name__ == "__main__":
    main(int(sys.argv[1]))
