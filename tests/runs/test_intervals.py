"""Intervals of the means of a few seeds, against printed quantiles and chance."""

import math
import random

import pytest

from attnlab.runs.intervals import half_width, sign


@pytest.mark.parametrize(
    ("count", "comparisons", "quantile"),
    [(2, 1, 12.706), (3, 1, 4.303), (4, 1, 3.182), (5, 1, 2.776), (31, 1, 2.042), (5, 5, 4.604)],
)  # fmt: skip
def test_the_quantiles_are_students(count, comparisons, quantile):
    values = [1.0, -1.0] * (count // 2) + [0.0] * (count % 2)
    error = math.sqrt(sum(x * x for x in values) / (count - 1) / count)
    assert half_width(values, comparisons) / error == pytest.approx(quantile, abs=1e-3)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_equal_models_are_told_apart_in_five_percent_at_most(count):
    rng = random.Random(count)
    runs = [[rng.gauss(0, 1) for _ in range(count)] for _ in range(2000)]
    share = sum(sign(values) != 0 for values in runs) / len(runs)
    assert share == 0 if count == 2 else 0.03 < share < 0.07
