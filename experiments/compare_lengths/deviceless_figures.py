"""Memory over length for accelerators that are not there: a row of panels for each target."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from attnlab.bench.case import AXES, Result, axis_of, passes_of
from attnlab.bench.panels import Panel
from attnlab.bench.panels import draw as draw_panels
from experiments.compare_lengths.deviceless_report import by_target, pass_title


def draw(results: Sequence[Result]) -> Figure | None:
    """The figure, or None where there is nothing to draw."""
    grid = []
    for target, rows in by_target(results).items():
        row = []
        for name in passes_of(results):
            chosen = [r for r in rows if r.case.passes == name]
            if any(r.status == "ok" for r in chosen):
                row.append(Panel(f"{target}, {pass_title(chosen[0].case)}", chosen))
        grid += [row] * bool(row)
    return draw_panels(grid, "memory", _title(results)) if grid else None


def _title(results: Sequence[Result]) -> str:
    case, axis = results[0].case, axis_of(results)
    fixed = ", ".join(
        [f"batch {case.batch}"] * (axis != "batch") + [f"{case.length} tokens"] * (axis != "length")
    )
    split = "" if case.shard is None else f", {case.shard} split, of one device"
    return (
        f"Memory over {AXES[axis].title}, compiled without the device — {fixed}, "
        f"{case.num_heads} heads × {case.head_dim}, {case.dtype}"
        f"{', causal' if case.causal and case.num_layers is None else ''}{split}"
    )
