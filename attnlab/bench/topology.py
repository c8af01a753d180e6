"""Devices that are only described, and the compilers for them."""

import importlib.util
from pathlib import Path

import jax
from jax.experimental import topologies

from attnlab.bench.targets import Target, gpu_description
from attnlab.runs.errors import Invalid

# A TPU's compiler comes in libtpu; a GPU's in JAX's plugin, which needs no NVIDIA library for it.
_COMPILERS = {
    "tpu": ("libtpu", ("libtpu",), "jax[tpu]"),
    "cuda": (
        "JAX's CUDA plugin",
        ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"),
        "jax[cuda12-local]",
    ),
}


def devices(target: Target) -> list[jax.Device]:
    """The devices of a target: programs can be compiled for them, and nothing can run.

    Raises:
      Invalid: the compiler is not installed.
    """
    require_compiler(target)
    device = target.device
    if device.kind == "cuda":
        in_host = target.devices_per_host
        description = topologies.get_topology_desc(
            platform="cuda",
            topology_name=device.name,
            topology=f"1x{target.devices // in_host}x{in_host}",
            target_config=gpu_description(device),
        )
    else:
        # One chip is the first of the smallest slice that is a whole host's.
        shape = target.shape or next(s for s in device.slices if s != "1x1")
        options = {} if device.chip_config is None else {"chip_config_name": device.chip_config}
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{device.name}:{shape}", **options
        )
    return list(description.devices)[: target.devices]


def require_compiler(target: Target) -> None:
    """Refuses a target whose compiler is not installed.

    Raises:
      Invalid: saying what to run.
    """
    what, modules, package = _COMPILERS[target.device.kind]
    if not any(_is_installed(module) for module in modules):
        raise Invalid(
            f"--target={target.name} needs {what}, which is not installed: run "
            f"`launch/local NAME --target={target.name} …`, which installs it, or "
            f'`pip install "{package}"` in your own environment'
        )


def environment() -> dict[str, str]:
    """The environment variables of a process that only compiles."""
    variables = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    if not any(any(Path("/dev").glob(files)) for files in ("accel[0-9]*", "vfio/[0-9]*")):
        variables["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # its lock guards a TPU, and there is none
        # What libtpu would ask a TPU's host for; what is compiled for, the topology says.
        variables |= {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}
    return variables


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False
