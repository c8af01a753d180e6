"""Seconds, bytes and scores of several seeds for a reader."""

import math
import statistics
from collections.abc import Sequence

from attnlab.runs.intervals import half_width

PLUS_MINUS = "± is half of the 95 % interval of the mean over seeds (Student's t)."


def duration(seconds: float | None) -> str:
    """Seconds: three digits.

    >>> duration(0.01234), duration(9.999), duration(4.2e-5), duration(float("nan"))
    ('12.3 ms', '10.0 s', '42.0 µs', 'nan s')
    """
    if seconds is None:
        return ""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    size, unit = next((u for u in units if seconds >= 0.9995 * u[0]), units[-1])
    return f"{_three_digits(seconds / size)} {unit}"


def human(size: float | None) -> str:
    """Bytes: three digits and a binary unit.

    >>> human(1_500), human(9.999 * 2**30), human(None)
    ('1.46 KiB', '10.0 GiB', '')
    """
    if size is None:
        return ""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while size >= 999.5 and power < len(units) - 1:
        size, power = size / 1024, power + 1
    return f"{_three_digits(size) if power else f'{size:.0f}'} {units[power]}"


def _three_digits(x: float) -> str:
    whole = len(str(int(float(f"{x:.3g}"))))  # of what is shown: 9.999 is 10.0
    return f"{x:.{max(0, 3 - whole)}f}"


def spread(values: Sequence[float], form: str) -> str:
    """The mean of some values and, if there are several, ± half of its 95 % interval.

    >>> spread([2.0], ".1f"), spread([1.0, 2.0, 3.0], "+.1f")
    ('2.0', '+2.0 ± 2.5')
    """
    mean = format(statistics.fmean(values), form)
    return mean if len(values) == 1 else f"{mean} ± {half_width(values):{form.lstrip('+')}}"
