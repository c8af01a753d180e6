"""Which targets are met: pure functions of the timed rows.

The targets are for one NVIDIA H200: bfloat16, 8 heads of width 64, causal, batch × length = 65536
tokens, forward + backward.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from attnlab.bench.case import Result
from experiments.device_check import functions
from experiments.device_check.functions import FLASH, TANH
from experiments.device_check.jobs import BOTH, TARGET

TOKENS = 65536
LSH_WAYS = (None, "pallas")  # the default, which is "sorted" at such lengths, and the kernel
LONGEST = 2**20
MET, NOT_MET, UNKNOWN = "met", "NOT met", "not measured here"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One target.

    Attributes:
      what: words for the quantity that has the bound.
      target: words for the bound.
      found: words for the measured value, or "".
      holds: whether the bound holds; None where it was not measured.
    """

    what: str
    target: str
    found: str
    holds: bool | None

    def word(self, environment: dict[str, Any], tokens: int) -> str:
        """MET or NOT_MET; UNKNOWN if not measured, or on a device that the targets are not for."""
        there = "H200" in str(environment.get("device")) and tokens == TOKENS
        if self.holds is None or not there:
            return UNKNOWN
        return MET if self.holds else NOT_MET


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """The verdict on every target: LSH (default and kernel), additive and multi-head attention."""
    rows = [r for r in results if r.case.passes == BOTH and r.case.mechanism != TANH]
    return [
        *(verdict for way in LSH_WAYS for verdict in _against_flash(rows, way)),
        *_additive(results),
        _default(rows),
    ]


def find(
    results: Iterable[Result],
    mechanism: str,
    implementation: str | None = None,
    *,
    passes: str = BOTH,
) -> dict[int, Result]:
    """The rows of a program that ran, by length, lengths rising."""
    found = {
        r.case.length: r
        for r in results
        if r.status == "ok"
        and r.case.passes == passes
        and (r.case.mechanism, r.case.implementation) == (mechanism, implementation)
    }
    return dict(sorted(found.items()))


def ratio(above: Result, below: Result) -> float:
    """Time of `above` / time of `below`: the median over turns, if both were timed in the same."""
    together = above.turns == below.turns != ""
    if together and len(above.seconds) == len(below.seconds):
        return statistics.median(a / b for a, b in zip(above.seconds, below.seconds, strict=True))
    return statistics.median(above.seconds) / statistics.median(below.seconds)


def speedups(
    results: Sequence[Result], implementation: str | None = None, *, passes: str = BOTH
) -> dict[int, float]:
    """Flash's time / LSH's time with 4 rounds, by length."""
    lsh = find(results, "lsh-4", implementation, passes=passes)
    flash = find(results, FLASH, passes=passes)
    return {n: ratio(flash[n], lsh[n]) for n in lsh if n in flash}


def memory_ratios(results: Sequence[Result], implementation: str | None = None) -> dict[int, float]:
    """LSH's memory / flash's memory, forward + backward, by length."""
    lsh, flash = find(results, "lsh-4", implementation), find(results, FLASH)
    return {n: (lsh[n].memory_bytes or 0) / (flash[n].memory_bytes or 1) for n in lsh if n in flash}


def faster_from(ratios: dict[int, float]) -> int | None:
    """The shortest length from which on every ratio is above 1."""
    found = None
    for n in sorted(ratios, reverse=True):
        if ratios[n] <= 1:
            break
        found = n
    return found


def tanh_rates(results: Iterable[Result]) -> dict[str, float]:
    """Evaluations of tanh per second, by dtype."""
    return {
        r.case.dtype: functions.tanh_evaluations(r.case) / statistics.median(r.seconds)
        for r in results
        if r.case.mechanism == TANH and r.status == "ok"
    }


def over_bound(row: Result, rates: dict[str, float]) -> float:
    """Time of a program / the time of its tanh evaluations at the faster of the measured rates."""
    bound = functions.tanh_evaluations(row.case) / max(rates.values())
    return statistics.median(row.seconds) / bound


def _against_flash(rows: Sequence[Result], way: str | None) -> list[Verdict]:
    common = [r for r in rows if r.case.batch > 1 or r.case.length <= TOKENS]
    ratios = speedups(common, way)
    start = faster_from(ratios)
    last = max(ratios, default=None)
    memory = memory_ratios(common, way)
    most = max(memory, default=0)
    slower = f"not faster up to n = {last}" if last else ""
    name = lsh_name(way)
    return [
        Verdict(
            f"{name} (C = 64) against flash",
            f"faster from ≤ {TARGET}",
            f"faster from n = {start}" if start else slower,
            None if last is None or last < TARGET else start is not None and start <= TARGET,
        ),
        Verdict(
            f"{name} at n = {TOKENS}",
            "≥ 10×",
            f"{ratios[last]:.3g}× at n = {last}" if last else "",
            None if last != TOKENS else ratios[last] >= 10,
        ),
        Verdict(
            f"{name}: memory against flash",
            "≤ 1.5×",
            f"{memory[most]:.3g}× at n = {most}" if memory else "",
            memory[most] <= 1.5 if memory else None,
        ),
        _longest(rows, way),
    ]


def lsh_name(way: str | None) -> str:
    """An implementation of LSH as the table names it."""
    return f"LSH-4, {way or 'default'}"


def _longest(rows: Sequence[Result], way: str | None) -> Verdict:
    tried = [r for r in rows if (r.case.mechanism, r.case.implementation) == ("lsh-4", way)]
    longest = max(tried, key=lambda r: r.case.length, default=None)
    found, holds = "", None
    if longest is not None:
        time = f" in {statistics.median(longest.seconds):.3g} s" if longest.seconds else ""
        found = f"n = {longest.case.length}: {longest.status}{time}"
        holds = longest.status == "ok" if longest.case.length >= LONGEST else None
    return Verdict(f"{lsh_name(way)}: 1M tokens, one sequence", "fits and runs", found, holds)


def _additive(results: Sequence[Result]) -> list[Verdict]:
    rates = tanh_rates(results)
    what = f"additive, T = S = {TARGET}, hidden 64: time / tanh bound"
    ways = [find(results, "additive", way) for way in (None, "pallas")]
    ways = [rows for rows in ways if rows]
    if not ways or not rates:
        return [Verdict(what, "≤ 2", "", None), Verdict("its memory", "linear", "", None)]
    best = min(ways, key=lambda rows: over_bound(rows[max(rows)], rates))
    last, first = best[max(best)], best[min(best)]
    n, label = last.case.length, last.case.label
    time = over_bound(last, rates)
    # batch × length is the same at both lengths, and so is a memory that is linear in the length
    growth = (last.memory_bytes or 0) / (first.memory_bytes or 1)
    measured = len(best) > 1
    span = f"{growth:.3g}× from n = {first.case.length} to {n}, as many tokens in all"
    return [
        Verdict(what, "≤ 2", f"{time:.3g} at n = {n}, {label}", time <= 2 if n == TARGET else None),
        Verdict(
            "its memory", "linear", span if measured else "", growth <= 1.1 if measured else None
        ),
    ]


def _default(rows: Sequence[Result]) -> Verdict:
    ours, flash = find(rows, "exact"), find(rows, FLASH)
    ratios = {n: ratio(flash[n], ours[n]) for n in ours if n in flash}
    what = "multi-head default: speed against flash called directly"
    if not ratios:
        return Verdict(what, "≥ 0.97", "", None)
    worst = min(ratios, key=lambda n: ratios[n])
    found = f"{ratios[worst]:.3g} at n = {worst}, the worst of {len(ratios)} lengths"
    return Verdict(what, "≥ 0.97", found, ratios[worst] >= 0.97)
