"""Checks in a process of their own, which is replaced where one died, hung or failed on the device.

After a CUDA error all that a process does fails too, so a worker in which something failed while it
ran is not used again.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from attnlab.bench.workers import Workers, death, last_line
from tests.device.scenarios import Check

MODULE = "tests.device.worker"
AHEAD = 8  # checks whose programs compile while another is done
COMPILE_SECONDS = 180.0  # to wait for a message while the worker compiles or computes in NumPy
RUN_SECONDS = 30.0  # for a check on the device; one that takes longer is stopped


@dataclasses.dataclass(frozen=True)
class Row:
    """What came out of a check.

    Attributes:
      check: check that was done.
      status: "pass", "fail", "refused" (the library does not serve this here) or "crashed".
      message: the worst error, or why there is none.
      ratios: errors over what is allowed, as `worker.Checker.ratios` has them.
    """

    check: Check
    status: str
    message: str = ""
    ratios: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Device(Workers):
    """The worker that has the device."""

    def __init__(
        self,
        module: str = MODULE,
        arguments: Sequence[str] = (),
        *,
        variables: Mapping[str, str] | None = None,
        run_seconds: float = RUN_SECONDS,
    ) -> None:
        super().__init__(module, arguments, variables=variables)
        self._run_seconds = run_seconds
        self._alone = 0  # checks to come that are done with nothing compiling beside them

    def check(self, check: Check, ahead: Sequence[Check] = ()) -> Row:
        """Does a check, whatever happens to the worker; programs of `ahead` compile meanwhile."""
        if self._alone:
            self._alone, ahead = self._alone - 1, ()
        worker, stage = self.ready(), "starting"
        worker.send(checks=[dataclasses.asdict(one) for one in (check, *ahead)])
        while message := worker.receive(
            self._run_seconds if stage == "running" else COMPILE_SECONDS
        ):
            if "row" not in message:
                stage = message["stage"]
                continue
            row = Row(check, **message["row"])
            if row.status == "crashed" and stage == "running":
                self.retire()
            return row
        stopped = worker.running()
        code, said = self.retire(), last_line(self.last_words())
        why = "stopped: it took too long" if stopped else death(code)
        if ahead:  # whose fault was it? One by one shows it
            self._alone = len(ahead)
            return self.check(check)
        return Row(check, "crashed", f"{why} while {stage}: {said}".removesuffix(": "))
