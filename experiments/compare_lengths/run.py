"""A run of `compare_lengths`: it measures every case of the settings and writes the report."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from attnlab.bench import memory, peers, topology, trends
from attnlab.bench.case import DERIVED, Case, Result
from attnlab.bench.roofline import Peak, Unit
from attnlab.mechanisms import own
from attnlab.mechanisms.attentions import KINDS, kind_of, split_way
from attnlab.runs import loop, provenance, remaining
from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags
from attnlab.runs.folder import Folder
from attnlab.runs.report import SoFar, group, so_far
from attnlab.runs.rows import Rows
from attnlab.runs.units import human
from experiments.compare_lengths import deviceless, panels, report
from experiments.compare_lengths.runner import Runner
from experiments.compare_lengths.settings import Settings

COMPILE_SECONDS = 900.0  # of a case with --target, where --case_seconds does not count
BUSY = 1.1  # load over cores: the measuring alone comes up to 1
Item = Case | Unit
Row = Result | Peak
LOST = ("failed", "killed")  # rows whose case a resumed run tries again


def compare(
    settings: Settings,
    folder: Folder,
    cases: Sequence[Case] | None = None,
    *,
    asked: Flags | None = None,
    markdown: Callable[[SoFar[Result]], str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Measures the cases that are missing; writes tables and figures even when interrupted.

    Args:
      settings: limits of a case, and how the report looks.
      folder: folder of the run.
      cases: cases to measure; None = those of the settings.
      asked: settings of a preset, whose command the report names.
      markdown: function of the rows that gives a preset's report.
      variables: environment variables of the workers.

    Raises:
      Invalid: the settings do not suit the machine, or the folder cannot be used.
    """
    rows: Rows[Item, Row] = Rows(folder, key_of, [Result, Peak], derived=DERIVED)
    with Runner(
        devices=max(settings.devices, default=None),
        input_path=settings.input,
        repeats=settings.repeats,
        case_seconds=COMPILE_SECONDS if settings.target else settings.case_seconds,
        case_bytes=math.inf if settings.target else settings.case_gib * 2**30,
        variables=topology.environment() if settings.target else variables,
    ) as runner:
        comparison = Comparison(settings, rows, runner, folder, cases, asked, markdown)
        where = "no device: compiled only" if settings.target else _where(runner.environment)
        return loop.run(comparison.job(), comparison.items, folder, rows, where=where)


def key_of(row: Row) -> Item:
    """What a row is of."""
    return row.unit if isinstance(row, Peak) else row.case


class Comparison:
    """The cases of a run, one after the other."""

    def __init__(
        self,
        settings: Settings,
        rows: Rows[Item, Row],
        runner: Runner,
        folder: Folder,
        cases: Sequence[Case] | None = None,
        asked: Flags | None = None,
        markdown: Callable[[SoFar[Result]], str] | None = None,
    ) -> None:
        """Plans the cases for the machine that the runner has; arguments as of `compare`.

        Raises:
          Invalid: a package that a case needs is not installed, or what is there is of another
            text than what is missing.
        """
        self.cases = list(cases or settings.cases(runner.environment["devices"]))
        self.units = [] if cases else settings.units(self.cases)
        self.unit = "cases and peaks" if self.units else "cases"
        self._settings, self._rows, self._runner = settings, rows, runner
        self._asked, self._markdown = asked or settings, markdown
        rows.environment = _of_cases(runner.environment, self.cases)
        if settings.target:
            rows.environment.pop("input", None)  # nothing is read where nothing runs
        rows.require_same_own(own.digests())
        there = [x.row for x in rows.of(self.cases) if isinstance(x.row, Result)]
        done = {row.case for row in there if row.status not in LOST}
        left = [case for case in self.cases if case not in done]
        if left and not settings.target:
            rows.require_same_input()
        kinds = {a.kind for case in left for a in case.model.attentions}
        peers.require_packages(kinds)
        torch = [name for name in kinds if kind_of(name).written_in == "torch"]
        if torch and runner.environment["platform"] != "cpu":
            raise Invalid(
                f"{', '.join(torch)}: here torch runs on the CPU; set JAX_PLATFORMS=cpu, so that "
                "all do"
            )
        self._folder = folder
        self._last: Case | None = None  # the case before
        self._said = ""

    @property
    def items(self) -> list[Item]:
        """The cases, then the peaks: a run that is cut short has compared what it has."""
        return [*self.cases, *self.units]

    def job(self) -> loop.Job[Item, Row]:
        """What `loop.run` does with each peak and each case."""
        return loop.Job(
            unit=self.unit,
            measure=self._measure,
            done=lambda row: row.rate > 0 if isinstance(row, Peak) else row.status not in LOST,
            line=lambda rows: report.line(rows[0]),
            report=self._report,
            before=self._before,
            again=self._again,
            seconds_left=self._seconds_left,
        )

    def _results(self) -> list[Result]:
        return [x.row for x in self._rows.of(self.cases) if isinstance(x.row, Result)]

    def _peaks(self) -> list[Peak]:
        return [x.row for x in self._rows.of(self.units) if isinstance(x.row, Peak)]

    def _before(self, case: Item) -> None:
        """Starts a fresh process where the case needs one; after each length reports."""
        if isinstance(case, Unit):
            return
        last, self._last = self._last, case
        if last is None:
            return
        if self._process(last) != self._process(case):
            self._runner.retire()
        other = (last.target, last.length) != (case.target, case.length)
        if other and case not in self._rows.kept:  # else it is measured once more
            made = self._report()
            loop.write(made, self._folder)
            say(f"\n{made.said}\n")
            self._said = made.said

    def _process(self, case: Case) -> tuple[Any, ...]:
        """A key that is the same for the cases that share a process.

        Compiling for a target leaves nothing behind: one process for each target. On a CPU memory
        becomes fragmented: one for each length. The memory peak of an accelerator never falls: one
        for each mechanism at each length. A case that is measured again has its own process.
        """
        if case.target is not None:
            return (case.target,)
        on_host = self._runner.environment["platform"] == "cpu"
        return (case.length, case.keep_memory) if on_host else (case.length, case.label)

    def _seconds_left(self, items: Sequence[Item]) -> float | None:
        """By cases of the same length; the peaks at the end take a second each."""
        cases = [case for case in items if isinstance(case, Case)]
        kept = self._rows.kept
        spent = remaining.spent({case: kept[case] for case in self.cases if case in kept})
        return remaining.of_items(cases, spent, lambda x: ((x.target, x.length), x.label))

    def _measure(self, case: Item) -> Iterator[Row]:
        own.require_unchanged()  # a worker that starts later would read another
        if isinstance(case, Unit):
            yield self._runner.peak(case)
            return
        known = [one for one in self._results() if one.case == case and one.status not in LOST]
        if known:  # it is measured once more
            self._runner.retire()
        load_before = os.getloadavg()[0]
        line = _line_of((one for one in self._results() if one.case != case), case)
        result = measure_case(case, line, self._settings, self._runner)
        load = max(load_before, os.getloadavg()[0])
        busy = case.target is None and load > BUSY * self._runner.environment["cpus"]
        result = dataclasses.replace(result, load=load, busy=busy)
        if result.status in LOST:  # else compilers wrote it, of no interest
            self._folder.note(self._runner.last_words())
        yield faster(known[0], result) if known else result

    def _again(self) -> list[Case]:
        """Cases whose times disagree with those of neighboring lengths."""
        again = to_repeat(self.cases, {one.case: one for one in self._results()})
        if again:
            words = "have times that disagree with neighboring lengths: they are measured once more"
            say(f"\n{len(again)} cases {words}")
        return again

    def _report(self) -> loop.Report:
        items = group(self.cases, str)
        done = cast(SoFar[Result], so_far(self._rows, items, self._asked))
        results = done.rows
        devices = " / ".join(sorted({provenance.name(where.environment) for where in done.wheres}))
        files = {"results.csv": report.csv_text(results)}
        quantities = ["memory"] if self._settings.target else ["time", "memory"]
        figures: dict[str, Any] = {}
        said = []
        if self._markdown is not None:
            text, quantities = self._markdown(done), []
        elif self._settings.target:
            text = deviceless.markdown(done)
        else:
            text = report.markdown(done, peaks=self._peaks())
        if not self._settings.target:
            figures["ratios"] = report.draw_ratios(results, devices)
        for quantity in quantities:
            figures[quantity] = panels.draw(results, quantity, devices)
        if quantities:
            first = quantities[0]
            said = [f"{first.capitalize()} so far:"]
            said += panels.tables(results, report.CELLS[first])
        counted = report.count_results(results, self._peaks(), len(self.items), self.unit)
        words = "\n\n".join([*said, counted])
        return loop.Report(text, figures, files, "" if words == self._said else words)


def faster(first: Result, second: Result) -> Result:
    """The faster of two runs of a case, with the time of the slower one in `other_seconds`.

    If the first run gave no time, the second one is the row.
    """
    if first.status != "ok":
        return second
    if second.status != "ok":
        why = f"once more: {report.line(second)}"
        return dataclasses.replace(first, other_seconds=first.median_seconds, message=why)
    low, high = sorted((first, second), key=lambda r: r.median_seconds or 0.0)
    return dataclasses.replace(low, other_seconds=high.median_seconds)


def measure_case(case: Case, line: Sequence[Result], settings: Settings, runner: Runner) -> Result:
    """The case's row; only compiled if, by shorter lengths, it would be too slow or too large."""
    if case.target is not None:
        return runner.run(case, tell=_tell)
    limit = settings.case_seconds
    expected = trends.predict(line, case.length)
    need = trends.predict(line, case.length, _seen_bytes)
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
    elif case.against is not None:
        return runner.run_against(case, base_of(case), _tell)
    else:
        return runner.run(case, tell=_tell)
    result = runner.run(case, run=False, tell=_tell)
    compiled = result.status == "too_slow" and result.message == "not run"
    return dataclasses.replace(result, message=message, **fields) if compiled else result


def base_of(case: Case) -> Case:
    """The case that one is timed against."""
    name, way = split_way(case.against or "")
    return dataclasses.replace(case, mechanism=name, implementation=way, against=None)


def _line_of(rows: Iterable[Result], case: Case) -> list[Result]:
    """The rows of the same mechanism, implementation, pass and target."""
    fields = (
        "label passes target num_heads head_dim dtype causal ops_only program keep_memory".split()
    )
    same = [getattr(case, name) for name in fields]
    return [r for r in rows if [getattr(r.case, name) for name in fields] == same]


def _seen_bytes(result: Result) -> float | None:
    """Memory that the process was seen to take for all its devices together, in bytes."""
    seen = result.resident_peak_bytes if result.status == "ok" else None
    return seen and seen * result.case.devices


def to_repeat(cases: Sequence[Case], rows: Mapping[Case, Result]) -> list[Case]:
    """Cases whose times disagree with those of neighboring lengths.

    Cases that were not run because of such a time are among them. A case that was measured twice
    already is not.

    Returns:
      The cases, short lengths first.
    """
    again = set()
    for case in cases:
        line = {r.case.length: r for r in _line_of(rows.values(), case)}
        times = {n: s for n, r in line.items() if (s := trends.seconds(r))}
        odd = [n for n in trends.disagreeing(times) if line[n].other_seconds is None]
        again |= {line[n].case for n in odd}
        again |= {r.case for n, r in line.items() if odd and n > odd[0] and r.status == "too_slow"}
    return sorted(again & set(cases), key=lambda case: (case.length, cases.index(case)))


def _tell(words: str) -> None:
    say(words, end=" ")


def _of_cases(environment: Mapping[str, Any], cases: Sequence[Case]) -> dict[str, Any]:
    """The environment without the packages of mechanisms that no case has."""
    used = {kind_of(a.kind).package for case in cases for a in case.model.attentions}
    unused = {kind.package for kind in KINDS.values()} - used - {*provenance.PACKAGES}
    versions = {k: v for k, v in environment["versions"].items() if k not in unused}
    untested = environment["untested"] and [*filter(versions.get, environment["untested"])]
    return {**environment, "versions": versions, "untested": untested}


def _where(environment: dict[str, Any]) -> str:
    free = environment.get("available_bytes")
    there = f"{environment['devices']} × {environment['device']}"
    there += f", {human(free)} free" if free else ""
    load = os.getloadavg()[0]
    if load > BUSY * environment["cpus"]:
        there += f": a busy machine (load {load:.1f}), whose times say little"
    return there
