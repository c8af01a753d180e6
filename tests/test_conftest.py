import warnings

import jax
import jax.numpy as jnp
import pytest

from tests.daily import daily


def test_two_cpu_devices():
    assert len(jax.devices("cpu")) == 2


def test_rank_promotion_raises():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.zeros((2, 3)) + jnp.zeros(3)


def test_warnings_are_errors():
    with pytest.raises(UserWarning):
        warnings.warn("seen", stacklevel=1)


def test_x64_is_on_in_its_fixture_only(x64):
    assert jnp.zeros(1).dtype == "float64"
    with jax.enable_x64(False):
        assert jnp.zeros(1).dtype == "float32"


def test_default_is_32_bit():
    assert jnp.zeros(1).dtype == "float32"


def test_of_many_cases_the_daily_loop_runs_those_that_are_kept():
    one, other, row = daily(["a", "b", (1, 2)], "a")
    assert one == "a"
    assert [x.values for x in (other, row)] == [("b",), (1, 2)]
    assert [mark.name for x in (other, row) for mark in x.marks] == ["slow", "slow"]
    with pytest.raises(ValueError, match="must be one of the cases; got 'c'"):
        daily(["a", "b"], "c")
