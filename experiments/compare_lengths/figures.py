"""The two figures of a run, time and memory over length: pure functions of its rows."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from attnlab.bench.case import PASS_TITLES, PASSES, Result
from attnlab.bench.panels import Panel
from attnlab.bench.panels import draw as draw_panels


def draw(results: Sequence[Result], quantity: str, device: str) -> Figure | None:
    """One figure with a panel for each pass, or None where there is nothing to draw.

    Args:
      results: the rows.
      quantity: "time" or "memory".
      device: name of the device that the rows were measured on.
    """
    panels = [Panel(PASS_TITLES[p], [r for r in results if r.case.passes == p]) for p in PASSES]
    case = results[0].case
    title = (
        f"{'Time of one call' if quantity == 'time' else 'Memory'} over length n — batch "
        f"{case.batch}, {case.num_heads} heads × {case.head_dim}, {case.dtype}"
        f"{', causal' if case.causal else ''}{' — ' * bool(device)}{device}"
    )
    return draw_panels([[panel for panel in panels if panel.results]], quantity, title)
