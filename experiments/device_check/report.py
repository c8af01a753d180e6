"""The report of `device_check`: pure functions of its rows."""

import collections
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure

from attnlab.bench import panels, tables
from attnlab.bench.case import PASS_TITLES, PASSES, SHORT, Case, Result, passes_of
from attnlab.bench.panels import Panel
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document
from attnlab.runs.units import duration, human
from experiments.device_check import targets
from experiments.device_check.cases import CHECKED, Checked
from experiments.device_check.functions import FLASH, TANH, flash_name
from experiments.device_check.jobs import ROUNDS, Row
from experiments.device_check.settings import Settings
from experiments.device_check.turns import REFUSED


def markdown(told: SoFar[Row], environment: dict[str, Any], settings: Settings) -> str:
    """The whole report.

    Args:
      told: run as far as it is done.
      environment: description of the machine, as the worker gives it.
      settings: settings of the run.
    """
    checked, timed = checks_of(told.rows), programs_of(told.rows)
    parts = ["# Device check", told.how_much("rows")]
    parts += ["## Targets", _TARGETS, verdicts(timed, environment, settings)]
    if checked:
        parts += ["## Correctness", _CORRECTNESS, _matrix(checked), *_failures(checked)]
        parts += ["### What refused", _refusals(checked)]
    if timed:
        parts += _speed(timed, environment, settings)
    return document(*parts, told.missing, told.origin)


def summary(told: SoFar[Row], environment: dict[str, Any], settings: Settings) -> str:
    """The text that the terminal shows at the end."""
    checked, timed = checks_of(told.rows), programs_of(told.rows)
    parts = [f"{len(told.rows)} of {told.planned} rows"]
    if checked:
        parts.append(f"correctness: {_counted(row.status for row in checked)}")
    if timed:
        parts.append(verdicts(timed, environment, settings))
    return "\n".join(parts)


def checks_of(rows: Sequence[Row]) -> list[Checked]:
    """The rows of the checks."""
    return [row for row in rows if isinstance(row, Checked)]


def programs_of(rows: Sequence[Row]) -> list[Result]:
    """The rows of the programs that are timed."""
    return [row for row in rows if isinstance(row, Result)]


def figure(timed: Sequence[Result], quantity: str, device: str) -> Figure | None:
    """Time or memory over length, a panel a pass, or None where there is nothing to draw."""
    rows = comparable(timed)
    if not rows:
        return None
    case = rows[0].case
    title = (
        f"{'Time of one call' if quantity == 'time' else 'Memory by the compiler'} over length n — "
        f"{case.batch * case.length} tokens or one sequence, {case.num_heads} heads × "
        f"{case.head_dim}, {case.dtype}, causal — {device}"
    )
    of_pass = [Panel(PASS_TITLES[p], [r for r in rows if r.case.passes == p]) for p in PASSES]
    return panels.draw([[one for one in of_pass if one.results]], quantity, title)


def verdicts(timed: Sequence[Result], environment: dict[str, Any], settings: Settings) -> str:
    """The table of the targets with their verdicts."""
    rows = [
        [v.what, v.target, v.found, v.word(environment, settings.tokens)]
        for v in targets.verdicts(timed)
    ]
    return markdown_table(["what", "target", "measured", "verdict"], rows)


def line(done: Sequence[Row], *, wanted: int, waiting: int) -> str:
    """One line for the terminal: what came out of a job.

    Args:
      done: rows of the job.
      wanted: number of members that were to be done.
      waiting: number of members that wait until all other jobs are done.
    """
    words = []
    for row in programs_of(done):
        found = _refused(row) or SHORT.get(row.status, "")
        words.append(f"{_label(row.case)} {found or duration(row.median_seconds)}")
    checked = checks_of(done)
    if checked:
        words.append(_counted(row.status for row in checked))
    if len(done) < wanted:
        words.append(f"{wanted - len(done)} not reached")
    if waiting:
        words.append(f"{waiting} wait until the end")
    bad = [row for row in checked if row.status in ("fail", "crashed")]
    return "\n    ".join(["; ".join(words), *(f"{r.check}: {r.status}: {r.message}" for r in bad)])


def _matrix(checked: Sequence[Checked]) -> str:
    """The table of statuses: a line for each mechanism, a column for each implementation."""
    names = list(dict.fromkeys(row.check.implementation for row in checked))
    found: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for row in checked:
        found[row.check.mechanism, row.check.implementation].append(row.status)
    mechanisms = dict.fromkeys(row.check.mechanism for row in checked)
    rows = [[m, *(_counted(found.get((m, name), [])) for name in names)] for m in mechanisms]
    return markdown_table(["mechanism", *names], rows)


def _counted(statuses: Iterable[str]) -> str:
    counts = collections.Counter(statuses)
    return ", ".join(f"{counts[status]} {status}" for status in CHECKED if counts[status])


def _failures(checked: Sequence[Checked]) -> list[str]:
    bad = [row for row in checked if row.status in ("fail", "crashed")]
    worst: dict[str, tuple[float, Checked]] = {}
    for row in checked:
        if row.ratios:
            name = f"{row.check.implementation}, {row.check.dtype}"
            found = max(row.ratios.values())
            if name not in worst or found > worst[name][0]:
                worst[name] = found, row
    rows = [
        [name, f"{found:.2g}", f"{row.check.mechanism}, {row.check.where}: {row.message}"]
        for name, (found, row) in worst.items()
    ]
    parts = []
    if bad:
        table = [[str(row.check), row.status, row.message] for row in bad]
        parts += ["### What failed", markdown_table(["check", "what", "why"], table)]
    if rows:
        header = ["implementation, dtype", "error / budget", "where"]
        parts += ["### The worst that was seen", markdown_table(header, rows)]
    return parts


def _refusals(checked: Sequence[Checked]) -> str:
    found: dict[tuple[str, str, str], int] = collections.Counter(
        (row.check.mechanism, row.check.implementation, row.message)
        for row in checked
        if row.status == "refused"
    )
    rows = [[m, name, str(count), why] for (m, name, why), count in found.items()]
    header = ["mechanism", "implementation", "checks", "reason"]
    return markdown_table(header, rows) if rows else "Nothing."


def _speed(timed: Sequence[Result], environment: dict[str, Any], settings: Settings) -> list[str]:
    rows = comparable(timed)
    platform = str(environment.get("platform"))
    parts = ["## Speed", _SPEED.format(tokens=settings.tokens, flash=flash_name(platform))]
    for quantity in ("time", "memory"):
        parts.append(f"![{quantity} over length]({quantity}.svg)")
        for passes in passes_of(rows):
            parts.append(f"### {quantity.capitalize()}, {PASS_TITLES[passes]}")
            parts.append(tables.over_axis(rows, passes, quantity))
    parts += ["### LSH against flash", _against_flash(timed)]
    parts += ["### Rounds of LSH", _rounds(timed)]
    parts += ["### Additive attention against tanh", *_tanh(timed)]
    missing = [
        [str(r.case), _refused(r) or SHORT[r.status], r.message.removeprefix(REFUSED)]
        for r in timed
        if r.status != "ok"
    ]
    parts.append("### Programs without a result")
    header = ["program", "what happened", "why"]
    parts.append(markdown_table(header, missing) if missing else "None.")
    if any(r.input_cycled for r in timed):
        parts.append(
            "The text is shorter than batch × length: it begins again at its end, which hashing "
            "can notice."
        )
    return parts


def comparable(timed: Iterable[Result]) -> list[Result]:
    """The rows for tables and figures over length, without refusals and other numbers of rounds."""
    return [r for r in timed if r.case.mechanism not in (TANH, *_OTHER_ROUNDS) and not _refused(r)]


def _against_flash(timed: Sequence[Result]) -> str:
    columns: dict[str, dict[int, float]] = {}
    for way in dict.fromkeys(r.case.implementation for r in timed if r.case.mechanism == "lsh-4"):
        label = f"lsh-4:{way}" if way else "lsh-4"
        for passes in PASSES:
            ratios = targets.speedups(timed, way, passes=passes)
            columns[f"{label}: speed, {PASS_TITLES[passes]}"] = ratios
        columns[f"{label}: memory"] = targets.memory_ratios(timed, way)
    columns = {name: ratios for name, ratios in columns.items() if ratios}
    lengths = sorted({n for ratios in columns.values() for n in ratios})
    rows = [
        [str(n), *(f"{ratios[n]:.3g}×" if n in ratios else "" for ratios in columns.values())]
        for n in lengths
    ]
    return markdown_table(["n", *columns], rows) if rows else "Not both were timed."


def _rounds(timed: Sequence[Result]) -> str:
    rows = []
    for rounds in sorted({*ROUNDS, 4}):
        for passes in PASSES:
            found = targets.find(timed, f"lsh-{rounds}", passes=passes)
            flash = targets.find(timed, FLASH, passes=passes)
            usual = [r.case.length for r in timed if r.case.mechanism in _OTHER_ROUNDS]
            n = max(usual, default=0)
            if n in found:
                speed = f"{targets.ratio(flash[n], found[n]):.3g}×" if n in flash else ""
                time = duration(found[n].median_seconds)
                cells = [str(rounds), PASS_TITLES[passes], str(n), time]
                rows.append([*cells, human(found[n].memory_bytes), speed])
    return markdown_table(["rounds", "pass", "n", "time", "memory", "speed / flash"], rows)


def _tanh(timed: Sequence[Result]) -> list[str]:
    rates = targets.tanh_rates(timed)
    if not rates:
        return ["The throughput of tanh was not measured."]
    text = ", ".join(f"{rate:.3g} evaluations/s in {dtype}" for dtype, rate in rates.items())
    rows = [
        [str(n), label, PASS_TITLES[passes], f"{targets.over_bound(row, rates):.3g}"]
        for passes in PASSES
        for way, label in ((None, "additive"), ("pallas", "additive:pallas"))
        for n, row in targets.find(timed, "additive", way, passes=passes).items()
    ]
    return [
        f"`jnp.tanh` in a fused chain: {text}. {_TANH}",
        markdown_table(["n", "program", "pass", "time / bound"], rows),
    ]


def _label(case: Case) -> str:
    if case.mechanism == TANH:
        return f"tanh {case.dtype}"
    return case.label


def _refused(row: Result) -> str:
    return "refused" if row.message.startswith(REFUSED) else ""


_OTHER_ROUNDS = tuple(f"lsh-{rounds}" for rounds in ROUNDS)
_TARGETS = (
    "bfloat16, 8 heads of width 64, causal, bare functions, forward + backward. The verdicts are "
    "for one NVIDIA H200 with batch × length = 65536 tokens; elsewhere the numbers stand without."
)
_CORRECTNESS = (
    "Context and gradients against attention in float64 NumPy, written from the papers. A check "
    "passes if each rms error is at most twice that of the plain dense version in the same dtype "
    "on this device, plus one rounding, over all and also in the worst row (a query or key of one "
    "head), where the budget is relative to what the row sums up; `dense` itself is held to eight "
    "times what rounding its inputs costs, and if it fails, so does what is judged by it. float32 "
    "is asked for and judged at precision HIGHEST, so TF32 is no part of it. Under a causal mask "
    "the future is changed as well, with values a hundred times larger, and the past must not move "
    "by more than rounding. `timed`: arrays of the speed part, where three heads are compared with "
    "float64 and all others with the platform's flash (LSH: with `sorted`). `buckets`: "
    "`hash_buckets` against float64; ids may differ only where two axes are equally near to "
    "rounding. *refused*: the library says that it "
    "does not serve this here; `default` is `implementation=None`."
)
_SPEED = (
    "batch × length = {tokens} tokens, a longer length is one sequence. `flash` is {flash}, called "
    "without attnlab. The programs of one length and pass were timed in turns, one sample of each "
    "after the other, and ratios are medians over the turns (LSH with other rounds: of medians). "
    "Memory is what the compiler counts: arguments, outputs and temporaries; "
    "LSH has one argument fewer, because its queries are its keys. Time ± half the range."
)
_TANH = (
    "The bound is an evaluation for each visible pair, head and hidden unit, and two for forward + "
    "backward (a backward pass that keeps no [T, S, hidden] evaluates them again), at the faster "
    "of these rates. Below 1 means that the program has a faster tanh than `jnp.tanh`."
)
