"""The section on the share of the machine's peak, from made-up rows."""

import dataclasses

import pytest

from attnlab.bench.case import Operations
from attnlab.bench.roofline import UNITS, Peak, Unit
from experiments.compare_lengths import report, shares
from tests.bench import rows

PEAKS = [Peak(Unit(name, "float32"), 1e11 if name == "products" else 1e9) for name in UNITS]


def counted(label, length, products, **functions):
    """A row that takes 20 ms at 1024 tokens, `dot`, or 60 ms, `lsh`."""
    operations = Operations(products, functions)
    return dataclasses.replace(rows.row(label, length), operations=operations)


def test_a_share_is_the_least_time_over_the_median():
    results = [counted("dot", 1024, 1e9, exp=5e6), counted("lsh-4", 1024, 1e8, exp=2e6, tanh=4e6)]
    results.append(rows.row("dot", 2048))
    text = "\n".join(shares.section(results, PEAKS))
    squeezed = " ".join(text.split())
    assert "| n | dot | lsh-4 | | ---- | -----------: | ------------: |" in squeezed
    assert "| 1024 | 50% products | 10% functions |" in squeezed and "2048" not in squeezed
    assert "| matrix products | float32 | 100 GFLOP/s |" in squeezed
    assert "### Forward, share" in text and "backward" not in text


def test_without_a_peak_or_a_count_there_is_no_section():
    results = [counted("dot", 1024, 1e9)]
    lost = dataclasses.replace(PEAKS[0], rate=0.0, message="killed")
    assert shares.section(results, [lost, *PEAKS[1:]]) == []
    assert shares.section([rows.row("dot", 1024)], PEAKS) == []
    assert shares.section(results, PEAKS) and report.line(lost) == "killed"


def test_what_was_counted_in_place_of_a_kernel_is_said():
    one = dataclasses.replace(counted("dot", 1024, 1e9), operations_of="another program")
    assert shares.section([one], PEAKS)[-1] == "Counted is another program: dot."


@pytest.mark.parametrize(
    ("rate", "text"), [(2.5e12, "2.5 TFLOP/s"), (8.54e10, "85.4 GFLOP/s"), (5e8, "500 MFLOP/s")]
)
def test_a_rate_for_a_reader(rate, text):
    assert report.rate(Peak(Unit("products", "float32"), rate)) == text
    assert report.rate(Peak(Unit("exp", "float32"), rate)) == text.replace("FLOP", "")
