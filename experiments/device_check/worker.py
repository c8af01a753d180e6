"""The process of `device_check` that uses the device: it reads jobs and writes rows to a pipe.

    python -m experiments.device_check.worker FD

Before the worker does anything with a member of a job, it sends the number of the member and what
it will do, so that the parent knows which member killed it.
"""

import dataclasses
import functools
from typing import Any

from attnlab.bench import environment, inputs
from attnlab.bench.case import Case
from attnlab.bench.workers import Send, serve
from experiments.device_check import checks, turns
from experiments.device_check.cases import Check


def main() -> None:
    """Sends a description of the machine, then does jobs until its input ends."""
    text = inputs.read()
    serve(lambda: environment.describe(text), functools.partial(_do, text))


def _do(text: inputs.Text, order: dict[str, Any], send: Send) -> None:
    def tell(member: int, stage: str) -> None:
        send(member=member, stage=stage)

    def give(member: int, row: Any) -> None:
        send(member=member, row=dataclasses.asdict(row))

    if order["kind"] == "check":
        members = [Check(**member) for member in order["members"]]
        checks.run(members, threads=order["threads"], tell=tell, give=give)
    else:
        turns.run(
            [Case(**member) for member in order["members"]],
            text,
            repeats=order["repeats"],
            case_seconds=order["case_seconds"],
            threads=order["threads"],
            seconds=order["seconds"],
            tell=tell,
            give=give,
        )
    send(done=True)


if __name__ == "__main__":
    main()
