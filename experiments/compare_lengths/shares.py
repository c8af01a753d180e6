"""How near each mechanism is to the limit of its machine: a section of the report."""

from collections.abc import Sequence

from attnlab.bench.case import PASS_TITLES, PASSES, Result
from attnlab.bench.roofline import Peak, Rates
from attnlab.bench.tables import over_axis
from attnlab.runs.markdown import markdown_table
from experiments.compare_lengths import report


def section(results: Sequence[Result], peaks: Sequence[Peak]) -> list[str]:
    """The peaks that were measured, and the share of them that each case reaches.

    Args:
      results: rows of the run.
      peaks: peaks that the run measured.

    Returns:
      Markdown with a heading; empty where a peak is missing or nothing was counted.
    """
    rates = Rates.of_peaks(peaks)
    counted = [r for r in results if r.operations is not None and r.seconds]
    if rates is None or not counted:
        return []
    rows = [[_NAMES.get(x.unit.name, x.unit.name), x.unit.dtype, report.rate(x)] for x in peaks]
    parts = [
        "## Share of the machine's peak",
        _NOTE,
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


_NAMES = {"products": "matrix products", "div": "division"}
_NOTE = (
    "The share is the least time over the median time; the least time is that of the unit that has "
    "most to do at its peak, as both may work at once (the roofline of Williams et al. 2009). The "
    "units: *products* of matrices, and *functions*, which are exponentials, tanh, divisions and "
    "the like. Counted is what the traced program does, also what the mask hides; additions, "
    "sorting and moving numbers count as nothing, so that a share is rather too small. One above "
    "100% means that a peak was measured beside other work."
)
