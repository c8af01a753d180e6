"""Where a result came from: device, versions, git revision, input."""

import os
import platform
from typing import Any

import jax

from attnlab.bench import inputs, memory
from attnlab.records import provenance

PACKAGES = ("attnlab", "jax", "jaxlib", "flax", "numpy")
COMPILERS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")  # named where they are installed


def describe(text: inputs.Text) -> dict[str, Any]:
    """What to know of this process to read its numbers. Initializes JAX's devices."""
    device = jax.local_devices()[0]
    return {
        "platform": device.platform,
        "device": provenance.processor() if device.platform == "cpu" else device.device_kind,
        "devices": jax.local_device_count(),
        "cores": memory.cores(),
        "cpus": os.cpu_count(),  # whose load average a row has: of a container, the host's
        "available_bytes": memory.available(device),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(),
        "revision": provenance.revision(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "input": {"name": text.name, "bytes": int(text.data.size), "sha256": text.digest},
    }


def versions() -> dict[str, str]:
    """Of the packages that decide what is computed and how."""
    found = {name: provenance.version(name) for name in (*PACKAGES, *COMPILERS)}
    return {k: v for k, v in found.items() if k in PACKAGES or v != "not installed"}
