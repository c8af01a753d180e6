"""Which accelerator a program is traced for, and how many devices a CPU is split into.

That is the default device, unless a program is compiled for a device that this machine lacks
(`jax.experimental.topologies`). What is chosen while tracing, an implementation say, must then be
chosen for that device:

    >>> with compiling_for(Platform("cuda", "NVIDIA H100 80GB HBM3", (9, 0))):
    ...     current().name
    'cuda'
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from attnlab.core.checks import require_instance

__all__ = [
    "Platform",
    "compiling_for",
    "current",
    "is_one_cpu",
    "make_cpu_devices",
    "variables_for_cpu_devices",
]

_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


class Platform(NamedTuple):
    """An accelerator, as far as the choice of an implementation depends on it.

    Attributes:
      name: "cpu", "tpu", "cuda" or what else JAX calls it.
      kind: JAX's `device_kind`, such as "TPU v5 lite" or "NVIDIA H200".
      capability: NVIDIA's compute capability, such as (9, 0); None elsewhere.
      has_cudnn: whether attention may choose cuDNN on an NVIDIA GPU; False only where a program is
        compiled without it.
    """

    name: str
    kind: str = ""
    capability: tuple[int, int] | None = None
    has_cudnn: bool = True


# JAX counts it in when it looks for a trace that it has made already.
_target: Any = jax.make_user_context(None)


@contextlib.contextmanager
def compiling_for(platform: Platform) -> Iterator[None]:
    """A context: what is traced in it is meant for `platform`, not for the default device."""
    wanted = 'a Platform, such as Platform("tpu", "TPU v5 lite")'
    require_instance("platform", platform, isinstance(platform, Platform), wanted)
    with _target(platform):
        yield


def variables_for_cpu_devices(count: int, variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of a process to start, whose CPU shall be so many devices."""
    flags = _FLAG.sub("", variables.get("XLA_FLAGS", ""))  # JAX refuses to be told twice
    return {**variables, "JAX_NUM_CPU_DEVICES": str(count), "XLA_FLAGS": flags}


def make_cpu_devices(count: int) -> None:
    """Makes this process's CPU at least so many devices, as far as that can still be done.

    Nothing happens once JAX's backend has started, nor to one process of several, whose devices are
    counted together.
    """
    flag = _FLAG.search(os.environ.get("XLA_FLAGS", ""))
    known = int(flag[1]) if flag else max(1, jax.config.values["jax_num_cpu_devices"])  # −1: unset
    if count <= known or jax.distributed.is_initialized():
        return
    with contextlib.suppress(RuntimeError):  # it has started
        jax.config.update("jax_num_cpu_devices", count)
        os.environ.update(variables_for_cpu_devices(count, os.environ))


def is_one_cpu() -> bool:
    """Whether what is traced is for this process's CPU, which is one device.

    No device is asked for under `compiling_for`, where it is False.
    """
    return _target.value is None and current().name == "cpu" and jax.device_count() == 1


def current() -> Platform:
    """The accelerator of `compiling_for`, or else of `jax.default_device`, or the first."""
    if _target.value is not None:
        return _target.value
    config: Any = jax.config  # its options are not typed
    device = config.jax_default_device  # a device, a platform's name or None
    if device is None or isinstance(device, str):
        device = jax.devices(device)[0]
    if device.platform != "gpu":
        return Platform(device.platform, device.device_kind)
    name = "cuda" if "cuda" in device.client.platform_version else "rocm"
    capability = None
    if name == "cuda":
        major, minor = str(device.compute_capability).split(".")
        capability = int(major), int(minor)
    return Platform(name, device.device_kind, capability)
