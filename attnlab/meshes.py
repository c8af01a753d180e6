"""Arrays on a mesh of devices: inside `jax.shard_map`, and on a mesh with Explicit axes."""

from __future__ import annotations

from typing import TypeVar

import jax

__all__ = ["vary_like"]

T = TypeVar("T")


def vary_like(tree: T, *operands: object) -> T:
    """The tree, its arrays typed as different on all devices that any array here differs on.

    Inside `jax.shard_map` the type of an array says over which mesh axes it varies. Operations
    settle that between them, but the carry of a loop must begin as it ends, and a constant varies
    over nothing. A custom VJP must return gradients typed as what it was given: where all of that
    varies alike, the sum over the devices that share a parameter is the transpose of this cast.

    Args:
      tree: arrays.
      operands: arrays that those of `tree` will be computed with.
    """

    def varies_over(x):
        return jax.typeof(x).manual_axis_type.varying

    axes = frozenset().union(*map(varies_over, jax.tree.leaves((tree, operands))))

    def cast(x):
        missing = tuple(sorted(axes - varies_over(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)
