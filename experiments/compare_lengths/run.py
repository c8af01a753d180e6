"""The main job: every case of the settings, a row each, and the report over the rows."""

import dataclasses
import datetime
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from attnlab.bench import memory, topology
from attnlab.bench.case import Case, Result
from attnlab.bench.folder import Folder
from attnlab.runs.units import human
from attnlab.runs.errors import Invalid
from attnlab.runs.interrupts import interruptible, uninterrupted
from experiments.compare_lengths import (
    deviceless_figures,
    deviceless_report,
    figures,
    forecast,
    published,
    report,
)
from experiments.compare_lengths.runner import Runner, started
from experiments.compare_lengths.settings import Settings

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
    folder = None if resume is None else Folder.open(resume)
    rows = {} if folder is None else {result.case: result for result in folder.results()}
    with (
        interruptible(),
        started(
            devices=settings.devices,
            input_path=settings.input,
            repeats=settings.repeats,
            case_seconds=COMPILE_SECONDS if settings.target else settings.case_seconds,
            case_bytes=math.inf if settings.target else settings.case_gib * 2**30,
            variables=topology.environment() if settings.target else None,
        ) as runner,
    ):
        cases = settings.cases(runner.environment["devices"])
        if folder is None:
            folder = Folder.create(output_dir, settings.as_json())
        status, full = 0, None
        try:
            _run(cases, rows, folder, settings, runner, out)
        except KeyboardInterrupt:
            status = INTERRUPTED
            print("\ninterrupted: writing the report of what is done", file=out, flush=True)
        except Invalid as error:  # no new worker would start: the device is gone, say
            status = 1
            print(f"\nstopped: {error}", file=out, flush=True)
        except OSError as error:
            full = error
        with uninterrupted():
            try:
                if full is None:
                    _finish(cases, folder, tables, runner.errors(), out)
            except OSError as error:
                full = error
        if full is not None:
            status = 1
            print(f"\nstopped: cannot write to {folder.path}: {full.strerror}", file=out)
        if status:
            print(f"to complete it: --resume={folder.path}", file=out)
        return status


def finished(result: Result | None) -> bool:
    """Whether a resumed run leaves this case alone: failures and kills are tried again."""
    return result is not None and result.status not in ("failed", "killed")


def _run(
    cases: Sequence[Case],
    rows: dict[Case, Result],
    folder: Folder,
    settings: Settings,
    runner: Runner,
    out: TextIO,
) -> None:
    missing = [case for case in cases if not finished(rows.get(case))]
    begun = _now()
    print(f"results: {folder.path}", file=out)
    what = "compile, without the devices" if settings.target else f"run on {_where(runner)}"
    print(f"{len(missing)} of {len(cases)} cases to {what}", file=out, flush=True)

    def measured(case: Case, count: str, left: Sequence[Case]) -> Result:
        print(f"[{count}{_left(left, rows, settings)}] {case} … ", end="", file=out, flush=True)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        line = forecast.line_of(rows.values(), case)
        result = _measured(case, line, settings, runner, lambda words: _tell(words, out))
        print(_line(result), file=out, flush=True)
        return dataclasses.replace(
            result,
            environment=runner.environment,
            flags=settings.as_json(),
            time=_now(),
            begun=begun,
            load=load,
        )

    before: Case | None = None
    for i, case in enumerate(missing):
        if before is not None and _process(before, runner) != _process(case, runner):
            runner.fresh()
        if before is not None and (before.target, before.length) != (case.target, case.length):
            print(_so_far(rows, cases, settings), file=out, flush=True)
        before = case
        rows[case] = measured(case, f"{i + 1}/{len(missing)}", missing[i:])
        folder.append(rows[case])
    again = forecast.to_repeat(cases, rows)
    if again:
        words = "do not go with the lengths beside them, as under another load: once more"
        print(f"\n{len(again)} cases {words}", file=out, flush=True)
    for i, case in enumerate(again):
        runner.fresh()
        rows[case] = faster(rows[case], measured(case, f"{i + 1}/{len(again)}", again[i:]))
        folder.append(rows[case])
    if missing or again:
        print(_so_far(rows, cases, settings), file=out, flush=True)


def _process(case: Case, runner: Runner) -> tuple[Any, ...]:
    """Cases in one process: a program compiled for a target leaves nothing behind.

    On a CPU a process's memory crumbles: one a length. An accelerator's peak never falls: there one
    for each mechanism at each length.
    """
    if case.target is not None:
        return (case.target,)
    on_host = runner.environment["platform"] == "cpu"
    return (case.length,) if on_host else (case.length, case.label)


def faster(first: Result, second: Result) -> Result:
    """Of two runs of a case the one that other work held up less; the row says that there were two.

    What did not run before and ran now is the second run alone.
    """
    if first.status != "ok":
        return second
    if second.status != "ok":
        return dataclasses.replace(first, other_seconds=first.median_seconds)
    low, high = sorted((first, second), key=lambda r: r.median_seconds or 0.0)
    return dataclasses.replace(low, other_seconds=high.median_seconds)


def _measured(
    case: Case,
    line: Sequence[Result],
    settings: Settings,
    runner: Runner,
    tell: Callable[[str], None],
) -> Result:
    """The case's row; only compiled where shorter lengths say that it is too slow or too large."""
    if case.target is not None:
        return runner.run(case, tell=tell)
    limit = settings.case_seconds
    expected = forecast.predicted(line, case.length)
    need = forecast.predicted(line, case.length, forecast.seen_bytes)
    allowed = settings.case_gib * 2**30
    free = memory.available_on_host() if need else None
    room, word = (allowed, "allowed") if free is None or allowed < free else (free, "free")
    stopped = [r for r in line if r.status == "too_slow" and r.case.length < case.length]
    fields: dict[str, Any] = {}
    if need > room:
        message = f"needs about {human(need)} of {human(room)} {word}"
        fields = {"status": "too_large", "refused_bytes": round(need / case.devices)}
    elif stopped:
        message = f"not run: n = {stopped[0].case.length} was already too slow"
    elif expected > limit:
        message = f"not run: about {expected:.0f} s a call, by shorter lengths (limit {limit:g} s)"
    else:
        return runner.run(case, tell=tell)
    result = runner.run(case, run=False, tell=tell)
    known = result.status == "too_slow" and result.message == "not run"
    return dataclasses.replace(result, message=message, **fields) if known else result


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
    text = report.duration(result.median_seconds)
    if len(result.seconds) > 1:
        low, high = min(result.seconds), max(result.seconds)
        text += f" ({report.duration(low)} to {report.duration(high)})"
    text += f", {human(result.memory_bytes)}"
    return text + (f"; {result.message}" if result.message else "")


def _tell(words: str, out: TextIO) -> None:
    print(words, end=" ", file=out, flush=True)


def _left(left: Sequence[Case], rows: dict[Case, Result], settings: Settings) -> str:
    limit = settings.case_seconds
    seconds = forecast.seconds_left(left, rows, repeats=settings.repeats, limit=limit)
    if seconds is None:
        return ""
    return (
        f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _deviceless(cases: Sequence[Case]) -> bool:
    return any(case.target is not None for case in cases)


def _where(runner: Runner) -> str:
    found = runner.environment
    free = found.get("available_bytes")
    return f"{found['devices']} × {found['device']}" + (f", {human(free)} free" if free else "")


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
