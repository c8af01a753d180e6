"""The loop of `device_check`: job after job until the time is up, and the report over the rows."""

import dataclasses
import datetime
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from attnlab.bench.case import Case, Result
from attnlab.runs.units import human
from attnlab.runs.errors import Invalid
from attnlab.runs.interrupts import interruptible, uninterrupted
from experiments.device_check import figures as device_figures
from experiments.device_check import jobs as device_jobs
from experiments.device_check import report as device_report
from experiments.device_check.cases import Checked
from experiments.device_check.folder import DeviceFolder, Rows
from experiments.device_check.jobs import Job
from experiments.device_check.process import MODULE, Device, started
from experiments.device_check.settings import Settings

INTERRUPTED = 130  # what a shell reports for a job ended by Ctrl-C
SUSPECT = 2  # a program that has cost so many processes waits until everything else is done
REPORT_SECONDS = 10.0  # of the minutes, kept for the report and its figures


def run(
    settings: Settings,
    *,
    output_dir: Path,
    resume: Path | None = None,
    module: str = MODULE,
    out: TextIO | None = None,
) -> int:
    """Does what is missing, as far as the minutes reach, and writes the report in any case.

    Args:
      settings: what to do; with `resume`, the settings of that folder.
      output_dir: where the fresh folder of this run goes.
      resume: an earlier run's folder to go on in instead.
      module: of the worker; another one in tests.
      out: where the progress goes; standard output by default.

    Returns:
      The exit status: 0; 1 where a check failed or crashed, or no new worker would start; 130
      after Ctrl-C.

    Raises:
      Invalid: there is no accelerator and `allow_cpu` is not set, or the folder cannot be used.
    """
    out = out or sys.stdout
    deadline = time.monotonic() + settings.minutes * 60
    with interruptible(), started(module) as device:
        _require_accelerator(device.environment, settings)
        folder = DeviceFolder.open(resume) if resume else DeviceFolder.create(output_dir, settings)
        jobs = device_jobs.plan(settings, device.environment["platform"])
        rows = folder.rows()
        print(f"results: {folder.path}\n{_where(device.environment)}", file=out, flush=True)
        status = 0
        try:
            _run(jobs, rows, folder, settings, device, deadline - REPORT_SECONDS, out)
        except KeyboardInterrupt:
            status = INTERRUPTED
            print("\ninterrupted: writing the report of what is done", file=out, flush=True)
        except Invalid as error:  # no new worker would start: the device is gone, say
            status = 1
            print(f"\nstopped: {error}", file=out, flush=True)
        with uninterrupted():
            bad = _finish(jobs, rows, folder, settings, device, out)
    return status or bad


def _require_accelerator(environment: dict[str, Any], settings: Settings) -> None:
    if environment["platform"] == "cpu" and not settings.allow_cpu:
        raise Invalid(
            f"no accelerator here, JAX finds {environment['device']} only; to go on: --allow_cpu "
            "--lengths=256,512 --tokens=1024 --minutes=2"
        )


def _run(
    jobs: list[Job],
    rows: Rows,
    folder: DeviceFolder,
    settings: Settings,
    device: Device,
    deadline: float,
    out: TextIO,
) -> None:
    todo = [(job, left) for job in jobs if (left := device_jobs.missing(job, rows))]
    print(f"{len(todo)} of {len(jobs)} jobs to do in {settings.minutes:g} minutes", file=out)
    planned = len(todo)
    for i, (job, left) in enumerate(todo, 1):  # it may become longer
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            print(f"out of time: {len(todo) - i + 1} jobs are left", file=out, flush=True)
            return
        if i <= planned:
            bad = tuple(m for m in left if device.lost[device_jobs.program(m)] >= SUSPECT)
            left = tuple(m for m in left if m not in bad)
            if bad:  # another hour would not be enough if each of them hung
                name = f"{job.name}, {', '.join(sorted({str(m.implementation) for m in bad}))}"
                todo.append((dataclasses.replace(job, name=name, members=bad), bad))
            if not left:
                continue
        print(f"[{i}/{len(todo)}] {job.name}, {remaining:.0f} s left … ", end="", file=out)
        out.flush()
        began = _now()
        done: list[Checked | Result] = []

        def give(row: Checked | Result, began: str = began, done: list[Any] = done) -> None:
            row = dataclasses.replace(row, environment=device.environment, time=_now())
            if isinstance(row, Result):  # rows of one job were timed in turns, at one time
                row = dataclasses.replace(row, flags=settings.as_json() | {"turns": began})
            rows[row.check if isinstance(row, Checked) else row.case] = row
            folder.append(row)
            done.append(row)

        limit = min(settings.case_seconds, remaining / 3)
        members = []
        for member in left:
            expected = 0.0
            if isinstance(member, Case):
                expected = device_jobs.expected_seconds(member, rows.values())
            if expected > settings.case_seconds:
                limit_of = f"limit {settings.case_seconds:.0f} s"
                why = f"not run: about {expected:.0f} s a call by shorter lengths, {limit_of}"
                give(Result(member, "too_slow", why))
            elif expected <= limit:  # else there is time for it in a resumed run
                members.append(member)
        device.run(
            dataclasses.replace(job, members=tuple(members)),
            give,
            deadline=deadline,
            repeats=settings.repeats,
            case_seconds=limit,
        )
        print(device_report.line(done, len(left)), file=out, flush=True)


def _finish(
    jobs: list[Job],
    rows: Rows,
    folder: DeviceFolder,
    settings: Settings,
    device: Device,
    out: TextIO,
) -> int:
    wanted = [member for job in jobs for member in job.members]
    found = [rows[member] for member in wanted if member in rows]
    checked = [row for row in found if isinstance(row, Checked)]
    timed = [row for row in found if isinstance(row, Result)]
    lost = any(row.status in ("fail", "crashed", "failed", "killed") for row in found)
    if lost and (errors := device.errors().strip()):  # else they are chatter
        with open(folder.path / "errors.log", "a", encoding="utf-8") as file:
            file.write(errors + "\n")
    device_figures.save(timed, folder.path)
    text = device_report.markdown(
        checked, timed, planned=len(wanted), environment=device.environment, settings=settings
    )
    (folder.path / "report.md").write_text(text, encoding="utf-8")
    print(f"\n{device_report.summary(checked, timed, device.environment, settings)}", file=out)
    print(f"\n{len(found)} of {len(wanted)} rows; report: {folder.path / 'report.md'}", file=out)
    if not all(device_jobs.finished(rows.get(member)) for member in wanted):
        print(f"to complete it: --resume={folder.path}", file=out, flush=True)
    return int(any(row.status in ("fail", "crashed") for row in checked))


def _where(environment: dict[str, Any]) -> str:
    free = environment.get("available_bytes")
    return f"{environment['device']}" + (f", {human(free)} free" if free else "")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
