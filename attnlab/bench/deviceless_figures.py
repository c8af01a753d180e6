"""Memory over length for accelerators that are not there: a row of panels a target."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from attnlab.bench import figures
from attnlab.bench.case import Result
from attnlab.bench.deviceless_report import by_target, pass_title, passes_of
from attnlab.records import figure_files

_HEIGHT, _TOP, _BOTTOM = 4.3, 0.35, 0.15  # of a row of panels, the title, the foot, in inches
_WIDTH = 6.3  # of a panel with the names to its right


def save(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes memory.svg and memory.png; nothing where nothing compiled.

    Returns:
      The files written.
    """
    return figure_files.save({"memory": draw(results)}, folder)


def draw(results: Sequence[Result]) -> Figure | None:
    """The figure, or None where there is nothing to draw."""
    known = [r.memory_bytes for r in results if r.memory_bytes]
    if not any(r.status == "ok" for r in results):
        return None
    rows, passes = by_target(results), passes_of(results)
    low, high = min(known), max([*known, *(r.available_bytes or 0 for r in results)])
    limits = (low / 1.5, high * max((high / low) ** 0.08, 1.3))
    with figure_files.style():
        figure = Figure(figsize=(_WIDTH * len(passes), _HEIGHT * len(rows) + _TOP + _BOTTOM))
        wide, tall = figure.get_size_inches()
        column = _WIDTH / wide
        for i, (target, of_target) in enumerate(rows.items()):
            for j, name in enumerate(passes):
                chosen = [r for r in of_target if r.case.passes == name]
                if not any(r.status == "ok" for r in chosen):
                    continue
                bottom = _BOTTOM + (len(rows) - 1 - i) * _HEIGHT + 0.45
                left = j * column + 0.62 / wide
                axes = figure.add_axes((left, bottom / tall, 3.6 / wide, (_HEIGHT - 0.8) / tall))
                axes.set_title(f"{target}, {pass_title(chosen[0].case)}")
                figures.scales(axes, of_target, "memory")
                axes.set_ylim(*limits)
                figures.fill(axes, chosen, "memory")
        title = "\n".join(textwrap.wrap(_title(results), 80 * len(passes)))
        figure.text(0.62 / wide, 1 - 0.2 / tall, title, fontsize=9.5, va="center")
    return figure


def _title(results: Sequence[Result]) -> str:
    case = results[0].case
    split = "" if case.shard is None else f", {case.shard} split, of one device"
    return (
        f"Memory over length n, compiled without the device — batch {case.batch}, "
        f"{case.num_heads} heads × {case.head_dim}, {case.dtype}"
        f"{', causal' if case.causal and case.num_layers is None else ''}{split}"
    )
