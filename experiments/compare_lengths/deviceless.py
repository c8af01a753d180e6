"""Report of programs that were compiled for absent accelerators, without times."""

import math
from collections.abc import Sequence

from attnlab.bench import tables, targets, trends
from attnlab.bench.case import (
    ATTENTION,
    TRAIN_STEP,
    Result,
    axis_of,
    passes_of,
    size_of,
)
from attnlab.bench.roofline import Rates
from attnlab.mechanisms.attentions import Model
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document, group
from attnlab.runs.units import duration, human
from experiments.compare_lengths import panels, report


def by_target(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The rows of each target, in order of first appearance."""
    return group(results, lambda result: result.case.target or "")


def markdown(done: SoFar[Result]) -> str:
    """The whole report of a run as far as it is done."""
    results = done.rows
    parts = ["# Memory on accelerators that are not here", _answers(results)]
    parts.append(f"{done.how_much('cases')} {_what(results)}")
    parts += ["## What fits", _FITS_NOTE, _fits(results)]
    parts.append("## Memory of one device")
    if any(result.status == "ok" for result in results):
        parts.append("![memory over n](memory.svg)")
    parts += panels.tables(results, tables.memory)
    if any(r.sent for r in results):
        parts += ["## Bytes over the network", _SENT_NOTE]
        parts += panels.tables(results, _sent, ", of one device")
    if any(r.operations for r in results):
        parts += ["## Least times", _LEAST_NOTE, _least_times(results)]
    if results[0].case.program == "language_model":
        parts += ["## Growth", _GROWTH_NOTE, _growth(results)]
    parts += ["## Targets", _TARGETS_NOTE, _targets(results)]
    notes = sorted({r.message for r in results if r.status == "ok" and r.message})
    parts += [f"- {note}: {_which(results, note)}" for note in notes]
    failed = [r for r in results if r.status not in ("ok", "too_large")]
    if failed:
        parts += ["## Not compiled", report.missing(failed)]
    parts += ["## How it was found", _METHOD, _compiling(results)]
    return document(*parts, done.missing, done.origin)


def _answers(results: Sequence[Result]) -> str:
    """The least memory at the largest n: of each target, or the three least of one."""
    targets = by_target(results)
    named = 1 if len(targets) > 1 else 3
    said = {
        name: report.answer(rows, trends.memory, human, named) for name, rows in targets.items()
    }
    return "\n".join(f"- **{name}, {line}**" for name, line in said.items() if line)


def _what(results: Sequence[Result]) -> str:
    case = results[0].case
    if case.program == ATTENTION:
        kind = "Bare functions" if case.ops_only else "Flax modules with their projections"
        seen = f"{'causal' if case.causal else 'not causal'}"
    else:
        kind = (
            f"Training steps of {case.program}: {_sizes(results, 'num_layers')} layers of model "
            f"width {case.width}, vocabulary {case.vocab_size:,}, float32 parameters with Adam's "
            "state, without dropout"
        )
        seen = "activations in that type"
    batch = f"batch {_sizes(results, 'batch')} in all"
    batch += f" of {case.length} tokens" if axis_of(results) == "batch" else ""
    split = ""
    if case.devices > 1:
        split = f" Split by {case.shard or 'batch'} over the devices of the slice."
    return (
        f"{kind}, {batch}, {case.num_heads} heads of width {case.head_dim}, "
        f"{case.dtype}, {seen}.{split} {report.legend(results)}"
    )


def _sizes(results: Sequence[Result], axis: str) -> str:
    return ", ".join(map(str, sorted({size_of(r, axis) for r in results})))


def _fits(results: Sequence[Result]) -> str:
    rows = []
    axis = axis_of(results)
    for target, of_target in by_target(results).items():
        for passes in passes_of(of_target):
            chosen = [r for r in of_target if r.case.passes == passes]
            found = trends.fits(chosen, passes)
            for label, fit in found.items():
                mine = {size_of(r, axis): r for r in chosen if r.case.label == label}
                limit = human(chosen[0].available_bytes)
                at = mine.get(fit.largest or 0)
                over = mine.get(fit.too_large or 0)
                if at is None and over is None:
                    continue  # none compiled: they are in the section "Not compiled"
                rows.append(
                    [
                        target,
                        label,
                        panels.pass_title(chosen[0].case),
                        "none" if at is None else f"{fit.largest}: {human(at.memory_bytes)}",
                        "" if over is None else f"{fit.too_large}: {human(over.memory_bytes)}",
                        fit.extrapolated,
                        limit,
                    ]
                )
    header = ["target", "mechanism", "pass", "fits at n", "not at n", "reaches n", "has"]
    return markdown_table(header, rows)


def _growth(results: Sequence[Result]) -> str:
    table = []
    for target, rows in by_target(results).items():
        for label, line in trends.lines(rows, TRAIN_STEP, trends.needs).items():
            power = str(trends.growth(line) or "")
            table.append([target, label, power, *TABLE_3.get(Model.parse(label).form, ("", ""))])
    return markdown_table(["target", "mechanism", "power of n", "row of Table 3", "formula"], table)


def _sent(result: Result | None) -> str:
    if result is None or result.sent is None:
        return ""
    between = result.sent.between_hosts
    return human(result.sent.total) + (f", {human(between)} between hosts" if between else "")


def _least_times(results: Sequence[Result]) -> str:
    parts = panels.tables(results, _least, ", at least")
    counted = {r.operations_of for r in results} - {""}
    parts += [f"- Counted is {what}: {_which(results, what)}" for what in sorted(counted)]
    return "\n\n".join(parts)


def _least(result: Result | None) -> str:
    if result is None or result.operations is None:
        return ""
    rates = Rates.of_device(targets.parse(result.case.target or "").device)
    moved = (result.argument_bytes or 0) + (result.output_bytes or 0)
    least = rates.bound(result.operations, moved, result.sent)
    return f"{duration(least.seconds)} {least.by}"


def _targets(results: Sequence[Result]) -> str:
    rows = []
    for name in by_target(results):
        target = targets.parse(name)
        device = target.device
        size = human(target.memory_bytes)
        if device.kind == "cuda":
            whole = human(device.gpu["device_memory_size"])
            size += f" ({targets.GPU_SHARE:.0%} of {whole}, JAX's default share)"
        slice_ = f"{target.chips} chips, {target.devices} devices" if target.shape else "1 device"
        peaks = (
            f"{device.products_per_second / 1e12:g} TFLOP/s",
            f"{device.memory_bytes_per_second / 1e9:,.0f} GB/s",
        )
        links = [
            f"{rate / 1e9:,.0f} GB/s{where}"
            for rate, where in (
                (device.interconnect_bytes_per_second, ""),
                (device.between_hosts_bytes_per_second, " between hosts"),
            )
            if target.shape and math.isfinite(rate)
        ]
        rows.append(
            [name, device.device_kind, slice_, size, *peaks, ", ".join(links), device.source]
        )
    header = ["target", "device", "slice", "memory of a device", "bfloat16", "to memory"]
    return markdown_table([*header, "to others", "source"], rows)


def _which(results: Sequence[Result], note: str) -> str:
    cases = dict.fromkeys(
        f"{r.case.label} on {r.case.target}"
        for r in results
        if note in (r.message, r.operations_of)
    )
    return ", ".join(cases)


def _compiling(results: Sequence[Result]) -> str:
    seconds = [r.compile_seconds for r in results if r.compile_seconds is not None] or [0.0]
    return f"Compiling took {sum(seconds):.0f} s in all, {max(seconds):.1f} s at most."


TABLE_3 = {
    "exact": ("Transformer", "max(b·l·d_ff, b·n_h·l²)·n_l"),
    "reversible-exact": ("Reversible Transformer", "max(b·l·d_ff, b·n_h·l²)"),
    "chunked-reversible-exact": ("Chunked Reversible Transformer", "max(b·l·d_model, b·n_h·l²)"),
    "lsh": ("LSH Transformer", "max(b·l·d_ff, b·n_h·l·n_r·c)·n_l"),
    "chunked-reversible-lsh": ("Reformer", "max(b·l·d_model, b·n_h·l·n_r·c)"),
}
_FITS_NOTE = (
    "*n* is the length, or the number of layers or sequences where that differs. *fits at* is the"
    " largest n of this run that fits, *not at* the smallest that does not, with what each needs "
    "on one device; *reaches*, up to 16 times the largest known n (> beyond it), is where b·n + "
    "c·n² (of layers and sequences a + b·n) through the two largest would meet the device's "
    "memory, extrapolated."
)
_GROWTH_NOTE = (
    "The power of n that the memory of a step grows with over the larger n, beside the formulas of "
    "Kitaev et al. 2020, Table 3: b batch, l length, d_ff and d_model widths, n_h heads, n_l "
    "layers, n_r rounds, c what a round's chunks cost a token. The formulas leave out parameters, "
    "and their Transformer makes the whole matrix of weights, as :dense does here."
)
_SENT_NOTE = (
    "What each device sends in one run, counted in the compiled program: all-gather, all-reduce, "
    "reduce-scatter, all-to-all and permutes, in loops as often as they run, by the least that an"
    " algorithm needs whose sums the devices make: of x bytes on each of g devices (g − 1)·x, "
    "2·(g − 1)/g·x, (g − 1)/g·x, (g − 1)/g·x and x (Patarasu and Yuan 2009). *Between hosts* is a"
    " device's share of what its host sends to others."
)
_LEAST_NOTE = (
    "A lower bound, not a forecast: no program that does these operations is faster on one "
    "device. It is the longest of times that may overlap (the roofline of Williams et al. 2009): "
    "of matrix products at the published peak of bfloat16 without sparsity, whatever the dtype; "
    "on a GPU, of exponentials, tanh, divisions and the like, 16 a clock of each multiprocessor "
    "(for TPUs no figure is published); of arguments and results, once through the memory; and of"
    " bytes over the network at the published bandwidth in one direction, *links* within a slice "
    "or a host, *hosts* between hosts. What a program keeps in memory in between is not in it: "
    "compilers count the bytes of a loop once, which is no bound. Nor are results that take an "
    "argument's place, as a new state does, additions, sorting, or waiting."
)
_TARGETS_NOTE = (
    "What a program can use on one JAX device, its published peaks, and where the figures are from."
)
_METHOD = (
    "The real compilers, without the device: libtpu for TPUs, XLA's GPU compiler for GPUs. On TPU "
    "the memory is the compiler's peak, and a program that it refuses as too large needs what its "
    "message says; on GPU it is arguments + outputs + temporaries − what is aliased, set against "
    "the device's memory. Nothing ran, so there are no times; GPU programs are not autotuned. "
    "Other versions of jax or of the compilers give other numbers."
)
