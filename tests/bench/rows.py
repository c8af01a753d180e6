"""Made-up rows with known growth, for the tests of tables, trends and figures."""

from attnlab.bench.case import PASSES, Case, Result

GIB = 2**30
GROWTH = {  # seconds at 1024 tokens, exponent of time; bytes at 1024 tokens, exponent of memory
    "additive": (0.2, 2.0, 2.0**25, 1.0),
    "dot": (0.02, 2.0, 2.0**23, 1.0),
    "dot:dense": (0.04, 2.0, 2.0**27, 2.0),
    "lsh-4": (0.06, 1.05, 2.0**24, 1.0),
}


def row(label: str, length: int, passes: str = "forward", **fields) -> Result:
    """One row that ran, or as `fields` say."""
    name, _, way = label.partition(":")
    case = Case(name, length, passes, implementation=way or None)
    seconds, time_power, size, memory_power = GROWTH[label]
    factor = 1 if passes == "forward" else 3
    middle = factor * seconds * (length / 1024) ** time_power
    total = round(factor * size * (length / 1024) ** memory_power)
    return Result(
        **dict(
            case=case,
            status="ok",
            seconds=(0.9 * middle, middle, middle, middle, 1.2 * middle),
            compile_seconds=1.5,
            argument_bytes=0,
            output_bytes=0,
            temporary_bytes=total,
            resident_peak_bytes=round(0.99 * total),
            available_bytes=23 * GIB,
        )
        | fields
    )


def run() -> list[Result]:
    """A run over four mechanisms in which long dense cases do not fit and one is too slow."""
    rows = []
    for label in GROWTH:
        for length in (512, 1024, 2048, 4096, 8192, 16384):
            for passes in PASSES:
                result = row(label, length, passes)
                lost = {}
                if result.memory_bytes > 23 * GIB:
                    needs = f"needs {result.memory_bytes / GIB:.1f} GiB of 23.0 GiB"
                    lost = dict(status="too_large", message=needs)
                elif result.seconds[0] > 30:
                    lost = dict(status="too_slow", message="not run: about 77 s a call")
                if lost:
                    lost |= dict(seconds=(), resident_peak_bytes=None)
                rows.append(row(label, length, passes, **lost))
    return rows
