"""Tables of a comparison with peers, as Markdown: pure functions of the outcomes."""

import statistics
from collections.abc import Sequence

from attnlab.bench.case import PASS_TITLES, PASSES
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import SoFar, document, grouped
from attnlab.runs.units import duration, human
from experiments.compare_peers.pairs import CROSSOVER_BY, OURS, Outcome, Pair, crossover

_HEADER = (
    "attnlab | against | pass | time | theirs | ratio (range; turns) | target | met | "
    "memory | theirs | ratio | target | met"
).split(" | ")
_ERROR_HEADER = (
    "attnlab | against | RMS distance of the output from NumPy's in float64 | theirs | ratio | "
    "target | met"
).split(" | ")
_FASTER = 0.5  # a bound below this reads "n times faster", one above "n times the time"
_CASES = "float32, batch 1, on the CPU."
_METHOD = """\
Each side runs in a process of its own, with as many threads as there are cores; the two are called
in turns, and the order of the two changes from turn to turn. A time is the median over the turns of
one call (short calls are averaged over 5 ms). The ratio is the median of the ratios of neighboring
turns, with the smallest, the largest and how many there were. Time to compile and to place the
arguments is not included.

Memory is how far one call raises the process's high-water mark (VmHWM, reset through
/proc/self/clear_refs): outputs and temporaries, without the arguments. It is measured in the same
way for every side: torch has no other way to tell, and what XLA reports for a CPU program can be
wrong.

Where both sides compute the same function, their outputs (forward) and the gradients of their
inputs (forward + backward) are compared first, at the size that is timed: the largest difference
relative to the largest value is in results.jsonl and must be at most 1e-4. No other
library computes LSH attention with strict causality. So the values of our preset `trax` are
compared with Hugging Face, and those of `lucidrains` with reformer-pytorch, on a short input in
float64 and on the same buckets; what is timed is our default, `strict`, against the peer, each with
its own hashing. Against torch and blockwise attention LSH is approximate.

A training step is the forward and the backward pass of a byte model and Adam's update, with every
layer's attention by LSH, ours strictly causal; the two begin with parameters of their own.

Inputs: the bytes of the project's sources through a seeded embedding with positions, projected to
separate query, key and value streams."""


def title(pair: Pair) -> str:
    """What a pair compares, for the terminal."""
    return f"{_case(pair)}, against {_peer(pair)}, {PASS_TITLES[pair.passes]}"


def line(outcome: Outcome) -> str:
    """One outcome as a line for the terminal."""
    if outcome.status != "ok":
        return f"{outcome.status}: {outcome.message}"
    parts = []
    if outcome.time_ratio is not None:
        parts.append(_time_ratio(outcome) + _met(outcome.time_met, " "))
    if outcome.error_ratio is not None:
        parts.append(f"distance {outcome.error_ratio:.3g}×" + _met(outcome.error_met, " "))
    if outcome.memory_ratio is not None:
        ratio = f"memory {_times(outcome.memory_ratio)}"
        parts.append(ratio + _met(outcome.memory_met, " "))
    return "; ".join(parts)


def tables(outcomes: Sequence[Outcome]) -> str:
    """A table for each of --rows, and the crossovers."""
    parts = []
    for row, chosen in grouped(outcomes, lambda one: one.pair.row).items():
        header, cells = (_ERROR_HEADER, _error_cells) if row == "accuracy" else (_HEADER, _cells)
        parts += [f"## {row}", markdown_table(header, [cells(one) for one in chosen])]
        if row == "crossover":
            parts += _crossovers(chosen)
    return "\n\n".join(parts)


def markdown(told: SoFar[Outcome]) -> str:
    """The whole report of a run as far as it is done."""
    outcomes = told.rows
    targets = (m for o in outcomes for m in (o.time_met, o.memory_met, o.error_met))
    met = [m for m in targets if m is not None]
    failed = sum(o.status != "ok" for o in outcomes)
    summary = f"{len(outcomes)} of {told.planned} pairs; {sum(met)} of {len(met)} targets met" + (
        f"; {failed} pairs failed." if failed else "."
    )
    parts = ["# attnlab and its peers", summary, _CASES]
    if verdicts := _verdicts(outcomes):
        header = ["work", "against", "pass", "of", "measured", "target", "met"]
        parts += ["## Targets", markdown_table(header, verdicts)]
    parts.append(tables(outcomes))
    return document(*parts, "## How it was measured", _METHOD, told.missing, told.origin)


def _verdicts(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """A line for each target; targets that are not met come first."""
    found = []
    for outcome in outcomes:
        pair = outcome.pair
        names = [_case(pair), _peer(pair), PASS_TITLES[pair.passes]]
        if outcome.time_met is not None:
            ratio, bound = _time_ratio(outcome), _bound(pair.most_time)
            found.append([*names, "time", ratio, bound, _met(outcome.time_met)])
        if outcome.memory_met is not None:
            ratio = "" if outcome.memory_ratio is None else _times(outcome.memory_ratio)
            ours = f" ({human(outcome.ours_bytes)})" if pair.most_bytes else ""
            bound = _memory_bound(pair)
            found.append([*names, "memory", f"{ratio}{ours}", bound, _met(outcome.memory_met)])
        if outcome.error_met is not None:
            found.append([*names, "distance", *_error_cells(outcome)[-3:]])
    return sorted(found, key=lambda cells: cells[-1] != _met(False))


def _error_cells(outcome: Outcome) -> list[str]:
    pair, ratio = outcome.pair, outcome.error_ratio
    names = [_case(pair), _peer(pair)]
    if ratio is None:
        return [*names, f"{outcome.status}: {outcome.message}", *[""] * 4]
    errors = [f"{outcome.ours_error:.3g}", f"{outcome.peer_error:.3g}"]
    return [*names, *errors, f"{ratio:.3g}×", f"≤ {pair.most_error:.3g}×", _met(outcome.error_met)]


def _cells(outcome: Outcome) -> list[str]:
    pair = outcome.pair
    names = [_case(pair), _peer(pair), PASS_TITLES[pair.passes]]
    if outcome.status != "ok":
        return [*names, f"{outcome.status}: {outcome.message}", *[""] * 9]
    return [
        *names,
        duration(_median(outcome.ours_seconds)),
        duration(_median(outcome.peer_seconds)),
        _time_ratio(outcome),
        _bound(pair.most_time),
        _met(outcome.time_met),
        human(outcome.ours_bytes),
        human(outcome.peer_bytes),
        _times(outcome.memory_ratio) if outcome.memory_ratio is not None else "",
        _memory_bound(pair),
        _met(outcome.memory_met),
    ]


def _case(pair: Pair) -> str:
    case = pair.ours.case
    causal = "causal" if case.causal else "not causal"
    text = f"{case.mechanism} n = {case.length}, {case.num_heads} × {case.head_dim}, {causal}"
    text += "" if case.dtype == "float32" else f", {case.dtype}"
    if case.hashes:
        text += f", C = {case.chunk_size}"
    return text + (f", {case.num_layers} layers" if case.num_layers else "")


def _peer(pair: Pair) -> str:
    ours, peer = pair.ours.case, pair.peer.case
    if pair.peer.program != OURS:
        return pair.peer.program
    return f"itself, n = {peer.length}" if ours.mechanism == peer.mechanism else "attnlab blockwise"


def _time_ratio(outcome: Outcome) -> str:
    ratio = outcome.time_ratio
    if ratio is None:
        return ""
    low, high = min(outcome.ratios), max(outcome.ratios)
    turns = len(outcome.ratios)
    if ratio < 1 and (outcome.pair.most_time or 0) < _FASTER:
        return f"{1 / ratio:.3g}× faster ({1 / high:.3g} to {1 / low:.3g}; {turns})"
    return f"{ratio:.3g}× the time ({low:.3g} to {high:.3g}; {turns})"


def _times(ratio: float) -> str:
    return f"1/{1 / ratio:.3g}" if 0 < ratio < _FASTER else f"{ratio:.3g}×"


def _bound(most: float | None) -> str:
    if most is None:
        return ""
    return f"≥ {1 / most:.3g}× faster" if most < _FASTER else f"≤ {most:.3g}× the time"


def _memory_bound(pair: Pair) -> str:
    bounds = [_times(pair.most_memory)] if pair.most_memory else []
    bounds += [human(pair.most_bytes)] if pair.most_bytes else []
    return ", ".join(f"≤ {bound}" for bound in bounds)


def _met(met: bool | None, before: str = "") -> str:
    return "" if met is None else before + ("met" if met else "NOT MET")


def _median(seconds: Sequence[float]) -> float | None:
    return statistics.median(seconds) if seconds else None


def _crossovers(outcomes: Sequence[Outcome]) -> list[str]:
    found = []
    for passes in PASSES:
        chosen = [o for o in outcomes if o.pair.passes == passes]
        if not chosen:
            continue
        start = crossover(chosen)
        met = start is not None and start <= CROSSOVER_BY
        words = "is faster at no length" if start is None else f"is faster from n = {start} on"
        found.append(
            f"{PASS_TITLES[passes]}: LSH {words}; target: from n = {CROSSOVER_BY} or less: "
            f"{_met(met)}."
        )
    return found
