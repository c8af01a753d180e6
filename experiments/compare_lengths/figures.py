"""The two figures of a run, time and memory over length: pure functions of its rows."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from attnlab.bench.case import PASSES, Result
from attnlab.bench.panels import Panel
from attnlab.bench.panels import draw as draw_panels
from attnlab.runs import figure_files
from attnlab.bench.case import PASS_TITLES


def save(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes time.svg, time.png, memory.svg and memory.png; nothing where no case ran or compiled.

    Returns:
      The files written.
    """
    return figure_files.save({name: draw(results, name) for name in ("time", "memory")}, folder)


def draw(results: Sequence[Result], quantity: str) -> Figure | None:
    """One figure, a panel a pass, or None where there is nothing to draw."""
    if not results:
        return None
    panels = [Panel(PASS_TITLES[p], [r for r in results if r.case.passes == p]) for p in PASSES]
    case = results[0].case
    devices = {str(r.environment["device"]) for r in results if r.environment.get("device")}
    title = (
        f"{'Time of one call' if quantity == 'time' else 'Memory'} over length n — batch "
        f"{case.batch}, {case.num_heads} heads × {case.head_dim}, {case.dtype}"
        f"{', causal' if case.causal else ''}{' — ' * bool(devices)}{' / '.join(sorted(devices))}"
    )
    return draw_panels([[panel for panel in panels if panel.results]], quantity, title)
