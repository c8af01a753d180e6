"""The panels of a run: a table, or a plot, of one pass on one target or of one way of scaling.

Strong scaling: the same work over more devices, whose time falls as 1/d at best. Weak scaling: as
much work a device, so a batch that is d times as large, whose time stays the same at best.
"""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from attnlab.bench import panels
from attnlab.bench.case import (
    ACCURACY,
    AXES,
    PASS_TITLES,
    TRAIN_STEP,
    Case,
    Result,
    axis_of,
    passes_of,
)
from attnlab.bench.panels import Panel
from attnlab.bench.tables import Cell, over_axis
from attnlab.runs.report import group

QUANTITIES = {"time": "Time of one call", "memory": "Memory"}


def grid_of(results: Sequence[Result]) -> list[list[Panel]]:
    """A row of panels, one a pass, for each target and for strong and weak scaling."""
    grid = []
    for name, rows in groups_of(results).items():
        row = []
        for passes in passes_of(rows):
            chosen = [result for result in rows if result.case.passes == passes]
            title = ", ".join(filter(None, [name, pass_title(chosen[0].case)]))
            row.append(Panel(title, chosen))
        grid.append(row)
    return grid


def groups_of(results: Sequence[Result]) -> Mapping[str, Sequence[Result]]:
    """The rows of each target, or of strong and of weak scaling, which share the fewest devices.

    Without those of accuracy, which are neither timed nor watched.
    """
    results = [result for result in results if result.case.passes != ACCURACY]
    if not results or axis_of(results) != "devices":
        return group(results, lambda result: result.case.target or "")
    fewest = min(r.case.devices for r in results)
    batch = min(r.case.batch for r in results)
    return {
        "strong scaling": [r for r in results if r.case.batch == batch],
        "weak scaling": [r for r in results if r.case.batch * fewest == batch * r.case.devices],
    }


def pass_title(case: Case) -> str:
    """The name of a case's pass: "forward", or "training step of translate"."""
    title = PASS_TITLES[case.passes]
    return f"{title} of {case.program}" if case.passes == TRAIN_STEP else title


def tables(results: Sequence[Result], cell: Cell, of_what: str = "") -> list[str]:
    """A table for each panel that has anything to show, behind its heading."""
    parts = []
    for panel in (panel for row in grid_of(results) for panel in row):
        if any(map(cell, panel.results)):
            parts += [f"{heading_of(panel)}{of_what}", over_axis(panel.results, cell)]
    return parts


def heading_of(panel: Panel) -> str:
    """The heading of a panel's table; the name of a target stays as it is."""
    is_named = panel.results[0].case.target is not None
    return f"### {panel.title if is_named else panel.title.capitalize()}"


def draw(results: Sequence[Result], quantity: str, device: str = "") -> Figure | None:
    """The figure of "time" or "memory"; None where there is nothing to draw."""
    grid = grid_of(results)
    if not grid:
        return None
    case, axis = results[0].case, axis_of(results)
    title = f"{QUANTITIES[quantity]} over {AXES[axis].title.partition(' (')[0]}"
    if case.target is not None:
        title += ", compiled without the device"
    sizes = []
    if axis not in ("batch", "devices"):
        sizes.append(f"batch {case.batch}")
    if axis != "length":
        sizes.append(f"{case.length} tokens")
    sizes += [f"{case.num_heads} heads × {case.head_dim}", case.dtype]
    if case.causal and case.num_layers is None:
        sizes.append("causal")
    if max(result.case.devices for result in results) > 1:
        sizes.append(f"{case.shard or 'batch'} divided")
    parts = [title, ", ".join(sizes), device]
    return panels.draw(grid, quantity, " — ".join(filter(None, parts)))
