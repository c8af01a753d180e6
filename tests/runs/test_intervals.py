"""Intervals of the means of a few seeds, against printed quantiles and chance."""

import math
import random

import pytest

from attnlab.runs.intervals import describe_undecided, half_width, p_value, reject_by_holm, side


@pytest.mark.parametrize(
    ("count", "comparisons", "quantile"),
    [(2, 1, 12.706), (3, 1, 4.303), (4, 1, 3.182), (5, 1, 2.776), (31, 1, 2.042), (5, 5, 4.604)],
)  # fmt: skip
def test_the_quantiles_are_students(count, comparisons, quantile):
    values = [1.0, -1.0] * (count // 2) + [0.0] * (count % 2)
    error = math.sqrt(sum(x * x for x in values) / (count - 1) / count)
    assert half_width(values, comparisons=comparisons) / error == pytest.approx(quantile, abs=1e-3)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_equal_models_are_told_apart_in_five_percent_at_most(count):
    rng = random.Random(count)
    runs = [[rng.gauss(0, 1) for _ in range(count)] for _ in range(2000)]
    share = sum(side(0, values) is not None for values in runs) / len(runs)
    assert share == 0 if count == 2 else 0.03 < share < 0.07


def test_the_interval_of_a_gap_is_welchs():
    """Samples that vary alike have 4 degrees of freedom; beside one that does not, 2 are left."""
    one, other = [0.8, 1.0, 1.2], [3.8, 4.0, 4.2]
    error = (2 * 0.2**2 / 3) ** 0.5
    assert half_width(one, other) == pytest.approx(2.776 * error, rel=1e-3)
    assert half_width(one, [5.0] * 3) == pytest.approx(4.303 * error / 2**0.5, rel=1e-3)


@pytest.mark.parametrize(("gap", "tie"), [(1.0, 0.3), (0.1, 1.0)])
def test_as_many_seeds_as_are_said_would_decide_and_fewer_would_not(gap, tie):
    """Repeated, values have the same variance but for n − 1 over n, which is made up for."""
    for n in (3, int(describe_undecided(tie, *varied(3, gap)).split()[1])):
        decided = side(tie, *varied(n, gap)) is not None
        assert decided == (n > 3)
        assert side(tie, *varied(n - 1, gap)) is None


@pytest.mark.parametrize("samples", [([0.0, 0.0],), ([1.0, 1.0],), ([1.0, 1.0], [9.0, 9.0])])
def test_of_two_equal_seeds_nothing_is_said_but_that(samples):
    """They bound no effect by ±0, and do not say how many seeds would decide it."""
    assert side(0, *samples) is None
    assert describe_undecided(0, *samples) == "undecided: equal seeds show no variance"


def test_two_seeds_decide_nothing_against_three_either():
    assert side(0, [1.0, 1.0], [9.0, 9.1, 9.2]) is side(0, [9.0, 9.1, 9.2], [1.0, 1.0]) is None
    assert side(0, [1.0, 1.0, 1.0], [9.0, 9.1, 9.2]) == -1


def varied(count, gap):
    """Two samples with a standard deviation of 1 each and a gap of their means."""
    values = [math.sin(i) for i in range(count)]
    mean = sum(values) / count
    spread = math.sqrt(sum((x - mean) ** 2 for x in values) / max(count - 1, 1))
    return [[(x - mean) / spread + shift for x in values] for shift in (gap, 0.0)]


@pytest.mark.parametrize("samples", [([0.2, 0.9, 1.3],), ([1.0, 1.2, 1.7], [0.1, 0.2, 0.9])])
def test_a_mean_is_as_probable_as_its_interval_says(samples):
    """The interval that just touches 0 has a p-value of 5 %, one that just fits a tie 2.5 %."""
    mean = sum(samples[0]) / 3
    touching = [[x - mean for x in samples[0]], *([y - sum(z) / 3 for y in z] for z in samples[1:])]
    width = half_width(*touching)
    moved = [[x + width * (1 + 1e-9) for x in touching[0]], *touching[1:]]
    assert p_value(0, *moved) == pytest.approx(0.05, rel=1e-6)
    farther = [[x + 0.1 for x in moved[0]], *touching[1:]]
    assert p_value(0.1, *farther, beyond=0.1) == pytest.approx(0.05, rel=1e-6)
    shifted = [[x + 0.1 for x in touching[0]], *touching[1:]]
    assert p_value(0.1 + width * (1 + 1e-9), *shifted) == pytest.approx(0.025, rel=1e-6)


def test_of_many_equal_models_holm_tells_any_apart_in_five_percent_at_most():
    rng = random.Random(0)
    trials = [
        [p_value(0, [rng.gauss(0, 1) for _ in range(3)]) for _ in range(10)] for _ in range(500)
    ]
    assert 0.01 < sum(any(reject_by_holm(some)) for some in trials) / 500 < 0.08
    assert sum(any(p <= 0.05 for p in some) for some in trials) / 500 > 0.3
