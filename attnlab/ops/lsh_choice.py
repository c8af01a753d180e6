"""Which of two equal ways to attend is taken: through the rounds, or densely for short inputs."""

from __future__ import annotations

from collections.abc import Callable

import jax

from attnlab.ops.lsh_dense import attend_dense
from attnlab.ops.lsh_order import Order
from attnlab.ops.lsh_rounds import attend_rounds
from attnlab.ops.lsh_rows import Settings

__all__ = ["choose"]

# A row's weights: past this few rows fit into little memory, and few at a time are slow.
_MOST_DENSE_PAIRS = 2**18


def choose(
    implementation: str | None, order: Order, settings: Settings
) -> Callable[..., jax.Array]:
    """`attend_rounds` or `attend_dense`, which compute the same function of the same arguments."""
    if implementation is None:
        _, rounds, slots = order.token.shape
        geometry = settings.geometry
        pairs = order.slot.shape[2] * order.key_slot.shape[2]
        visited = rounds * slots * geometry.span * geometry.chunk_size
        short = settings.rows_at_once is None and pairs <= min(visited, _MOST_DENSE_PAIRS)
        implementation = "dense" if short else "sorted"
    return attend_dense if implementation == "dense" else attend_rounds
