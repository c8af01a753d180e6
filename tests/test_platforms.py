"""Which accelerator is traced for."""

import types

import jax
import pytest

from attnlab.platforms import Platform, compiling_for, current


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
