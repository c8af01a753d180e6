"""A step over several devices: sharded over a mesh under `jit`, or `jax.pmap`.

All compute the same numbers up to the order of sums; under `pmap` each device draws a dropout of
its own, while under `jit` dropout does not depend on the number of devices, and what a module keeps
beside parameters, such as a learned center, becomes the mean of the devices' own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from attnlab.core.checks import require, require_choice
from attnlab.data.parts import WHOLE, Part
from attnlab.devices.split import over

__all__ = [
    "PARALLEL",
    "Parallel",
    "Pmap",
    "ShardedJit",
    "ShardedState",
    "mesh_sizes",
    "on_host",
    "parallel_over",
    "shardings_on",
]

PARALLEL = ("jit", "pmap")
MESH_AXES = ("data", "model", "sequence")


class Parallel:
    """Places state and batches on devices and compiles steps that take them there.

    Attributes:
      axis_name: name of the devices' axis that a step is told; None if it need not know.
      whole: sharding of an array that every device has the whole of.
      rows: sharding of a batch's arrays.
    """

    axis_name: str | None

    def __init__(self, devices: Sequence[jax.Device], sizes: Mapping[str, int] | None = None):
        sizes = {"data": len(devices)} if sizes is None else sizes
        shape = [sizes.get(axis, 1) for axis in MESH_AXES]
        self.mesh = jax.sharding.Mesh(np.array(devices).reshape(shape), MESH_AXES)
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        self.rows = NamedSharding(self.mesh, PartitionSpec("data"))

    @property
    def part(self) -> Part:
        """The part of each batch that this process's devices compute.

        Several processes have the same one where a mesh divides heads or positions over them.
        """
        places = self.mesh.shape["data"]
        mine = self.rows.addressable_devices_indices_map((places,)).values()
        starts = {place[0].indices(places)[0] for place in mine if place is not None}
        if places == 1:
            return WHOLE
        index, left = divmod(min(starts), len(starts))
        require(
            not left and max(starts) - min(starts) + 1 == len(starts),
            f"the devices of a process must have rows that follow one another; got {self.mesh}",
        )
        return Part(index, places // len(starts))

    def shardings(self, tree: Any) -> Any:
        """The sharding of each array of a state: every device has the whole of it."""
        return jax.tree.map(lambda _: self.whole, tree)

    def place(self, tree: Any) -> Any:
        """The state, or parameters, on the devices."""
        raise NotImplementedError

    def make(self, create: Callable[[], Any]) -> Any:
        """The state that `create` draws, on the devices."""
        return self.place(create())

    def split(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        """This process's part of a batch, divided among its devices."""
        raise NotImplementedError

    def compile(self, step: Callable, *, donate: bool = False, out: Any = None) -> Callable:
        """A step over placed state and split batches.

        Args:
          step: function of a state, or of parameters, and a batch.
          donate: whether the step may reuse the state's memory.
          out: shardings of the step's result, or of its parts; None = all whole on every device.
        """
        raise NotImplementedError

    def gather(self, tree: Any) -> Any:
        """A placed tree as arrays that are whole on every device, as a checkpoint takes them."""
        raise NotImplementedError

    def read(self, tree: Any) -> Any:
        """A placed tree as host values, whole in every process."""
        raise NotImplementedError


class ShardedJit(Parallel):
    """The batch is one array sharded over the mesh; XLA adds the communication.

    Attention, and what else XLA would not divide, computes each device's rows (`attnlab.over`).
    """

    axis_name = None

    def place(self, tree):
        return jax.tree.map(place, tree, self.shardings(tree))

    def split(self, batch):
        return {
            name: jax.make_array_from_process_local_data(self.rows, x) for name, x in batch.items()
        }

    def compile(self, step, *, donate=False, out=None):
        def over_mesh(*arguments: Any) -> Any:
            with over(self.mesh, **self._divides()):
                return step(*arguments)

        out = self.whole if out is None else out
        return jax.jit(over_mesh, out_shardings=out, donate_argnums=(0,) if donate else ())

    def _divides(self) -> dict[str, str]:
        of_axes = zip(("batch", "heads", "length"), MESH_AXES, strict=True)
        return {what: axis for what, axis in of_axes if self.mesh.shape[axis] > 1}

    def gather(self, tree):
        return tree

    def read(self, tree):
        return on_host(tree)


class ShardedState(ShardedJit):
    """As `ShardedJit`, and the state is divided too, over a mesh of several axes.

    `data` divides the batch and the state, `model` heads and hidden units (`shardings_on`),
    `sequence` the positions around attention.
    """

    def shardings(self, tree):
        return shardings_on(self.mesh, tree)

    def make(self, create):
        # Divided from the beginning: no device need hold the whole of it.
        return self.compile(create, out=self.shardings(jax.eval_shape(create)))()


class Pmap(Parallel):
    """State and batch have a leading axis of devices; the step sums over it by name."""

    axis_name = "batch"

    def __init__(self, devices: Sequence[jax.Device]):
        super().__init__(devices)
        self.local = [d for d in devices if d.process_index == jax.process_index()]

    def place(self, tree):
        def copies(x):
            return np.broadcast_to(np.asarray(x), (len(self.local), *x.shape))

        return jax.tree.map(copies, tree)

    def split(self, batch):
        return {name: x.reshape(len(self.local), -1, *x.shape[1:]) for name, x in batch.items()}

    def compile(self, step, *, donate=False, out=None):
        del out  # a copy each
        # Over several processes pmap takes all devices there are, and wants none named.
        devices = self.local if len(self.local) == self.mesh.size else None
        return jax.pmap(
            step,
            axis_name=self.axis_name,
            devices=devices,
            donate_argnums=(0,) if donate else (),
        )

    def gather(self, tree):
        return jax.tree.map(place, self.read(tree), self.shardings(tree))

    def read(self, tree):
        return jax.tree.map(lambda x: np.asarray(x.addressable_shards[0].data)[0], tree)


def on_host(tree: Any) -> Any:
    """Arrays over a mesh as host values, whole in every process."""

    def whole(x):
        if isinstance(x, jax.Array) and not x.is_fully_replicated:
            return multihost_utils.process_allgather(x, tiled=True)  # parts of it are elsewhere
        return x

    return jax.device_get(jax.tree.map(whole, tree) if jax.process_count() > 1 else tree)


def place(x: Any, sharding: NamedSharding) -> jax.Array:
    """The same values of every process as one array with that sharding."""
    if isinstance(x, jax.Array) and x.sharding == sharding:
        return x
    values = np.asarray(x)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


# The end of a parameter's path, and its axis of heads, hidden units or vocabulary, from the end.
_OF_MODEL = tuple(
    (re.compile(rf"(^|/){end}$"), axis)
    for end, axis in (
        (r"(query|key|value|query_key)/(kernel|bias)", -2),
        (r"\w*attention/out/kernel", -3),
        (r"\w*attention/score/\w+", 0),
        (r"feed_forward/hidden/(kernel|bias)", -1),
        (r"feed_forward/out/kernel", -2),
        (r"\w*vocabulary/embedding", -2),
        (r"softmax/(kernel|bias)", -1),
    )
)


def shardings_on(mesh: jax.sharding.Mesh, tree: Any) -> Any:
    """The sharding of each array of a state, as a tree; a state's shapes are enough.

    | axis of the mesh | divides                                                                   |
    | ---------------- | ------------------------------------------------------------------------- |
    | `model`          | heads of the projections, units of the feed-forward layers, rows of the   |
    |                  | vocabulary (Shoeybi et al. 2019, Megatron-LM, §3)                         |
    | `data`           | the largest other axis of each array that it divides (Rajbhandari et al.  |
    |                  | 2020, ZeRO, stage 3; FSDP): parameters, gradients, optimizer              |

    A place follows from an array's name and shape, so that the moments of an optimizer are where
    their parameters are, and a checkpoint can be restored on another mesh. What no axis divides is
    whole.
    """

    def of(path: tuple[Any, ...], x: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        name = name.removesuffix("/value")  # of the box of a parameter that has logical axes
        return NamedSharding(mesh, _spec(name, x.shape, mesh.shape))

    return jax.tree_util.tree_map_with_path(of, tree)


def _spec(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> PartitionSpec:
    """The spec of one array on a mesh of axes of these sizes.

    >>> sizes = {"data": 4, "model": 2}
    >>> _spec("decoder/layer_0/attention/query/kernel", (512, 8, 64), sizes)
    P('data', 'model', None)
    >>> _spec("opt_state/0/mu/decoder/layer_0/feed_forward/out/kernel", (2048, 512), sizes)
    P('model', 'data')
    >>> _spec("decoder/layer_0/attention_norm/scale", (510,), sizes)
    P(None,)
    """
    axes: list[str | None] = [None] * len(shape)
    for pattern, axis in _OF_MODEL:
        if pattern.search(name) and -len(shape) <= axis < len(shape):
            if shape[axis] % sizes["model"] == 0:
                axes[axis] = "model"
            break
    divided = [i for i, n in enumerate(shape) if axes[i] is None and n and n % sizes["data"] == 0]
    if divided:
        axes[max(divided, key=lambda i: shape[i])] = "data"
    return PartitionSpec(*axes)


def mesh_sizes(written: str) -> dict[str, int]:
    """The axes of a mesh and their sizes, of "data:4,model:2".

    Raises:
      ValueError: it is not written so; the message says how.
    """
    parts = [part.partition(":") for part in written.split(",")]
    sizes = {axis: int(size) for axis, _, size in parts if size.isdecimal()}
    require(
        len(sizes) == len(parts) and set(sizes) <= set(MESH_AXES) and 0 not in sizes.values(),
        "give axes and their sizes, such as data:4,model:2; axes are " + ", ".join(MESH_AXES),
    )
    return sizes


def parallel_over(
    kind: str, devices: Sequence[jax.Device], mesh: Mapping[str, int] | None = None
) -> Parallel:
    """`ShardedJit` or `Pmap`; with sizes of the mesh's axes `ShardedState`."""
    require_choice("parallel", kind, PARALLEL)
    if mesh is not None:
        require(kind == "jit", 'a mesh needs parallel="jit"; got "pmap"')
        return ShardedState(devices, mesh)
    return {"jit": ShardedJit, "pmap": Pmap}[kind](devices)
