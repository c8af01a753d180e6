"""Each implementation that serves a scenario is right on the accelerator that is there."""

from collections import defaultdict

import pytest

from tests.device.scenarios import DEFAULT, checks

MUST_SERVE = {"gpu": {"cudnn"}, "tpu": {"splash", "pallas"}, "cpu": {"pallas"}}
_STATUSES = defaultdict(set)  # by implementation


@pytest.mark.parametrize("check", checks(), ids=str)
def test_it_computes_what_float64_does(check, checked):
    row = checked(check)
    _STATUSES[check.implementation].add(row.status)
    if row.status == "refused" and check.implementation != DEFAULT:
        pytest.skip(row.message)
    assert row.status == "pass", row.message


def test_no_kernel_of_this_device_refused_everything(device):
    """Each would be a silent pass."""
    kernels = MUST_SERVE[device.environment["platform"]] & _STATUSES.keys()
    assert not [name for name in kernels if _STATUSES[name] == {"refused"}]
