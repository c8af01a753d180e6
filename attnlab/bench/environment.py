"""Where a result came from: device, versions, git revision, input."""

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import jax

from attnlab.bench import inputs, memory

PACKAGES = ("attnlab", "jax", "jaxlib", "flax", "numpy")


def describe(text: inputs.Text) -> dict[str, Any]:
    """What to know of this process to read its numbers. Initialises JAX's devices."""
    device = jax.local_devices()[0]
    return {
        "platform": device.platform,
        "device": _processor() if device.platform == "cpu" else device.device_kind,
        "devices": jax.local_device_count(),
        "cores": memory.cores(),
        "available_bytes": memory.available(device),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "revision": revision(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "input": {"name": text.name, "bytes": int(text.data.size), "sha256": text.digest},
    }


def version(package: str) -> str:
    """The installed version, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def revision() -> str:
    """The git revision of these sources, with "+changes" when files differ from it; else ""."""
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", __file__):  # installed inside someone else's repository
            return ""
        return git("rev-parse", "--short=12", "HEAD") + "+changes" * bool(git("status", "--short"))
    except OSError:  # no git
        return ""


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or "CPU"
