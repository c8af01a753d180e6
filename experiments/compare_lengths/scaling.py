"""Tables and figures of a run over numbers of devices: what they share, and what each has to do.

Strong scaling: the same work over more devices, whose time falls as 1/d at best. Weak scaling: as
much work a device, so a batch that is d times as large, whose time stays the same at best.
"""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from attnlab.bench import trends
from attnlab.bench.case import PASS_TITLES, Result, passes_of
from attnlab.bench.panels import Panel
from attnlab.bench.panels import draw as draw_panels
from attnlab.bench.tables import over_axis
from attnlab.runs.report import SoFar, document
from experiments.compare_lengths import report


def markdown(done: SoFar[Result]) -> str:
    """The whole report of a run as far as it is done."""
    results, drawn = done.rows, any(r.status == "ok" for r in done.rows)
    parts = ["# Attention over devices", report.summary(done)]
    for quantity in ("time", "memory"):
        parts.append(f"## {quantity.capitalize()}")
        parts.append(f"![{quantity} over devices]({quantity}.svg)" if drawn else "")
        for kind, rows in by_kind(results).items():
            for passes in passes_of(rows):
                title = f"{kind}, {PASS_TITLES[passes]}"
                parts += [f"### {title}", over_axis(rows, passes, quantity)]
                if quantity == "time":
                    parts += [f"#### {title}: efficiency", _efficiency(rows, passes)]
    parts += ["## How to read it", _NOTE]
    parts += ["## Cases without a result", report.missing(results)]
    parts += ["## How it was measured", report.method(results)]
    return document(*parts, done.missing, done.origin)


def tables(results: Sequence[Result]) -> str:
    """The tables of time alone, for the terminal."""
    parts = []
    for kind, rows in by_kind(results).items():
        for passes in passes_of(rows):
            parts += [f"{kind}, {PASS_TITLES[passes]}, time so far:"]
            parts += [over_axis(rows, passes, "time")]
    return "\n".join(parts)


def draw(results: Sequence[Result], quantity: str, device: str) -> Figure | None:
    """The figure of "time" or "memory", a row of panels for each pass; None where there is none."""
    kinds = by_kind(results)
    grid = [
        [
            Panel(f"{kind}, {PASS_TITLES[passes]}", chosen)
            for kind, rows in kinds.items()
            if (chosen := [r for r in rows if r.case.passes == passes])
        ]
        for passes in passes_of(results)
    ]
    case = results[0].case
    title = (
        f"{'Time of one call' if quantity == 'time' else 'Memory'} over devices — "
        f"{case.length} tokens, {case.num_heads} heads × {case.head_dim}, {case.dtype}"
        f"{', causal' if case.causal else ''}, {case.shard or 'batch'} divided"
        f"{f' — {device}' if device else ''}"
    )
    return draw_panels(grid, quantity, title)


def by_kind(results: Sequence[Result]) -> Mapping[str, list[Result]]:
    """The rows of strong and of weak scaling; those of the fewest devices belong to both."""
    fewest = min(r.case.devices for r in results)
    batch = min(r.case.batch for r in results)
    return {
        "strong scaling": [r for r in results if r.case.batch == batch],
        "weak scaling": [r for r in results if r.case.batch * fewest == batch * r.case.devices],
    }


def _efficiency(results: Sequence[Result], passes: str) -> str:
    """The share of the devices' work that counts: t₁·w / (t_d·d), w the work over that of t₁."""
    measured = [r for r in results if r.case.passes == passes and trends.undisturbed(r)]
    first = {r.case.label: r for r in sorted(measured, key=lambda r: -r.case.devices)}

    def cell(result: Result | None) -> str:
        if result is None or not result.median_seconds or result.busy:
            return ""
        base = first[result.case.label]
        work = result.case.batch / base.case.batch
        devices = result.case.devices / base.case.devices
        return f"{(base.median_seconds or 0) * work / (result.median_seconds * devices):.0%}"

    return over_axis(results, passes, cell)


_NOTE = (
    "*Strong scaling* is the same work over more devices; *weak scaling* has a batch as many times "
    "as large as the devices are many. The efficiency is the work done in a device's time, over "
    "that with the fewest devices: 100% where no time is lost. Devices that are made of the cores "
    "of one processor share them: a single one may use all cores already, so that more of them "
    "cannot be faster, and an efficiency that falls as 1/d says that the work is divided and none "
    "of it done twice. Set XLA_FLAGS=--xla_cpu_multi_thread_eigen=false "
    "intra_op_parallelism_threads=1 to give each device one thread."
)
