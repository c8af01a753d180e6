"""Which of two equal ways to attend is taken: through the rounds, or densely for short inputs."""

from __future__ import annotations

from collections.abc import Callable

import jax

from attnlab.ops.lsh_dense import attend_dense
from attnlab.ops.lsh_order import Geometry, Order
from attnlab.ops.lsh_rounds import attend_rounds

__all__ = ["choose"]

# A row's weights: past this the memory of the dense way is no longer small.
_MOST_DENSE_PAIRS = 2**20


def choose(
    implementation: str | None, order: Order, geometry: Geometry
) -> Callable[..., jax.Array]:
    """`attend_rounds` or `attend_dense`, which compute the same function of the same arguments."""
    _, rounds, slots = order.token.shape
    pairs = order.slot.shape[2] * order.key_slot.shape[2]
    visited = rounds * slots * geometry.span * geometry.chunk_size
    if implementation is None:
        implementation = "dense" if pairs <= min(visited, _MOST_DENSE_PAIRS) else "sorted"
    return attend_dense if implementation == "dense" else attend_rounds
