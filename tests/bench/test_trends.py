import dataclasses

import numpy as np
import pytest

from attnlab.bench import trends
from tests.bench import rows


def test_growth_is_that_of_the_longer_lengths():
    fixed_cost = {n: 1e-3 + 1e-9 * n**2 for n in (8, 16, 32, 64, 2**15, 2**16, 2**17, 2**18)}
    found = trends.growth(fixed_cost)
    assert found.power == pytest.approx(2.0, abs=1e-3) and found.error < 1e-3


@pytest.mark.parametrize("lengths", [(), (1024,), (512, 1024, 2048)])
def test_growth_needs_four_lengths(lengths):
    assert trends.growth({n: 1e-9 * n**2 for n in lengths}) is None


def test_growth_has_the_standard_error_of_the_slope():
    line = {512: 1.0, 1024: 2.2, 2048: 3.7, 4096: 8.4}
    x, y = np.log(np.array(list(line.items()))).T
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    found = trends.growth(line)
    assert (found.power, found.error) == pytest.approx((slope, covariance[0, 0] ** 0.5))
    assert str(found) == "1.00 ± 0.06"
    assert str(dataclasses.replace(found, error=0.2)) == "1.0 ± 0.2"


def test_growth_of_noisy_repeats_is_less_sure_or_unknown():
    line = {n: 1e-9 * n**2 for n in (512, 1024, 2048, 4096)}
    noise = dict.fromkeys(line, 0.2)
    x = np.log(list(line)) - np.mean(np.log(list(line)))
    assert trends.growth(line, noise).error == pytest.approx(0.2 / np.sqrt(x @ x))
    assert trends.growth(line, dict.fromkeys(line, 1.0)) is None


def test_spreads_are_standard_errors_of_logarithms():
    row = rows.row("dot", 512, seconds=(1.0, np.e, np.e**2))
    assert trends.spreads([row], "forward") == {"dot": {512: pytest.approx(1 / np.sqrt(3))}}
    deeper = [
        dataclasses.replace(row, case=dataclasses.replace(row.case, num_layers=n)) for n in (1, 2)
    ]
    assert set(trends.spreads(deeper, "forward")["dot"]) == {1, 2}  # as `lines` has them


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        ((1.0, 4.0, 16.0, 64.0), []),
        ((1.0, 2.0, 4.0, 8.0), []),
        ((1.0, 1.0, 1.0, 1.0), []),
        ((1.0, 0.7, 1.2, 1.3), []),  # as short cases are
        ((1.0, 1.0, 0.5, 1.0), [1024, 2048]),  # faster though longer
        ((1.0, 7.0, 4.0, 8.0), [1024, 2048]),
        ((1.0, 2.0, 4.0, 50.0), [4096]),  # the longest: no attention grows so
    ],
)
def test_what_does_not_go_with_its_neighbors(values, lengths):
    line = dict(zip((512, 1024, 2048, 4096), values, strict=True))
    assert trends.disagreeing(line) == lengths


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
    dense, lsh = found["dot:dense"], found["lsh-4"]
    assert (dense.largest, dense.too_large) == (8192, 16384)
    assert dense.estimate == pytest.approx(1024 * (23 * 8) ** 0.5, rel=0.01)  # 128 MiB at 1024
    assert (lsh.largest, lsh.too_large) == (16384, None)
    assert lsh.estimate == pytest.approx(1024 * 23 * 64, rel=0.01)
    assert (dense.extrapolated, lsh.extrapolated) == ("≈ 14,000", "> 260,000")  # 16 × 16384


@pytest.mark.parametrize("axis", ["batch", "num_layers"])
def test_of_a_batch_or_a_depth_that_fits_a_part_is_a_constant(axis):
    found = []
    for count in (2, 4):
        row = rows.row("lsh-4", 512, temporary_bytes=(3 + 2 * count) * rows.GIB)
        case = dataclasses.replace(row.case, **{axis: count})
        found.append(dataclasses.replace(row, case=case))
    (fit,) = trends.fits(found, "forward").values()
    assert (fit.largest, fit.too_large, fit.estimate) == (4, None, 10)  # of 23 GiB


@pytest.mark.parametrize(("seen", "lengths"), [(2**40, [1024, 2048]), (None, [1024, 2048, 4096])])
def test_what_a_program_says_does_not_continue_what_runs_were_seen_to_take(seen, lengths):
    found = [rows.row("dot:dense", n, resident_peak_bytes=seen) for n in (1024, 2048)]
    found += [rows.row("dot:dense", 4096, status="too_slow", resident_peak_bytes=None)]
    assert list(trends.lines_of_memory(found, "forward")["dot:dense"]) == lengths
    assert trends.fits(found, "forward")["dot:dense"].known == lengths[-1]


def test_rows_without_a_result_are_no_points():
    lines = trends.lines(rows.run(), "forward_backward", trends.seconds)
    assert max(lines["dot:dense"]) == 4096  # at 8192 it was too slow, at 16384 too large
    assert list(lines) == list(rows.GROWTH)
