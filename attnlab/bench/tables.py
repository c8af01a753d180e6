"""Tables of measurements over length, depth or devices, as Markdown."""

from collections.abc import Callable, Sequence

from attnlab.bench.case import AXES, SHORT, Result, axis_of, size_of
from attnlab.runs.markdown import markdown_table
from attnlab.runs.units import duration, human

Cell = Callable[[Result | None], str]


def over_axis(results: Sequence[Result], cell: Cell) -> str:
    """A Markdown table, lengths (or layers, batches, devices) down and mechanisms across.

    Args:
      results: the rows, of one pass.
      cell: function of a row, None where there is none, that gives its cell.
    """
    axis = axis_of(results)
    chosen = {(size_of(r, axis), r.case.label): r for r in results}
    labels = list(dict.fromkeys(label for _, label in chosen))
    rows = [
        [str(n), *(cell(chosen.get((n, label))) for label in labels)]
        for n in sorted({n for n, _ in chosen})
    ]
    return markdown_table([AXES[axis].column, *labels], rows)


def time(result: Result | None) -> str:
    """The median, and half the range in percent."""
    if result is None:
        return ""
    if result.status != "ok":
        return _why(result)
    if not result.seconds:
        return ""
    middle = result.median_seconds or 0.0
    cell = duration(middle)
    if len(result.seconds) > 1:
        spread = (max(result.seconds) - min(result.seconds)) / 2 / middle
        cell += f" ±{spread:.0%}"
    return f"{cell} (busy)" if result.busy else cell


def memory(result: Result | None) -> str:
    """The bytes, with * where the process was seen to take them."""
    if result is None:
        return ""
    if result.status == "ok":
        seen = result.memory_source == "resident"
        return f"{human(result.memory_bytes)} *" if seen else human(result.memory_bytes)
    known = human(result.memory_bytes) if result.status == "too_slow" else ""
    what = "stopped" if result.message.startswith("stopped") else "not run"
    return f"{known} ({what})" if known else _why(result)


def _why(result: Result) -> str:
    return result.message if result.message.startswith("needs ") else SHORT[result.status]
