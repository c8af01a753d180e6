"""Which accelerator is traced for, and how many devices a CPU is split into."""

import os
import types

import jax
import pytest

from attnlab.devices.platforms import (
    Platform,
    compiling_for,
    current,
    make_cpu_devices,
    variables_for_cpu_devices,
)
from tests.daily import daily
from tests.several import run_python

COUNT = """
import os, sys, jax
from attnlab.devices.platforms import make_cpu_devices
make_cpu_devices(int(sys.argv[1]))
print(len(jax.devices()), os.environ.get("XLA_FLAGS", "").strip())
"""
FLAG = "--xla_force_host_platform_device_count"


class H200Device(types.SimpleNamespace):
    """What JAX says of one."""

    __hash__ = object.__hash__


H200 = H200Device(
    platform="gpu",
    device_kind="NVIDIA H200",
    compute_capability="9.0",
    client=types.SimpleNamespace(platform_version="PJRT C API\ncuda 12090"),
)
EXPECTED = Platform("cuda", "NVIDIA H200", (9, 0))


def while_tracing():
    found = []
    jax.make_jaxpr(lambda: found.append(current()))()
    return found[0]


@pytest.mark.parametrize("look", [current, while_tracing])
def test_the_default_device_may_be_set(look, monkeypatch):
    assert look().name == "cpu"
    with jax.default_device(H200):
        assert look() == EXPECTED
        with compiling_for(Platform("tpu")):
            assert look().name == "tpu"
    devices = jax.devices
    monkeypatch.setattr(jax, "devices", lambda name=None: devices(name) if name else [H200])
    assert look() == EXPECTED
    for device in ("cpu", devices()[1]):
        with jax.default_device(device):
            assert look().name == "cpu"


@pytest.mark.parametrize(
    ("asked", "variables", "said"),
    daily(
        [
            (0, {}, "1"),
            (3, {}, "3"),
            (
                3,
                {"XLA_FLAGS": f"--xla_cpu_use_onednn=false {FLAG}=2"},
                "3 --xla_cpu_use_onednn=false",
            ),
            (3, {"XLA_FLAGS": f"{FLAG}=5"}, f"5 {FLAG}=5"),
            (3, {"JAX_NUM_CPU_DEVICES": "5"}, "5"),
        ],
        (3, {}, "3"),
    ),
)
def test_as_many_cpu_devices_are_made_as_asked_for(asked, variables, said):
    rest = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    environment = rest | {"JAX_PLATFORMS": "cpu"} | variables
    assert run_python("-c", COUNT, str(asked), env=environment).strip() == said


def test_a_backend_that_runs_keeps_its_devices():
    before = jax.device_count(), dict(os.environ)
    make_cpu_devices(7)
    assert (jax.device_count(), dict(os.environ)) == before


def test_a_process_to_start_is_told_once():
    given = {"XLA_FLAGS": f"{FLAG}=4 --a=b", "PATH": "here"}
    found = variables_for_cpu_devices(2, given)
    assert found.pop("XLA_FLAGS").strip() == "--a=b"
    assert found == {"PATH": "here", "JAX_NUM_CPU_DEVICES": "2"}
