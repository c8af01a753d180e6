"""The main job: every case of the settings, a row each, and the report over the rows."""

import contextlib
import dataclasses
import datetime
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from attnlab.bench import (
    deviceless_figures,
    deviceless_report,
    figures,
    published,
    report,
    topology,
    trends,
)
from attnlab.bench.case import Case, Result
from attnlab.bench.folder import Folder
from attnlab.bench.memory import human
from attnlab.bench.runner import Runner, started
from attnlab.bench.settings import Settings
from attnlab.records.errors import Invalid

INTERRUPTED = 130  # what a shell reports for a job ended by Ctrl-C
COMPILE_SECONDS = 900.0  # for a target nothing runs: --case_seconds is not meant


def compare(
    settings: Settings,
    *,
    output_dir: Path,
    published_dir: Path,
    resume: Path | None = None,
    out: TextIO | None = None,
) -> int:
    """Runs what is missing, and writes the tables and figures even when it is interrupted.

    Args:
      settings: what to compare; with `resume`, the settings of that folder.
      output_dir: where the fresh folder of this run goes.
      published_dir: the tables of papers that the report sets beside the run.
      resume: an earlier run's folder to complete instead.
      out: where the progress goes; standard output by default.

    Returns:
      The exit status: 0, 130 after Ctrl-C, or 1 where the machine let the run down.

    Raises:
      Invalid: the settings do not suit the machine, or the folder cannot be used.
    """
    out = out or sys.stdout
    tables = published.load(published_dir)
    with (
        _terminable(),
        started(
            devices=settings.devices,
            input_path=settings.input,
            repeats=settings.repeats,
            case_seconds=COMPILE_SECONDS if settings.target else settings.case_seconds,
            variables=topology.environment() if settings.target else None,
        ) as runner,
    ):
        cases = settings.cases(runner.environment["devices"])
        if resume is None:
            folder = Folder.create(output_dir, settings.as_json())
        else:
            folder = Folder.open(resume)
        status = 0
        try:
            _run(cases, folder, settings, runner, out)
        except KeyboardInterrupt:
            status = INTERRUPTED
            print("\ninterrupted: writing the report of what is done", file=out, flush=True)
        except Invalid as error:  # no new worker would start: the device is gone, say
            status = 1
            print(f"\nstopped: {error}", file=out, flush=True)
        with _uninterrupted():
            _finish(cases, folder, tables, runner.errors(), out)
        if status:
            print(f"to complete it: --resume={folder.path}", file=out)
        return status


def finished(result: Result | None) -> bool:
    """Whether a resumed run leaves this case alone: failures and kills are tried again."""
    return result is not None and result.status not in ("failed", "killed")


def predicted_seconds(earlier: Sequence[Result], length: int) -> float:
    """One call's time at `length` from the shorter lengths of the same mechanism and pass.

    The last two that ran are continued with their own slope; with one, linearly; with none, 0.
    """
    line = {
        r.case.length: s for r in earlier if (s := trends.seconds(r)) and r.case.length < length
    }
    points = sorted(line.items())[-2:]
    if not points:
        return 0.0
    slope = trends.exponent(dict(points)) if len(points) == 2 else None
    n, seconds = points[-1]
    return seconds * (length / n) ** (1.0 if slope is None else slope)


def _run(
    cases: Sequence[Case], folder: Folder, settings: Settings, runner: Runner, out: TextIO
) -> None:
    rows = {result.case: result for result in folder.results()}
    missing = [case for case in cases if not finished(rows.get(case))]
    print(f"results: {folder.path}", file=out)
    what = "compile, without the devices" if settings.target else f"run on {_where(runner)}"
    print(f"{len(missing)} of {len(cases)} cases to {what}", file=out, flush=True)
    before: Case | None = None
    for i, case in enumerate(missing, 1):
        label = case.label
        if before is not None and (before.target, before.label) != (case.target, label):
            if not settings.target or case.target != before.target:
                # A device's peak never falls, and a process's memory crumbles: one a mechanism.
                runner.fresh()
            print(_so_far(rows, cases, settings), file=out, flush=True)
        before = case
        print(f"[{i}/{len(missing)}] {case} … ", end="", file=out, flush=True)
        same = [r for r in rows.values() if (r.case.label, r.case.passes) == (label, case.passes)]
        result = _measured(case, same, settings, runner)
        rows[case] = result = dataclasses.replace(
            result,
            environment=runner.environment,
            flags=settings.as_json(),
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        folder.append(result)
        print(_line(result), file=out, flush=True)
    if missing:
        print(_so_far(rows, cases, settings), file=out, flush=True)


def _measured(case: Case, earlier: Sequence[Result], settings: Settings, runner: Runner) -> Result:
    """The case's row; only compiled where shorter lengths say that it would take too long."""
    if case.target is not None:
        return runner.run(case)
    limit = settings.case_seconds
    expected = predicted_seconds(earlier, case.length)
    stopped = [r for r in earlier if r.status == "too_slow" and r.case.length < case.length]
    if not stopped and expected <= limit:
        return runner.run(case)
    if stopped:
        why = f"not run: n = {stopped[0].case.length} was already too slow"
    else:
        why = f"not run: about {expected:.0f} s a call by shorter lengths, limit {limit:.0f} s"
    result = runner.run(case, run=False)
    slow = result.status == "too_slow" and result.message == "not run"
    return dataclasses.replace(result, message=why) if slow else result


def _finish(
    cases: Sequence[Case],
    folder: Folder,
    tables: Mapping[str, published.Table],
    errors: str,
    out: TextIO,
) -> None:
    rows = {result.case: result for result in folder.results()}
    results = [rows[case] for case in cases if case in rows]
    (folder.path / "results.csv").write_text(report.csv_text(results), encoding="utf-8")
    lost = any(r.status in ("failed", "killed") for r in results)
    if lost and errors.strip():  # else they are the chatter of compilers and plugins
        with open(folder.path / "errors.log", "a", encoding="utf-8") as file:
            file.write(errors)
    if _deviceless(cases):
        deviceless_figures.save(results, folder.path)
        text = deviceless_report.markdown(results, planned=len(cases))
    else:
        figures.save(results, folder.path)
        beside = published.sections(results, tables)
        text = report.markdown(results, planned=len(cases), beside=beside)
    (folder.path / "report.md").write_text(text, encoding="utf-8")
    counts = {status: sum(r.status == status for r in results) for status in report.SHORT}
    bad = ", ".join(f"{n} × {report.SHORT[status]}" for status, n in counts.items() if n)
    ok = sum(r.status == "ok" for r in results)
    done = "compiled" if _deviceless(cases) else "measured"
    print(f"{ok} of {len(cases)} cases {done}" + (f"; {bad}" if bad else ""), file=out)
    print(f"report: {folder.path / 'report.md'}", file=out, flush=True)


def _so_far(rows: dict[Case, Result], cases: Sequence[Case], settings: Settings) -> str:
    results = [rows[case] for case in cases if case in rows]
    if settings.target:
        return f"\n{deviceless_report.tables(results)}\n"
    parts = []
    for passes in settings.passes:
        if any(r.case.passes == passes for r in results):
            parts.append(f"\n{report.PASS_TITLES[passes]}, time so far:")
            parts.append(report.table(results, passes, "time"))
    return "\n".join(parts) + "\n"


def _line(result: Result) -> str:
    if result.status != "ok":
        return report.SHORT[result.status] + (f": {result.message}" if result.message else "")
    if not result.seconds:
        text = (
            f"{human(result.memory_bytes)}, compiled in {report.duration(result.compile_seconds)}"
        )
        return text + (f"; {result.message}" if result.message else "")
    low, high = min(result.seconds), max(result.seconds)
    text = (
        f"{report.duration(result.median_seconds)} "
        f"({report.duration(low)} to {report.duration(high)}), {human(result.memory_bytes)}, "
        f"compiled in {report.duration(result.compile_seconds)}"
    )
    return text + (f"; {result.message}" if result.message else "")


def _deviceless(cases: Sequence[Case]) -> bool:
    return any(case.target is not None for case in cases)


def _where(runner: Runner) -> str:
    found = runner.environment
    free = found.get("available_bytes")
    return f"{found['devices']} × {found['device']}" + (f", {human(free)} free" if free else "")


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """A polite kill is treated as Ctrl-C: rows are kept and the report is written."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Lets an impatient second Ctrl-C wait for the few seconds that the report takes."""
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_resumed(given: dict[str, Any], stored: dict[str, Any], path: Path) -> None:
    """Refuses flags that differ from those of the run to complete.

    Args:
      given: the settings named on the command line.
      stored: all settings of the folder.
      path: the folder.

    Raises:
      Invalid: naming the first flag that differs.
    """
    for name, value in json.loads(json.dumps(given)).items():
        if stored.get(name) != value:
            raise Invalid(
                f"--{name}={_plain(value)} differs from {_plain(stored.get(name))} in {path}; "
                "a resumed run keeps its flags: leave it out, or start a new run"
            )


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
