"""Where the arrays of a training's state are on a mesh: which of their axes is divided by which.

| axis of the mesh | divides                                                                       |
| ---------------- | ----------------------------------------------------------------------------- |
| `model`          | heads of the projections, units of the feed-forward layers, rows of the       |
|                  | vocabulary (Shoeybi et al. 2019, Megatron-LM, §3)                             |
| `data`           | the largest other axis of each array that it divides (Rajbhandari et al.      |
|                  | 2020, ZeRO, stage 3; FSDP): parameters, gradients, optimizer                  |

A place follows from an array's name and shape, so that the moments of an optimizer are where their
parameters are, and a checkpoint can be restored on another mesh. What no axis divides is whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

__all__ = ["shardings_on"]

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
    """The sharding of each array of a state, as a tree; a state's shapes are enough."""

    def of(path: tuple[Any, ...], x: Any) -> NamedSharding:
        name = "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
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
