"""Which of equal ways to attend is taken: through the rounds, densely, or by a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax

from attnlab import platforms
from attnlab.ops.kernels.options import Pallas
from attnlab.ops.lsh_dense import attend_dense
from attnlab.ops.lsh_kernel import attend_with, kernel_for
from attnlab.ops.lsh_order import Order
from attnlab.ops.lsh_rounds import attend_rounds
from attnlab.ops.lsh_rows import Settings

__all__ = ["choose"]

# A row's weights: past this few rows fit into little memory, and few at a time are slow.
_MOST_DENSE_PAIRS = 2**18


def choose(
    implementation: str | Pallas | None,
    order: Order,
    settings: Settings,
    q: jax.Array,
    v: jax.Array,
) -> Callable[..., jax.Array]:
    """`attend_rounds`, `attend_dense` or a kernel, which compute the same of the same arguments.

    Raises:
      NotImplementedError: no kernel serves them.
    """
    if implementation == "pallas":
        implementation = Pallas()
    if isinstance(implementation, Pallas):
        platform = platforms.current()
        kernel = kernel_for(implementation, platform, settings, q, v, order)
        return functools.partial(attend_with, kernel)
    if implementation is None:
        _, rounds, slots = order.token.shape
        geometry = settings.geometry
        pairs = order.slot.shape[2] * order.key_slot.shape[2]
        visited = rounds * slots * geometry.span * geometry.chunk_size
        short = settings.rows_at_once is None and pairs <= min(visited, _MOST_DENSE_PAIRS)
        implementation = "dense" if short else "sorted"
    return attend_dense if implementation == "dense" else attend_rounds
