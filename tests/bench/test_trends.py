import pytest

from attnlab.bench import trends
from tests.bench import rows


def test_exponent_is_that_of_the_longer_lengths():
    fixed_cost = {n: 1e-3 + 1e-9 * n**2 for n in (64, 128, 256, 65536, 131072, 262144)}
    assert trends.exponent(fixed_cost) == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("line", [{}, {1024: 0.5}])
def test_exponent_needs_two_lengths(line):
    assert trends.exponent(line) is None


def test_crossover_names_the_first_measured_length_and_where_the_lines_meet():
    quadratic = {n: 1e-8 * n**2 for n in (512, 1024, 2048, 4096)}
    linear = {n: 1.5e-5 * n for n in (512, 1024, 2048, 4096)}  # meet at n = 1500
    (found,) = trends.crossovers({"quadratic": quadratic, "linear": linear})
    assert (found.winner, found.loser) == ("linear", "quadratic")
    assert (found.before, found.length) == (1024, 2048)
    assert found.crossing == pytest.approx(1500)


def test_no_crossover_where_the_order_never_changes_or_ends_in_a_tie():
    slow, fast = {512: 2.0, 1024: 4.0}, {512: 1.0, 1024: 2.0}
    assert trends.crossovers({"slow": slow, "fast": fast}) == []
    assert trends.crossovers({"a": {512: 2.0, 1024: 4.0}, "b": {512: 1.9, 1024: 4.1}}) == []


def test_crossover_uses_only_lengths_that_both_ran():
    dense, other = {512: 1.0, 1024: 4.0}, {512: 2.0, 2048: 3.0}
    assert trends.crossovers({"dense": dense, "other": other}) == []


def test_fits_tells_measured_from_extrapolated():
    found = trends.fits(rows.run(), "forward")
    dense, lsh = found["dot (dense)"], found["lsh"]
    assert (dense.largest, dense.too_large) == (8192, 16384)
    assert dense.estimate == pytest.approx(1024 * (23 * 8) ** 0.5, rel=0.01)  # 128 MiB at 1024
    assert (lsh.largest, lsh.too_large) == (16384, None)
    assert lsh.estimate == pytest.approx(1024 * 23 * 64, rel=0.01)


def test_rows_without_a_result_are_no_points():
    lines = trends.lines(rows.run(), "forward_backward", trends.seconds)
    assert max(lines["dot (dense)"]) == 4096  # at 8192 it was too slow, at 16384 too large
    assert list(lines) == list(rows.GROWTH)
