"""How a case is split over devices: by batch, by heads or by sequence, under `attnlab.over`.

| split      | a device has                     | and the devices exchange                    |
| ---------- | -------------------------------- | ------------------------------------------- |
| `batch`    | its sequences, all parameters    | the gradient of the parameters: a sum       |
| `heads`    | its heads and their projections  | sums of the outputs and of d_inputs         |
| `sequence` | its positions, all parameters    | positions for heads, around attention       |

Heads as in Megatron-LM (Shoeybi et al. 2019, §3): inputs and contexts are whole on every device.
XLA adds what is exchanged.
"""

import contextlib
from typing import Any

import jax
from jax.sharding import PartitionSpec

from attnlab.bench.case import Case
from attnlab.devices.split import over
from attnlab.training.parallel import mesh_sizes

AXIS = "split"  # of the mesh
SHARDS = ("batch", "heads", "sequence")
# Of a training, by the axis of its mesh: "batch" leaves the state whole, "state" divides it too.
OF_TRAININGS = {"batch": "data", "state": "data", "heads": "model", "sequence": "sequence"}


def mesh_of(shard: str | None, devices: int) -> dict[str, int]:
    """The axes of a training's mesh and their sizes: one, or as its flag --mesh has them.

    >>> mesh_of("heads", 8), mesh_of("data:4,sequence:2", 8)
    ({'model': 8}, {'data': 4, 'sequence': 2})
    """
    shard = shard or "batch"
    return {OF_TRAININGS[shard]: devices} if shard in OF_TRAININGS else mesh_sizes(shard)


def over_devices(case: Case, mesh: jax.sharding.Mesh) -> contextlib.AbstractContextManager[None]:
    """The context in which the case is traced."""
    divides = {"batch": "batch", "heads": "heads", "sequence": "length"}
    return over(mesh, **{divides[case.shard or "batch"]: AXIS})


def spec_of_rows(case: Case) -> PartitionSpec:
    """Where the streams are, the context and its cotangent."""
    if case.shard == "heads":
        # A bare function has its heads in axis 2; a module's inputs are whole.
        return PartitionSpec(None, None, AXIS) if case.ops_only else PartitionSpec()
    return PartitionSpec(None, AXIS) if case.shard == "sequence" else PartitionSpec(AXIS)


def specs_of_parameters(case: Case, parameters: Any) -> Any:
    """Where each of the parameters is."""
    if case.shard != "heads":
        return jax.tree.map(lambda _: PartitionSpec(), parameters)
    if case.ops_only:  # every parameter leads with the heads
        return jax.tree.map(lambda _: PartitionSpec(AXIS), parameters)
    return jax.tree_util.tree_map_with_path(_spec_of_heads, parameters)


def _spec_of_heads(path: Any, _: jax.ShapeDtypeStruct) -> PartitionSpec:
    """Kernels are [width, N, H], biases [N, H], the last projection [N, H, width] and [width].

    All parameters of a score lead with the heads.
    """
    layer, kind = path[-2].key, path[-1].key
    if layer == "score":
        return PartitionSpec(AXIS)
    if layer == "out":
        return PartitionSpec(AXIS) if kind == "kernel" else PartitionSpec()
    return PartitionSpec(None, AXIS) if kind == "kernel" else PartitionSpec(AXIS)
