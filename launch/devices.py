"""Finds the accelerator of this machine and the extra of pyproject.toml that drives it."""

import os
import re
import subprocess
import sys
from pathlib import Path

CUDA = {"cuda12", "cuda13"}  # their wheels exclude each other
GOOGLE_PCI_VENDOR = "0x1ae0"


def find_kinds() -> set[str]:
    """Returns the kinds of accelerator device files that there are: cheap, asks no tool."""
    kinds = {"nvidia": "nvidia[0-9]*", "accel": "accel[0-9]*", "vfio": "vfio/[0-9]*"}
    return {kind for kind, files in kinds.items() if any(Path("/dev").glob(files))}


def extras() -> set[str]:
    """Returns the extra for the accelerator found: {"cuda12"}, {"cuda13"}, {"tpu"} or none."""
    return _nvidia() or _tpu()


def _nvidia() -> set[str]:
    """Chooses the CUDA wheels that the driver and the cards can run.

    CUDA 13 needs driver 580 and compute capability 7.5, CUDA 12 driver 525 (NVIDIA's CUDA
    Compatibility guide; JAX's installation page).
    """
    query = ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60)
        cards = re.findall(r"^(\d+)\.[\d.]*, *([\d.]+)$", answer.stdout, re.MULTILINE)
    except (OSError, subprocess.TimeoutExpired):
        cards = []
    if not cards:
        # A container may show the device without the tool; CUDA 12 runs on newer drivers too.
        return {"cuda12"} if "nvidia" in find_kinds() else set()
    driver = min(int(driver) for driver, _ in cards)
    capability = min(float(capability) for _, capability in cards)
    if driver >= 580 and capability >= 7.5:
        return {"cuda13"}
    if driver >= 525:
        return {"cuda12"}
    print(
        f"launch/local: note: JAX needs NVIDIA driver >= 525, got {driver}; using the CPU",
        file=sys.stderr,
    )
    return set()


def _tpu() -> set[str]:
    """Asks for the device file and a sign that it is Google's: other makers use the same names."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    google = "TPU_ACCELERATOR_TYPE" in os.environ or any(
        vendor.read_text().strip() == GOOGLE_PCI_VENDOR for vendor in vendors
    )
    return {"tpu"} if find_kinds() & {"accel", "vfio"} and google else set()
