"""A training in several processes has the numbers of one process with as many devices."""

import functools
import json

import jax
import numpy as np
import pytest

from tests import several
from tests.training.processes_script import OF_TWO, trained


def of_processes(count, folder):
    out = folder / "numbers.json"
    found = several.run(count, "tests.training.processes_script", str(out), quick=True)
    assert [one.status for one in found] == [0] * count, found[-1].err
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return of_processes(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What one process with two devices trains, by case."""

    @functools.cache
    def of(case):
        return trained(*OF_TWO[case], tmp_path_factory.mktemp("whole") / case, jax.devices()[:2])

    return of


@pytest.mark.parametrize("case", OF_TWO)
def test_two_processes_train_as_one_with_two_devices_bit_for_bit(two, whole, case):
    """Two addends have one order; the rows of a process follow those of the one before."""
    expected = whole(case)
    assert [row["step"] for row in expected["rows"]] == [2, 3, 4, 6, 6]
    assert two[case] == expected


@pytest.mark.slow
def test_four_processes_train_as_two_devices_but_for_rounding(whole, tmp_path):
    """Sums of four have another order, so that the numbers differ in their last digits."""
    found = of_processes(4, tmp_path / "four")
    np.testing.assert_allclose(
        found["batch"]["numbers"], whole("batch")["numbers"], rtol=1e-4, atol=1e-6
    )
    text = whole("positions")
    for name in ("state", "positions"):
        np.testing.assert_allclose(found[name]["numbers"], text["numbers"], rtol=1e-4, atol=1e-5)
