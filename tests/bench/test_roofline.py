"""Peaks, least times, and the operations of cases, against what they are by hand."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from attnlab.bench import inputs, model_programs, peaks, targets, work
from attnlab.bench.case import Case, Operations, Result, Sent
from attnlab.bench.measure import measure
from attnlab.bench.roofline import UNITS, Bound, Peak, Rates, Unit
from attnlab.devices.platforms import compiling_for
from tests.daily import daily

SMALL = {"num_heads": 2, "head_dim": 7, "ops_only": True}


def test_the_unit_with_most_to_do_decides():
    rates = Rates(100.0, {"exp": 10.0, "tanh": 5.0}, memory=50.0)
    assert rates.bound(Operations(300, {"exp": 20, "tanh": 5})) == Bound(3.0, "products")
    assert rates.bound(Operations(200, {"exp": 20, "tanh": 5})) == Bound(3.0, "functions")
    assert rates.bound(Operations(300, {}), 200) == Bound(4.0, "memory")
    assert rates.bound(Operations(0, {"erf": 20})) == Bound(2.0, "functions")  # as the fastest
    assert Rates(100.0, {}).bound(Operations(100, {"exp": 1e9})) == Bound(1.0, "products")
    nothing, joined = Operations(0, {}), Rates(100.0, {}, links=50.0, hosts=10.0)
    assert joined.bound(nothing, sent=Sent(220, between_hosts=20)) == Bound(4.0, "links")
    assert joined.bound(nothing, sent=Sent(220, between_hosts=60)) == Bound(6.0, "hosts")
    assert Rates(100.0, {}).bound(Operations(100, {}), sent=Sent(1e9, 1e9)).by == "products"


def test_rates_need_every_peak():
    found = [Peak(Unit(name, "float32"), 1.0 + i) for i, name in enumerate(UNITS)]
    assert Rates.of_peaks(found) == Rates(1.0, {"exp": 2.0, "tanh": 3.0, "div": 4.0})
    assert Rates.of_peaks([*found[:-1], dataclasses.replace(found[-1], rate=0.0)]) is None


@pytest.mark.parametrize("device", targets.known_devices().values(), ids=lambda device: device.name)
def test_published_peaks_are_of_one_device_of_a_chip(device):
    rates = Rates.of_device(device)
    assert 100e12 < rates.products < 3000e12 and 0.5e12 < rates.memory < 10e12
    assert rates.products * device.devices_per_chip == device.bf16_tflops * 1e12
    assert rates.links > 100e9 and rates.hosts > 20e9
    if device.name == "h100":  # half of 900 GB/s each way; 400 Gbit/s of InfiniBand
        assert (rates.links, rates.hosts) == (450e9, 50e9)
    if device.name == "v5e":
        assert (rates.links, rates.hosts) == (200e9, math.inf)
    # NVIDIA's A100: 108 multiprocessors at 1.41 GHz.
    assert (device.kind == "cuda") == bool(rates.functions)
    if device.name == "a100-80":
        assert rates.functions[""] == pytest.approx(16 * 108 * 1.41e9)


@pytest.fixture(scope="module")
def rates():
    """Of this machine."""
    return Rates.of_peaks(peaks.measure(Unit(one, "float32"), repeats=2) for one in UNITS)


@pytest.mark.parametrize("name", daily(["exact", "additive"], "exact"))
def test_no_program_is_faster_than_its_least_time(name, rates):
    """Here the two are far apart: the program is small."""
    case = Case(name, 64, implementation="dense", **SMALL)
    row = measure(case, inputs.read(), repeats=3)
    least = rates.bound(work.count_case(case)[0])
    assert 0 < least.seconds < min(row.seconds)


def test_a_kernel_is_counted_by_what_its_mask_leaves():
    """In blocks, of tiles that the diagonal halves, it would be more."""
    case = Case("exact", 64, "forward_backward", implementation="pallas", **SMALL)
    found, what = work.count_case(case)
    pairs = 64 * 65 // 2
    loss = 2 * 2 * 64 * 2 * 7
    assert what == work.NEEDED
    assert found.products == pytest.approx(6 * 2 * pairs * 2 * 7 + loss)
    assert found.functions == {"exp": pytest.approx(2 * pairs)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "reach"), [("exact", 13), ("window-3", 3), ("window-99", 99)])
def test_visible_pairs(name, reach, causal):
    case = Case(name, 13, causal=causal)
    left = right = reach
    seen = [
        (i, j)
        for i in range(13)
        for j in range(13)
        if i - left <= j <= (i if causal else i + right)
    ]
    assert work.visible_pairs(case) == len(seen)


def test_visible_pairs_of_a_translation_are_the_mean_of_its_three_kinds_of_attention():
    sizes = {"num_heads": 2, "head_dim": 8, "num_layers": 1, "vocab_size": 61}
    case = Case("window-3", 13, "train_step", program="translate", **sizes)
    alone = [work.visible_pairs(Case("window-3", 13, causal=causal)) for causal in (False, True)]
    assert work.visible_pairs(case) == (sum(alone) + 13**2) / 3


def test_the_devices_of_a_slice_share_the_work():
    case = Case("exact", 64, batch=4, implementation="dense", **SMALL)
    alone, _ = work.count_case(case)
    shared, _ = work.count_case(dataclasses.replace(case, devices=4, shard="batch"))
    assert shared.products == alone.products / 4


def test_a_training_step_counts_six_operations_for_each_parameter_and_token():
    """Kaplan et al. 2020, §2.1: two forward and four backward, beside those of attention."""
    length, width, vocab = 8, 32, 61
    case = Case(
        "exact", length, "train_step", batch=3, num_heads=2, head_dim=16,
        implementation="dense", program="language_model", num_layers=2, vocab_size=vocab,
    )  # fmt: skip
    with compiling_for(targets.parse("v5e").platform):
        found, _ = work.count_case(case, model_programs.traceable)
    matrices = 2 * (4 * width**2 + 2 * width * 4 * width) + vocab * width
    attention = 2 * 2 * length**2 * width  # of the layers, two products
    assert found.products == 3 * 2 * 3 * (length * matrices + attention)
    assert math.isfinite(found.functions["exp"]) and jax.default_backend() == "cpu"


def test_a_model_of_two_attentions_with_kernels_is_the_mean_of_models_of_one():
    sizes = {"num_heads": 2, "head_dim": 8, "num_layers": 2, "vocab_size": 61}
    options = {"program": "language_model", "implementation": "pallas", **sizes}
    names = ["exact", "window-5", "exact+window-5"]
    cases = [Case(name, 32, "train_step", **options) for name in names]
    with compiling_for(targets.parse("v5e").platform):
        found = [work.count_case(case, model_programs.traceable) for case in cases]
    exact, window, both = (operations.products for operations, _ in found)
    assert window < exact and both == pytest.approx((exact + window) / 2)
    assert {what for _, what in found} == {work.NEEDED}


def test_a_program_that_nobody_can_count_has_a_row_without_operations():
    row = Result(Case("exact", 8, **SMALL), "ok", seconds=(1.0,))
    assert work.with_operations(row, lambda case: (jnp.fft.fft, jnp.ones(8))) == row
