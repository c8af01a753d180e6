"""Tables of a run, as Markdown and CSV: pure functions of its rows."""

import csv
import functools
import io
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from attnlab.attentions import kind_of
from attnlab.bench import trends
from attnlab.bench.case import (
    ACCURACY,
    AXES,
    PASS_TITLES,
    PASSES,
    SHORT,
    Result,
    axis_of,
    passes_of,
)
from attnlab.bench.roofline import PRODUCTS, Peak, Rates
from attnlab.bench.tables import over_axis
from attnlab.runs.intervals import half_width
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document
from attnlab.runs.units import duration, human

COLUMNS = (
    "mechanism implementation length passes status median_seconds min_seconds max_seconds repeats "
    "memory_bytes memory_source analysis_bytes resident_peak_bytes device_peak_bytes "
    "available_bytes sent_bytes compile_seconds load busy other_seconds batch num_heads head_dim "
    "dtype causal ops_only parallel devices target shard program num_layers vocab_size against "
    "error message"
).split()


def csv_text(results: Iterable[Result]) -> str:
    """One line for each case, without the single repetitions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        spread = dict(
            min_seconds=min(result.seconds, default=None),
            max_seconds=max(result.seconds, default=None),
            repeats=len(result.seconds),
        )
        writer.writerow([_field(result, name, spread) for name in COLUMNS])
    return out.getvalue()


def _field(result: Result, name: str, extra: dict[str, float | int | None]) -> object:
    if name in extra:
        return extra[name]
    return getattr(result, name) if hasattr(result, name) else getattr(result.case, name)


def markdown(told: SoFar[Result], *, peaks: Sequence[Peak] = ()) -> str:
    """The whole report of a run as far as it is done, and of the peaks that it measured."""
    done = told.rows
    shown = [passes for passes in passes_of(done) if passes != ACCURACY]
    parts = ["# Attention over sequence length"]
    parts += [summary(told), *against(done)]
    for quantity in ("time", "memory"):
        parts.append(f"## {quantity.capitalize()}")
        parts.append(f"![{quantity} over length]({quantity}.svg)")
        for passes in shown:
            parts += [
                f"### {PASS_TITLES[passes].capitalize()}",
                over_axis(done, passes, quantity),
            ]
    parts += ["## Growth", _GROWTH_NOTE, _growth(done, shown)]
    parts += ["## Crossovers", *_crossovers(done, shown)]
    parts += ["## Largest length that fits", _FITS_NOTE, _fits(done, shown)]
    parts += [*accuracy(done), *shares(done, peaks)]
    parts += ["## Cases without a result", missing(done)]
    parts += ["## How it was measured", method(done), _conditions(done)]
    return document(*parts, told.missing, told.origin)


def answer(
    results: Sequence[Result],
    value: Callable[[Result], float | None],
    form: Callable[[float], str],
    named: int = 3,
) -> str:
    """The least values of the last pass at the largest size that two mechanisms have, if any."""
    valued = [result for result in results if value(result)]
    if not valued:
        return ""
    passes = passes_of(valued)[-1]
    lines = trends.lines(valued, passes, value)
    sizes = [size for line in lines.values() for size in line]
    largest = max(sizes, key=lambda size: (min(sizes.count(size), 2), size))
    values = {label: line[largest] for label, line in lines.items() if largest in line}
    least = sorted(values, key=values.__getitem__)[:named]
    said = ", ".join(f"{form(values[label])} ({label})" for label in least)
    return f"{PASS_TITLES[passes]}, {AXES[axis_of(results)].column} = {largest}: {said}"


def summary(told: SoFar[Result]) -> str:
    """What was measured, in words."""
    results, state = told.rows, told.how_much("cases")
    case = results[0].case
    devices = sorted({r.case.devices for r in results})
    split = f", {case.shard} divided" if case.shard else ""
    what = "Bare functions" if case.ops_only else "Jitted Flax modules with their projections"
    first = trends.disturbed(results)
    said = answer(results, trends.undisturbed, duration)
    notes = [
        f"**{first}; they count in no crossover and no growth.**" * bool(first),
        f"**{said}**" * bool(said),
        f"{state} {what}, batch {case.batch}, {case.num_heads} heads of width "
        f"{case.head_dim} (model width {case.width}), {case.dtype}, "
        f"{'causal' if case.causal else 'not causal'}, {case.parallel} on "
        f"{', '.join(map(str, devices))} device{'s' * (devices != [1])}{split}.",
        legend(results),
    ]
    if not case.ops_only:
        kinds = dict.fromkeys(r.case.attention.kind for r in results)
        notes += [kind_of(kind).note for kind in kinds]
    cycled = sorted({r.case.length for r in results if r.input_cycled})
    if cycled:
        notes.append(
            f"The text is shorter than batch × length for n = {', '.join(map(str, cycled))}: there "
            "it begins again at its end, which hashing can notice."
        )
    return "\n\n".join(filter(None, notes))


def legend(results: Sequence[Result]) -> str:
    """What the names of the mechanisms mean."""
    words = [
        f"`{name}`: {'; '.join(dict.fromkeys(x.title for x in r.case.model.attentions))}"
        for name, r in {r.case.mechanism: r for r in results}.items()
    ]
    if any(r.case.hashes for r in results):
        words.append(f"chunks of LSH have {results[0].case.chunk_size} slots")
    return "; ".join(words) + "."


def against(results: Sequence[Result]) -> list[str]:
    """The time and memory of each mechanism over those of the one it was timed against."""
    bases = dict.fromkeys(r.case.against for r in results if r.case.against)
    parts = []
    for base in bases:
        rows = [r for r in results if r.case.against == base]
        for passes in passes_of(rows):
            title = PASS_TITLES[passes].capitalize()
            parts += [f"### {title}, time over that of {base}", over_axis(rows, passes, ratio)]
            cell = functools.partial(_memory_ratio, results, base)
            if any(cell(r) for r in rows):
                parts += [f"### {title}, memory over that of {base}"]
                parts += [over_axis(rows, passes, cell)]
    return parts


def ratio(result: Result | None) -> str:
    """The mean of the turns' ratios, its 95 % interval and the number of turns.

    Of the logarithms, as a time twice as long is as far from equal as one half as long.
    """
    if result is None or not result.ratios:
        return ""
    logs = [math.log(x) for x in result.ratios]
    mean, half = statistics.fmean(logs), half_width(logs)
    if not math.isfinite(half):
        return f"{math.exp(mean):.3g} (n = {len(logs)})"
    low, high = math.exp(mean - half), math.exp(mean + half)
    return f"{math.exp(mean):.3g} ({low:.3g} to {high:.3g}; n = {len(logs)})"


def _memory_ratio(results: Sequence[Result], base: str, result: Result | None) -> str:
    if result is None or not result.memory_bytes:
        return ""
    place = result.case.length, result.case.passes
    theirs = [
        r.memory_bytes
        for r in results
        if r.case.label == base and (r.case.length, r.case.passes) == place
    ]
    return f"{result.memory_bytes / theirs[0]:.3g}" if theirs and theirs[0] else ""


def accuracy(results: Sequence[Result]) -> list[str]:
    """How far each mechanism is from exact attention in float64."""
    if not any(r.error is not None for r in results):
        return []

    def cell(result: Result | None) -> str:
        return "" if result is None or result.error is None else f"{result.error:.3g}"

    return ["## Accuracy", _ACCURACY_NOTE, over_axis(results, ACCURACY, cell)]


def shares(results: Sequence[Result], peaks: Sequence[Peak]) -> list[str]:
    """The peaks that were measured, and the share of them that each case reaches.

    Nothing where a peak is missing or nothing was counted.
    """
    rates = Rates.of_peaks(peaks)
    counted = [r for r in results if r.operations is not None and r.seconds]
    if rates is None or not counted:
        return []
    rows = [[_UNITS.get(x.unit.name, x.unit.name), x.unit.dtype, rate(x)] for x in peaks]
    parts = [
        "## Share of the machine's peak",
        _SHARES_NOTE,
        markdown_table(["peak, measured after the cases", "dtype", "rate"], rows),
    ]

    def cell(result: Result | None) -> str:
        if result is None or result.operations is None or not result.median_seconds:
            return ""
        least = rates.bound(result.operations)
        return f"{least.seconds / result.median_seconds:.0%} {least.by}"

    for passes in PASSES:
        if any(r.case.passes == passes for r in counted):
            title = f"### {PASS_TITLES[passes].capitalize()}, share"
            parts += [title, over_axis(counted, passes, cell)]
    notes = dict.fromkeys(r.operations_of for r in counted if r.operations_of)
    for note in notes:
        labels = dict.fromkeys(r.case.label for r in counted if r.operations_of == note)
        parts.append(f"Counted is {note}: {', '.join(labels)}.")
    return parts


def _growth(results: Sequence[Result], shown: Sequence[str]) -> str:
    header = ["mechanism"]
    columns: list[dict[str, trends.Growth | None]] = []
    for name, value in (("time", trends.undisturbed), ("memory", trends.needs)):
        for passes in shown:
            header.append(f"{name}, {PASS_TITLES[passes]}")
            spreads = trends.spreads(results, passes) if name == "time" else {}
            lines = trends.lines(results, passes, value)
            columns.append({k: trends.growth(x, spreads.get(k)) for k, x in lines.items()})
    rows = []
    for label in dict.fromkeys(r.case.label for r in results):
        found = [column.get(label) for column in columns]
        rows.append([label, *("" if p is None else f"n^({p})" for p in found)])
    return markdown_table(header, rows)


def _crossovers(results: Sequence[Result], shown: Sequence[str]) -> list[str]:
    rows = []
    values: tuple[tuple[str, Callable[[Result], float | None], float], ...] = (
        ("is faster than", trends.undisturbed, 1.1),
        ("takes less memory than", trends.memory, 1.25),
    )
    for verb, value, margin in values:
        for passes in shown:
            for x in trends.crossovers(trends.lines(results, passes, value), margin=margin):
                claim = f"**{x.winner}** {verb} **{x.loser}** from n = {x.length}"
                rows.append(
                    [claim, PASS_TITLES[passes], f"{x.before} to {x.length}, near {x.crossing:.0f}"]
                )
    if not rows:
        return ["None: at every length that ran, the order is the same."]
    return [_CROSSOVER_NOTE, markdown_table(["", "pass", "the lines meet at n ="], rows)]


def _fits(results: Sequence[Result], shown: Sequence[str]) -> str:
    rows = []
    for passes in shown:
        for label, fit in trends.fits(results, passes).items():
            estimate = "" if fit.estimate is None else f"≈ {two_digits(fit.estimate)}"
            cells = (fit.largest or "none", fit.too_large or "", estimate)
            rows.append([label, PASS_TITLES[passes], *map(str, cells)])
    return markdown_table(["mechanism", "pass", "ran", "did not fit", "extrapolated"], rows)


def _conditions(results: Sequence[Result]) -> str:
    """What may have disturbed the times: other work on the machine, and cases that ran twice."""
    parts = []
    loads = [r.load for r in results if r.load is not None]
    if loads:
        busy = [f"{r.case} ({r.load:.1f})" for r in results if r.busy]
        some = "; ".join(busy) if len(busy) < len(loads) else "all of them"
        parts.append(
            f"Load average before or after a case: {min(loads):.1f} to {max(loads):.1f}. Cases "
            f"beside other work, where it was a tenth above the number of cores: {some or 'none'}."
        )
    again = [
        f"{r.case}: {duration(r.median_seconds)}, the other time {duration(r.other_seconds)}"
        for r in results
        if r.other_seconds is not None
    ]
    if again:
        parts.append(
            "Measured twice, because the time disagreed with those of neighboring lengths; the "
            f"faster one was kept: {'; '.join(again)}."
        )
    return "\n\n".join(parts)


def missing(results: Sequence[Result]) -> str:
    """A table of the cases that have no result, and why."""
    rows = [
        [r.case.label, str(r.case.length), PASS_TITLES[r.case.passes], SHORT[r.status], r.message]
        for r in results
        if r.status != "ok"
    ]
    if not rows:
        return "None."
    return markdown_table(["mechanism", "n", "pass", "what happened", "why"], rows)


def method(results: Sequence[Result]) -> str:
    """How time and memory were measured, with the numbers of this run."""
    repeats = [len(r.seconds) for r in results if r.status == "ok"] or [0]
    compiled = [r.compile_seconds for r in results if r.compile_seconds is not None] or [0.0]
    seen = [
        r.resident_peak_bytes / r.analysis_bytes
        for r in results
        if r.resident_peak_bytes and r.analysis_bytes and r.analysis_bytes >= 16 * 2**20
    ]
    lines = [
        f"Time: the median of {min(repeats)} to {max(repeats)} samples after a warm-up, each "
        "at least 5 ms long and blocked on; ± is half the range, where there are several. A first "
        "call longer than a third of the time limit is a sample itself. Compiling is apart: "
        f"{sum(compiled):.0f} s in all, {max(compiled):.1f} s at most.",
        "Memory: arguments + outputs + temporaries of the compiled program, or the process's own "
        "high-water mark where that is more (marked *). Both are in `results.jsonl`.",
    ]
    peaks = [
        r.device_peak_bytes / r.analysis_bytes
        for r in results
        if r.device_peak_bytes and r.analysis_bytes and r.analysis_bytes >= 16 * 2**20
    ]
    if peaks:
        lines.append(
            f"The device allocator's peak was {min(peaks):.2f} to {max(peaks):.2f} times the "
            f"compiler's number over the {len(peaks)} cases of at least 16 MiB that raised it."
        )
    if seen:
        lines.append(
            f"The high-water mark was {min(seen):.2f} to {max(seen):.2f} times the compiler's "
            f"number over the {len(seen)} cases of at least 16 MiB."
        )
    return "\n\n".join(lines)


def line(result: Result | Peak) -> str:
    """One row as a line for the terminal."""
    if isinstance(result, Peak):
        return result.message or rate(result)
    message = f"; {result.message}" if result.message else ""
    if result.status != "ok":
        return SHORT[result.status] + message.replace("; ", ": ", 1)
    if result.error is not None:
        return f"{result.error:.3g} from float64"
    if not result.seconds:
        compiled = f"compiled in {duration(result.compile_seconds)}"
        return f"{human(result.memory_bytes)}, {compiled}{message}"
    text = duration(result.median_seconds)
    if len(result.seconds) > 1:
        text += f" ({duration(min(result.seconds))} to {duration(max(result.seconds))})"
    if result.ratios:
        text += f", {ratio(result)} × {result.case.against}"
    return f"{text}, {human(result.memory_bytes)}{message}"


def times(results: Sequence[Result]) -> str:
    """The tables of time alone, for the terminal."""
    parts = []
    for passes in passes_of(results):
        if any(r.seconds for r in results if r.case.passes == passes):
            parts += [f"{PASS_TITLES[passes]}, time so far:", over_axis(results, passes, "time")]
    return "\n".join(parts)


def counted(results: Sequence[Result], planned: int) -> str:
    """How many cases have a result, and what became of the others."""
    counts = {status: sum(r.status == status for r in results) for status in SHORT}
    bad = ", ".join(f"{n} × {SHORT[status]}" for status, n in counts.items() if n)
    ok = sum(r.status == "ok" for r in results)
    done = "compiled" if results[0].case.target else "measured"
    return f"{ok} of {planned} cases {done}" + (f"; {bad}" if bad else "")


def rate(peak: Peak) -> str:
    """A peak for a reader: "85.4 GFLOP/s", or "1.31 G/s" of a function."""
    unit = "FLOP/s" if peak.unit.name == PRODUCTS else "/s"
    size, letter = next((x for x in ((1e12, "T"), (1e9, "G")) if peak.rate >= x[0]), (1e6, "M"))
    return f"{peak.rate / size:.3g} {letter}{unit}"


def two_digits(number: float) -> str:
    """A number rounded to two digits, such as 17,000."""
    return f"{float(f'{number:.2g}'):,.0f}"


_AGAINST_NOTE = (
    "Times over those of `{base}`, each called in turns with it, in processes of their own, the "
    "order changing from turn to turn: the geometric mean over n turns with its 95 % interval "
    "(Student). Where both compute the same function their outputs, and the gradients of their "
    "inputs, were compared first. Below 1 is faster, and less memory."
)
_ACCURACY_NOTE = (
    "The RMS distance of the context from exact attention by NumPy in float64, of the inputs as "
    "each mechanism gets them."
)
_UNITS = {"products": "matrix products", "div": "division"}
_SHARES_NOTE = (
    "The share is the least time over the median time; the least time is that of the unit that has "
    "most to do at its peak, as both may work at once (the roofline of Williams et al. 2009). The "
    "units: *products* of matrices, and *functions*, which are exponentials, tanh, divisions and "
    "the like. Counted is what the traced program does, also what the mask hides; additions, "
    "sorting and moving numbers count as nothing, so that a share is rather too small. One above "
    "100% means that a peak was measured beside other work."
)
_GROWTH_NOTE = (
    "The fitted p ± its standard error in value ∝ n^p, over the longer half of the lengths, at "
    "least four; the error is that of the fit or of the repeats, the larger. Nothing where there "
    "are fewer lengths or the error is above ½. Memory also counts what was only compiled."
)
_CROSSOVER_NOTE = (
    "From n on, and at every longer length that both ran; the first column names measured lengths. "
    "Where the longest common length differs by less than 10% (memory: 25%) it is a tie."
)
_FITS_NOTE = (
    "*ran* and *did not fit* are lengths of this run; *extrapolated* is where b·n + c·n² through "
    "the two longest would reach the memory that was free and allowed, and was not measured."
)
