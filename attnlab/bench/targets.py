"""Accelerators that programs are compiled for without having one; `targets.toml` describes them.

>>> target = parse("v5e-16")
>>> target.name, target.chips, target.platform.kind
('v5e:4x4', 16, 'TPU v5 lite')
"""

import dataclasses
import functools
import math
import tomllib
from importlib import resources
from typing import Any

from attnlab.devices.platforms import Platform
from attnlab.runs.errors import Invalid

# Of a GPU's memory JAX takes this share unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise
# (JAX documentation, "GPU memory allocation").
GPU_SHARE = 0.75


@dataclasses.dataclass(frozen=True)
class Device:
    """One table of `targets.toml`, whose head says what the fields are."""

    name: str
    kind: str
    device_kind: str
    source: str
    slices: tuple[str, ...]
    bf16_tflops: float
    memory_gb_per_second: float = 0.0
    memory_gib: float = 0.0
    interconnect_gb_per_second: float = 0.0
    devices_per_host: int | None = None
    between_hosts_gbit_per_second: float = 0.0
    devices_per_chip: int = 1
    counted_per_chip: int = 1
    chip_config: str | None = None
    gpu: Any = dataclasses.field(default=None, compare=False)

    @property
    def memory_bytes(self) -> int:
        """What a program can use on one JAX device."""
        if self.kind == "cuda":
            return int(GPU_SHARE * self.gpu["device_memory_size"])
        return int(self.memory_gib * 2**30)

    @property
    def products_per_second(self) -> float:
        """Floating-point operations of matrix products of bfloat16, of one JAX device."""
        return self.bf16_tflops * 1e12 / self.devices_per_chip

    @property
    def memory_bytes_per_second(self) -> float:
        """What its memory moves, of one JAX device."""
        if self.kind == "cuda":
            return float(self.gpu["memory_bandwidth"])
        return self.memory_gb_per_second * 1e9 / self.devices_per_chip

    @property
    def interconnect_bytes_per_second(self) -> float:
        """What a JAX device sends to others of its slice or host, at most; infinite = not known."""
        each_way = self.interconnect_gb_per_second * 1e9 / 2
        return each_way / self.devices_per_chip or math.inf

    @property
    def between_hosts_bytes_per_second(self) -> float:
        """What a JAX device sends to other hosts, at most; infinite = not known."""
        return self.between_hosts_gbit_per_second * 1e9 / 8 or math.inf


@dataclasses.dataclass(frozen=True)
class Target:
    """One device, or a slice of several.

    Attributes:
      device: device that the slice is made of.
      shape: shape of the slice in chips, as "4x4"; None for one JAX device.
    """

    device: Device
    shape: str | None = None

    @property
    def name(self) -> str:
        """As `parse` takes it: "v5e", or "v5e:4x4"."""
        return self.device.name if self.shape is None else f"{self.device.name}:{self.shape}"

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return 1 if self.shape is None else _size(self.shape)

    @property
    def devices(self) -> int:
        """JAX devices of the slice; the memory is of one of them."""
        return 1 if self.shape is None else self.chips * self.device.devices_per_chip

    @property
    def devices_per_host(self) -> int:
        """JAX devices that need no network between hosts; links join all of a TPU slice."""
        return min(self.devices, self.device.devices_per_host or self.devices)

    @property
    def memory_bytes(self) -> int:
        """What a program can use on one JAX device."""
        return self.device.memory_bytes

    @property
    def platform(self) -> Platform:
        """What the choice of an implementation depends on."""
        gpu = self.device.gpu
        capability = None if gpu is None else tuple(gpu["compute_capability"])
        return Platform(self.device.kind, self.device.device_kind, capability)


@functools.cache
def known_devices() -> dict[str, Device]:
    """Every device that is described, by name."""
    text = resources.files("attnlab.bench").joinpath("targets.toml").read_text(encoding="utf-8")
    return {
        name: Device(name, **(fields | {"slices": tuple(fields["slices"])}))
        for name, fields in tomllib.loads(text).items()
    }


def parse(text: str) -> Target:
    """The target of a name: "v5e", a slice by its shape, "v5e:4x4", or by its number, "v5e-16".

    The number is Google's: chips of v5e and v6e, TensorCores of v4, v5p and tpu7x (v5p-8 has four
    chips), and of GPUs how many there are, in hosts of eight.

    Raises:
      Invalid: there is no such device, or it has no such slice.
    """
    devices = known_devices()
    if text in devices:
        return Target(devices[text])
    name, _, shape = text.partition(":") if ":" in text else text.rpartition("-")
    if name not in devices:
        raise Invalid(
            f"--target={text}: no such device; the targets are {', '.join(devices)}, and slices of "
            "them such as v5e:4x4 or v5e-16"
        )
    device = devices[name]
    numbers = {str(_size(s) * device.counted_per_chip): s for s in device.slices}
    shape = shape if ":" in text else numbers.get(shape, "")
    if shape not in device.slices:
        raise Invalid(
            f"--target={text}: {name} has no such slice; its shapes are "
            f"{', '.join(device.slices)}, also called "
            f"{', '.join(f'{name}-{number}' for number in numbers)}"
        )
    alone = _size(shape) * device.devices_per_chip == 1
    return Target(device, None if alone else shape)


def gpu_description(device: Device) -> str:
    """A GPU as XLA's GpuTargetConfigProto, in text.

    The limits are those of compute capabilities 8.0, 9.0 and 10.0 alike (CUDA C++ Programming
    Guide, "Technical Specifications per Compute Capability").
    """
    gpu = dict(device.gpu)
    major, minor = gpu.pop("compute_capability")
    info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "shared_memory_per_block": 49152,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        **gpu,
    }
    fields = " ".join(f"{name}: {value}" for name, value in info.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    return (
        f'gpu_device_info {{ {fields} {capability} }} platform_name: "CUDA" '
        "dnn_version_info { major: 9 minor: 8 } runtime_version { major: 12 minor: 8 } "
        f'device_description_str: "{device.device_kind}"'
    )


def _size(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))
