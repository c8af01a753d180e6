"""Tables of a run, as Markdown and CSV, and its figures: pure functions of its rows."""

import csv
import functools
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from attnlab.bench import tables, trends
from attnlab.bench.case import (
    ACCURACY,
    ATTENTION,
    AXES,
    PASS_TITLES,
    SHORT,
    Case,
    Result,
    axis_of,
    passes_of,
)
from attnlab.bench.panels import round_steps
from attnlab.bench.roofline import PRODUCTS, Peak, Rates
from attnlab.bench.tables import over_axis
from attnlab.mechanisms.attentions import kind_of
from attnlab.runs import figure_files
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import INK, MUTED, of_attention
from attnlab.runs.report import SoFar, document, group
from attnlab.runs.units import duration, human
from experiments.compare_lengths import panels

COLUMNS = (
    "mechanism implementation length passes status median_seconds min_seconds max_seconds repeats "
    "memory_bytes memory_source analysis_bytes resident_peak_bytes device_peak_bytes "
    "available_bytes sent_bytes compile_seconds load busy other_seconds batch num_heads head_dim "
    "dtype causal ops_only parallel devices target shard program num_layers vocab_size against "
    "chunk_size beam_size keep_memory error message"
).split()

CELLS = {"time": tables.time, "memory": tables.memory}


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


def markdown(done: SoFar[Result], *, peaks: Sequence[Peak] = ()) -> str:
    """The whole report of a run as far as it is done, and of the peaks that it measured."""
    results = done.rows
    axis = axis_of(results)
    over = "sequence length" if axis == "length" else axis
    parts = [f"# Attention over {over}", summary(done)]
    if figure := ratios(results):
        parts += [*figure, *by_row(results)]
    shown = _timed_passes(results)
    for quantity in ("time", "memory") if shown else ():
        parts.append(f"## {quantity.capitalize()}")
        if any(r.status == "ok" and r.case.passes != ACCURACY for r in results):  # to be drawn
            parts.append(f"![{quantity} over {axis}]({quantity}.svg)")
        parts += panels.tables(results, CELLS[quantity])
    if shown and axis == "devices":
        counted = _efficiency(results) or ["None: no times count."]
        parts += ["## Efficiency", _EFFICIENCY_NOTE, *counted]
    elif shown:
        growth = _growth(results, shown)
        parts += ["## Growth", _GROWTH_NOTE, growth] if growth else []
        parts += ["## Crossovers", *_crossovers(results, shown)]
        parts += ["## Largest length that fits", _FITS_NOTE, _fits(results, shown)]
    parts += [*accuracy(results), *shares(results, peaks)]
    parts += ["## Cases without a result", missing(results)]
    parts += ["## How it was measured", method(results), _conditions(results)]
    return document(*parts, done.missing, done.origin)


def _timed_passes(results: Sequence[Result]) -> list[str]:
    return [passes for passes in passes_of(results) if passes != ACCURACY]


def _efficiency(results: Sequence[Result]) -> list[str]:
    """Tables of the share of the devices' work that counts."""
    parts = []
    for panel in (panel for row in panels.grid_of(results) for panel in row):
        measured = [result for result in panel.results if trends.quiet_seconds(result)]
        by_devices = sorted(measured, key=lambda result: -result.case.devices)
        fewest = {result.case.label: result for result in by_devices}
        cell = functools.partial(_share_that_counts, fewest)
        if any(map(cell, panel.results)):
            parts += [panels.heading_of(panel), over_axis(panel.results, cell)]
    return parts


def _share_that_counts(fewest: Mapping[str, Result], result: Result | None) -> str:
    """t₁·w / (t_d·d), w the work over that of t₁, the time with the fewest devices."""
    if result is None or not result.median_seconds or result.busy:
        return ""
    base = fewest[result.case.label]
    work = result.case.batch / base.case.batch
    devices = result.case.devices / base.case.devices
    return f"{(base.median_seconds or 0) * work / (result.median_seconds * devices):.0%}"


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


def summary(done: SoFar[Result]) -> str:
    """What was measured, in words."""
    results, state = done.rows, done.how_much("cases")
    case = results[0].case
    devices = sorted({r.case.devices for r in results})
    split = f", {case.shard} divided" if case.shard else ""
    kept = "; freed memory is kept" if case.keep_memory else ""
    what = "Bare functions" if case.ops_only else "Jitted Flax modules with their projections"
    causal = "causal" if case.causal else "not causal"
    if case.program != ATTENTION:
        what = f"Models, `--program={case.program}`, {case.num_layers} layers in each stack"
        causal = f"{case.vocab_size} ids"
    first = trends.describe_busy(results)
    of_one_batch = [r for r in results if r.case.batch == case.batch]  # strong scaling
    said = answer(of_one_batch, trends.quiet_seconds, duration)
    word = "device" if devices == [1] else "devices"
    notes = [
        f"**{first}; their times count in no crossover and no growth.**" if first else "",
        f"**{said}**" if said else "",
        f"{state} {what}, batch {case.batch}, {case.num_heads} heads of width "
        f"{case.head_dim} (model width {case.width}), {case.dtype}, {causal}, {case.parallel} on "
        f"{', '.join(map(str, devices))} {word}{split}{kept}.",
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


def ratios(results: Sequence[Result]) -> list[str]:
    """The figure of times over those of others, where there are any."""
    timed = [r for r in results if r.ratios]
    figure = ["## Ratios", "![time over that of another](ratios.svg)", _RATIOS_NOTE]
    figure += [_SAME_VALUES_NOTE] * any(r.case.has_values for r in timed)
    return figure * bool(timed)


def by_row(results: Sequence[Result]) -> list[str]:
    """A table for each pass: time and memory, and both over those of what was timed against."""
    parts = []
    for passes in passes_of(r for r in results if r.case.passes != ACCURACY):
        rows = [r for r in results if r.case.passes == passes]
        columns: dict[str, Callable[[Result], str]] = {
            "mechanism": lambda r: r.case.label, "n": lambda r: str(r.case.length),
            "time": tables.time, "memory": tables.memory,
        }  # fmt: skip
        if base := next((r.case.against for r in rows if r.case.against), None):
            columns[f"time / {base}"] = lambda r: str(trends.ratio(r) or "")
            columns[f"memory / {base}"] = functools.partial(_memory_ratio, rows)
        columns = {name: cell for name, cell in columns.items() if any(map(cell, rows))}
        cells = [[cell(r) for cell in columns.values()] for r in rows]
        parts += [f"### {PASS_TITLES[passes].capitalize()}", markdown_table([*columns], cells)]
    return parts


def _memory_ratio(rows: Sequence[Result], result: Result) -> str:
    base, ours = (result.case.against, result.case.length), result.memory_bytes
    theirs = next((r.memory_bytes for r in rows if (r.case.label, r.case.length) == base), None)
    return f"{ours / theirs:.3g}" if ours and theirs else ""


def accuracy(results: Sequence[Result]) -> list[str]:
    """How far each mechanism is from exact attention in float64."""
    if not any(r.error is not None for r in results):
        return []

    def cell(result: Result | None) -> str:
        return "" if result is None or result.error is None else f"{result.error:.3g}"

    of_accuracy = [result for result in results if result.case.passes == ACCURACY]
    return ["## Accuracy", _ACCURACY_NOTE, over_axis(of_accuracy, cell)]


def shares(results: Sequence[Result], peaks: Sequence[Peak]) -> list[str]:
    """The peaks that were measured, and the share of them that each case reaches.

    Nothing where a peak is missing or nothing was counted. A case that is faster than a peak, which
    was measured beside other work, is the peak itself.
    """
    rates = Rates.of_peaks(peaks)
    counted = [r for r in results if r.operations is not None and r.seconds]
    if rates is None or not counted:
        return []
    bounds = {r.case: rates.bound(r.operations) for r in counted if r.operations is not None}
    over = dict.fromkeys((bound.by for bound in bounds.values()), 1.0)
    for r in counted:
        by = bounds[r.case].by
        over[by] = max(over[by], bounds[r.case].seconds / (r.median_seconds or math.inf))
    rows = [[_UNITS.get(x.unit.name, x.unit.name), x.unit.dtype, rate(x)] for x in peaks]
    parts = [
        "## Share of the machine's peak",
        _SHARES_NOTE,
        markdown_table(["peak, measured after the cases", "dtype", "rate"], rows),
    ]

    def cell(result: Result | None) -> str:
        if result is None or result.case not in bounds or not result.median_seconds:
            return ""
        least = bounds[result.case]
        return f"{least.seconds / result.median_seconds / over[least.by]:.0%} {least.by}"

    parts += panels.tables(counted, cell, ", share")
    notes = dict.fromkeys(r.operations_of for r in counted if r.operations_of)
    for note in notes:
        labels = dict.fromkeys(r.case.label for r in counted if r.operations_of == note)
        parts.append(f"Counted is {note}: {', '.join(labels)}.")
    return parts


def _growth(results: Sequence[Result], shown: Sequence[str]) -> str:
    """The table of powers, or "" where none is known."""
    header = ["mechanism"]
    columns: list[dict[str, trends.Growth | None]] = []
    for passes in shown:
        header.append(f"time, {PASS_TITLES[passes]}")
        spreads = trends.spreads(results, passes)
        times = trends.lines(results, passes, trends.quiet_seconds)
        columns.append({k: trends.growth(x, spreads.get(k)) for k, x in times.items()})
    for passes in shown:
        header.append(f"memory, {PASS_TITLES[passes]}")
        sizes = trends.lines_of_memory(results, passes)
        columns.append({k: trends.growth(x) for k, x in sizes.items()})
    if not any(growth for column in columns for growth in column.values()):
        return ""
    rows = []
    for label in dict.fromkeys(r.case.label for r in results):
        growths = [column.get(label) for column in columns]
        rows.append([label, *("" if p is None else f"n^({p})" for p in growths)])
    return markdown_table(header, rows)


def _crossovers(results: Sequence[Result], shown: Sequence[str]) -> list[str]:
    rows = []
    values: tuple[tuple[str, Callable[[Result], float | None], float], ...] = (
        ("is faster than", trends.quiet_seconds, 1.1),
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
        return ["None: of what counts, no mechanism overtakes another by more than a tie."]
    return [_CROSSOVER_NOTE, markdown_table(["", "pass", "the lines meet at n ="], rows)]


def _fits(results: Sequence[Result], shown: Sequence[str]) -> str:
    rows = []
    for passes in shown:
        for label, fit in trends.fits(results, passes).items():
            cells = (fit.largest or "none", fit.too_large or "", fit.extrapolated)
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

    def other(r: Result) -> str:
        lost = r.message.startswith("once more")
        return r.message if lost else f"the other time {duration(r.other_seconds)}"

    again = [
        f"{r.case}: {duration(r.median_seconds)}, {other(r)}"
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
    lost = [r for r in results if r.status != "ok"]
    if not lost:
        return "None."
    header = ["target", "mechanism", "n", "pass", "what happened", "why"]
    rows = [
        [
            str(r.case.target), r.case.label, str(r.case.length), panels.pass_title(r.case),
            SHORT[r.status], r.message,
        ]
        for r in lost
    ]  # fmt: skip
    if lost[0].case.target is None:
        header, rows = header[1:], [row[1:] for row in rows]
    return markdown_table(header, rows)


def method(results: Sequence[Result]) -> str:
    """How time and memory were measured, with the numbers of this run."""
    repeats = [len(r.seconds) for r in results if r.seconds]
    compiled = [r.compile_seconds for r in results if r.compile_seconds is not None] or [0.0]
    of_one = ""
    if any(r.case.devices > 1 for r in results):
        of_one = " Of several devices it is that of one, the process's divided by their number."
    lines = [
        (
            f"Time: the median of {min(repeats)} to {max(repeats)} samples after a warm-up, each "
            "at least 5 ms long and blocked on; ± is half the range, where there are several. A "
            "first call longer than a third of the time limit is a sample itself. "
            if repeats
            else ""
        )
        + f"Compiling is apart: {sum(compiled):.0f} s in all, {max(compiled):.1f} s at most.",
        "Memory: arguments + outputs + temporaries of the compiled program, or the process's own "
        f"high-water mark where that is more (marked *). Both are in `results.jsonl`.{of_one}",
    ]
    compiled_sizes = [(r, r.analysis_bytes or 0) for r in results]
    large = [(r, size) for r, size in compiled_sizes if size >= 16 * 2**20]
    watched = {
        "device allocator's peak": [(r.device_peak_bytes, size) for r, size in large],
        "high-water mark": [(r.resident_peak_bytes, size) for r, size in large],
    }
    for name, pairs in watched.items():
        times = [seen / size for seen, size in pairs if seen]
        if times:
            lines.append(
                f"The {name} was {min(times):.2f} to {max(times):.2f} times the compiler's number "
                f"over the {len(times)} cases of at least 16 MiB."
            )
    return "\n\n".join(lines)


def draw_ratios(results: Sequence[Result], device: str) -> Figure | None:
    """Times over those of another mechanism: a row of panels for each such base, or None."""
    ratios = {r.case: ratio for r in results if (ratio := trends.ratio(r))}
    if not ratios:
        return None
    order, labels = list(PASS_TITLES), [case.label for case in ratios]
    cases = sorted(ratios, key=lambda x: (order.index(x.passes), labels.index(x.label), x.length))
    bases = group(cases, lambda case: case.against).values()
    subplots_of = [list(group(some, lambda case: case.passes).values()) for some in bases]
    grid = [panels[i : i + 2] for panels in subplots_of for i in range(0, len(panels), 2)]
    rows = [list(dict.fromkeys(_name_row(x) for some in row for x in some)) for row in grid]
    ends = [x for r in ratios.values() for x in ((r.low, r.high) if r.turns > 1 else (r.mean,))]
    ticks = round_steps(min(1.0, *ends), max(1.0, *ends), "time")
    with figure_files.style():
        tall = 0.4 + 0.2 * sum(map(len, rows)) + 0.75 * len(grid)
        figure = Figure(figsize=(7.0, tall), layout="constrained")
        subplots = figure.subplots(
            len(grid), max(map(len, grid)), sharey="row", squeeze=False,
            height_ratios=[len(names) for names in rows],
        )  # fmt: skip
        for every, panels, names in zip(subplots, grid, rows, strict=True):
            for axes, panel in zip(every, panels, strict=False):
                _ratios(axes, {case: ratios[case] for case in panel}, names)
                axes.set(xscale="log", xlim=(ticks[0], ticks[-1]))
                axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
                axes.minorticks_off()
            for axes in every[len(panels) :]:
                axes.remove()
        title = f"Time over that of another mechanism{f' — {device}' if device else ''}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, color=INK)
        foot = "Marks: geometric means over the turns (open: of one); lines: their 95 % intervals."
        figure.supxlabel(foot, x=0.01, ha="left", fontsize=7.5, color=MUTED)
    return figure


def _name_row(case: Case) -> str:
    kept = ", memory kept" if case.keep_memory else ""
    return f"{case.label.split('/')[-1]}, n = {case.length}{kept}"


def _ratios(axes: Any, ratios: dict[Case, trends.Ratio], names: list[str]) -> None:
    axes.axvline(1, color=INK, linewidth=0.9)
    for case, ratio in ratios.items():
        color, marker = of_attention(case.mechanism, [x.mechanism for x in ratios])
        at, several = names.index(_name_row(case)), ratio.turns > 1
        style = {"color": color, "markerfacecolor": color if several else "white"}
        axes.plot([ratio.low, ratio.high] * several, [at, at] * several, color=color)
        axes.plot(ratio.mean, at, marker, markersize=7 if marker == "*" else 4.5, **style)
    axes.set(title=PASS_TITLES[case.passes], ylim=(len(names) - 0.4, -0.6))
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(labelsize=8)
    axes.grid()
    base = (case.against or "").split("/")[-1]  # of a user's own file
    said = textwrap.fill(f"slower than {base} →", 34, break_on_hyphens=False)
    axes.set_xlabel(said, loc="right", color=MUTED, fontsize=8)


def line(result: Result | Peak) -> str:
    """One row as a line for the terminal."""
    if isinstance(result, Peak):
        return result.message or rate(result)
    if result.status != "ok":
        return ": ".join(filter(None, [SHORT[result.status], result.message]))
    message = f"; {result.message}" if result.message else ""
    if result.error is not None:
        return f"{result.error:.3g} from float64"
    if not result.seconds:
        compiled = f"compiled in {duration(result.compile_seconds)}"
        return f"{human(result.memory_bytes)}, {compiled}{message}"
    text = duration(result.median_seconds)
    if len(result.seconds) > 1:
        text += f" ({duration(min(result.seconds))} to {duration(max(result.seconds))})"
    if result.ratios:
        text += f", {trends.ratio(result)} × {result.case.against}"
    return f"{text}, {human(result.memory_bytes)}{message}"


def count_results(results: Sequence[Result], peaks: Sequence[Peak], planned: int, unit: str) -> str:
    """How many cases and peaks have a result, and what became of the other cases."""
    counts = {status: sum(r.status == status for r in results) for status in SHORT}
    bad = ", ".join(f"{n} × {SHORT[status]}" for status, n in counts.items() if n)
    ok = len(peaks) + sum(r.status == "ok" for r in results)
    done = "compiled" if results[0].case.target else "measured"
    return f"{ok} of {planned} {unit} {done}" + (f"; {bad}" if bad else "")


def rate(peak: Peak) -> str:
    """A peak for a reader: "85.4 GFLOP/s", or "1.31 G/s" of a function."""
    unit = "FLOP/s" if peak.unit.name == PRODUCTS else "/s"
    size, letter = next((x for x in ((1e12, "T"), (1e9, "G")) if peak.rate >= x[0]), (1e6, "M"))
    return f"{peak.rate / size:.3g} {letter}{unit}"


_RATIOS_NOTE = (
    "Each mechanism was called in turns with the one its time is divided by, in processes of their "
    "own, the order changing from turn to turn: the geometric mean over n turns with its 95 % "
    "interval (Student). It tells of this run alone: another run may differ by more, on a machine "
    "that others share. Below 1 is faster, and less memory."
)
_SAME_VALUES_NOTE = (
    "Where both compute the same function their outputs, and the gradients of their inputs, were "
    "compared first."
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
    "sorting and moving numbers count as nothing, so that a share is rather too small. Where a "
    "case is faster than a peak, which was measured beside other work, it is the peak itself."
)
_EFFICIENCY_NOTE = (
    "*Strong scaling* is the same work over more devices; *weak scaling* has a batch as many times "
    "as large as the devices are many. The efficiency is the work done in a device's time, over "
    "that with the fewest devices: 100% where no time is lost. Devices that are made of the cores "
    "of one processor share them: a single one may use all cores already, so that more of them "
    "cannot be faster, and an efficiency that falls as 1/d says that the work is divided and none "
    "of it done twice. Set XLA_FLAGS=--xla_cpu_multi_thread_eigen=false "
    "intra_op_parallelism_threads=1 to give each device one thread."
)
_GROWTH_NOTE = (
    "The fitted p ± its standard error in value ∝ n^p, over the longer half of the lengths, at "
    "least four; the error is that of the fit or of the repeats, the larger. Nothing where there "
    "are fewer lengths or the error is above ½. Memory also counts what was only compiled, unless "
    "runs of that mechanism took more than their programs say."
)
_CROSSOVER_NOTE = (
    "From n on, and at every longer length that both ran; the first column names measured lengths. "
    "Where the longest common length differs by less than 10% (memory: 25%) it is a tie."
)
_FITS_NOTE = (
    "*ran* and *did not fit* are lengths of this run; *extrapolated* is where b·n + c·n² through "
    "the two longest would reach the memory that was free and allowed, and was not measured: up to "
    "16 times the longest, beyond which nobody knows (>)."
)
