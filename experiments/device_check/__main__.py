"""The command line of `device_check`; does one job after the other until the time is up."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from attnlab.bench.case import DERIVED, Case, Result
from attnlab.runs import command_line, hosts, loop
from attnlab.runs.errors import Invalid, Stopped
from attnlab.runs.folder import Folder
from attnlab.runs.report import so_far
from attnlab.runs.rows import Rows
from attnlab.runs.units import human
from experiments import device_check
from experiments.device_check import jobs, report
from experiments.device_check.cases import Check, Checked
from experiments.device_check.jobs import Job, Row, key_of
from experiments.device_check.process import MODULE, Device
from experiments.device_check.settings import Settings

SUSPECT = 2  # a program that has cost so many worker processes waits until all others are done
REPORT_SECONDS = 10.0  # of --minutes, kept for the report and its figures
FREE = ("minutes", "allow_cpu")  # flags that a resumed run may change


def main(argv: list[str]) -> int:
    """Parses the flags and runs; a bad flag, or no accelerator, ends in one line and status 2."""
    return command_line.run(
        argv,
        Settings,
        lambda settings, folder: hosts.on_every_host(run, settings, folder),
        doc=device_check.__doc__,
        free=FREE,
        several=device_check.SHARED_BY == "processes",
    )


def run(settings: Settings, folder: Folder, module: str = MODULE) -> int:
    """Does the jobs that are missing, as far as the time allows.

    Args:
      settings: the flags.
      folder: folder of the run.
      module: module of the worker process; another one in tests.

    Returns:
      The exit status: 0; 1 if a check or a program failed or crashed, something is not done, or no
      new worker starts; 128 + the number of the signal that ended the run.

    Raises:
      Invalid: there is no accelerator and `allow_cpu` is not set, or the folder cannot be used.
    """
    deadline = time.monotonic() + settings.minutes * 60 - REPORT_SECONDS
    with Device(module) as device:
        _require_accelerator(device.environment, settings)
        rows: Rows[Check | Case, Row] = Rows(folder, key_of, [Checked, Result], derived=DERIVED)
        rows.environment = device.environment
        session = _Session(settings, device, rows, deadline)
        job = loop.Job(
            unit="jobs",
            measure=session.measure,
            done=jobs.finished,
            title=session.title,
            line=session.line,
            report=session.report,
            keys=lambda job: job.members,
            before=session.before,
            again=session.again,
        )
        status = loop.run(job, session.planned, folder, rows, where=_where(settings, device))
        found = session.rows().values()
        if not all(jobs.finished(row) for row in found):
            folder.note(device.errors())
    failed = any(row.status == "fail" for row in found)
    return status or int(failed)


class _Session:
    """The jobs of a run, and the time that is left for them."""

    def __init__(
        self, settings: Settings, device: Device, rows: Rows[Any, Row], deadline: float
    ) -> None:
        here = device.environment
        self.planned = jobs.plan(settings, here["platform"], here["devices"])
        self._settings, self._device, self._rows = settings, device, rows
        self._deadline = deadline
        self._suspects: list[Job] = []  # jobs that come after all others
        self._wanted = self._waiting = 0  # numbers of members of the current job

    def rows(self) -> dict[Check | Case, Row]:
        return {key: one.row for key, one in self._rows.kept.items()}

    def before(self, job: Job | None = None) -> None:
        """Stops the run if the time is up and something is left."""
        known = self.rows()
        left = sum(bool(jobs.missing(one, known)) for one in self.planned)
        if left and self._seconds_left() <= 0:
            raise Stopped(f"out of time: {left} jobs are left")

    def title(self, job: Job) -> str:
        return f"{job.name}, {self._seconds_left():.0f} s left"

    def measure(self, job: Job) -> Iterator[Row]:
        """The rows of the missing members; suspects wait until all other jobs are done."""
        known = self.rows()
        left = jobs.missing(job, known)
        waiting: tuple[Any, ...] = ()
        if not job.last:  # suspects may hang: they would use up the time of the others
            lost = self._device.lost
            waiting = tuple(m for m in left if lost[jobs.program(m)] >= SUSPECT)
            left = tuple(m for m in left if m not in waiting)
        if waiting:
            self._suspects.append(job.of_suspects(waiting))
        self._wanted, self._waiting = len(left), len(waiting)

        limit = min(self._settings.case_seconds, self._seconds_left() / 3)
        members = []
        for member in left:
            expected = 0.0
            if isinstance(member, Case):
                expected = jobs.expected_seconds(member, known.values())
            if expected > self._settings.case_seconds:
                limit_of = f"limit {self._settings.case_seconds:.0f} s"
                why = f"not run: about {expected:.0f} s a call by shorter lengths, {limit_of}"
                yield Result(member, "too_slow", why)
            elif expected <= limit:  # else a resumed run may have the time
                members.append(member)
        yield from self._device.measure(
            job.of(members),
            deadline=self._deadline,
            repeats=self._settings.repeats,
            case_seconds=limit,
        )

    def line(self, found: Sequence[Row]) -> str:
        return report.line(found, wanted=self._wanted, waiting=self._waiting)

    def again(self) -> list[Job]:
        self.before()  # the time may be up
        return self._suspects

    def report(self) -> loop.Report:
        items = {job.name: job.members for job in self.planned}
        told = so_far(self._rows, items, self._settings)
        timed, environment = report.programs_of(told.rows), self._device.environment
        drawn = {
            quantity: report.figure(timed, quantity, environment["device"])
            for quantity in ("time", "memory")
        }
        return loop.Report(
            report.markdown(told, environment, self._settings),
            drawn,
            said=report.summary(told, environment, self._settings),
        )

    def _seconds_left(self) -> float:
        return self._deadline - time.monotonic()


def _require_accelerator(environment: dict[str, Any], settings: Settings) -> None:
    if environment["platform"] == "cpu" and not settings.allow_cpu:
        raise Invalid(
            f"no accelerator here, JAX finds only {environment['device']}; to go on: --allow_cpu "
            "--lengths=256,512 --tokens=1024 --minutes=2"
        )


def _where(settings: Settings, device: Device) -> str:
    free = device.environment.get("available_bytes")
    memory = f", {human(free)} free" if free else ""
    return f"{device.environment['device']}{memory}, in {settings.minutes:g} minutes"


if __name__ == "__main__":
    command_line.start(main)
