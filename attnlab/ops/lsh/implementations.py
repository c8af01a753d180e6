"""Rows of LSH attention, sorted, and the implementation that attends to them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attnlab.devices import platforms
from attnlab.masks import Mask
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.lsh.dense import attend_dense
from attnlab.ops.lsh.kernel import Kernel, attend_with, kernel_for
from attnlab.ops.lsh.order import Order, sort_rounds
from attnlab.ops.lsh.rounds import attend_rounds
from attnlab.ops.lsh.rows import CallSettings, pad

__all__ = ["attend_rows", "choose", "in_order"]

# A row's weights: past this few rows fit into little memory, and few at a time are slow.
_MOST_DENSE_PAIRS = 2**18


def attend_rows(
    implementation: str | Pallas | None,
    kernels: bool,
    settings: CallSettings,
    scale: float,
    buckets: jax.Array,
    qk: jax.Array,
    v: jax.Array,
    valid: jax.Array | None,
    segments: jax.Array | None,
    pairs: Mask | None,
    seeds: jax.Array,
    factor: jax.Array,
) -> jax.Array:
    """The context [B, L, N, D] of some rows, with the arrays of `lsh_attention`.

    `kernels` says whether a kernel may be chosen unasked (`split.serves_kernels`).
    """
    length = qk.shape[1]
    order, qk, v = in_order(settings, buckets, qk, v, valid, segments, pairs)
    order = order._replace(factor=pad(factor, qk.shape[1] - length, 1))
    attend = choose(implementation, order, settings, qk, v, kernels=kernels)
    return attend(settings, qk, None, v, scale, order, seeds.reshape(-1, 2))[:, :length]


def in_order(
    settings: CallSettings,
    buckets: jax.Array,
    qk: jax.Array,
    v: jax.Array,
    valid: jax.Array | None,
    segments: jax.Array | None,
    pairs: Mask | None,
) -> tuple[Order, jax.Array, jax.Array]:
    """The order of the rounds, and qk and v, all in whole chunks."""
    batch, length = qk.shape[:2]
    if valid is not None:
        # Whatever stands in the padding, NaN included, ends here.
        qk = jnp.where(valid[:, :, None, None], qk, 0)
        v = jnp.where(valid[:, :, None, None], v, 0)
    if padding := -length % settings.geometry.chunk_size:
        qk = pad(qk, padding, 1)
        v = pad(v, padding, 1)
        buckets = pad(buckets, padding, 2)
        valid = jnp.ones((batch, length), bool) if valid is None else valid
        valid = pad(valid, padding, 1)
        segments = None if segments is None else pad(segments, padding, 1)
    with jax.named_scope("lsh_sort"):
        order = sort_rounds(jnp.moveaxis(buckets, 3, 1), valid, segments, settings.geometry)
    return order._replace(pairs=pairs), qk, v


def choose(
    implementation: str | Pallas | None,
    order: Order,
    settings: CallSettings,
    q: jax.Array,
    v: jax.Array,
    *,
    kernels: bool = False,
) -> Callable[..., jax.Array]:
    """`attend_rounds`, `attend_dense` or a kernel, which compute the same of the same arguments.

    A kernel is chosen unasked only on an NVIDIA GPU, and if `kernels` allows it.

    Raises:
      NotImplementedError: no kernel serves them.
    """
    if implementation == "pallas":
        implementation = Pallas()
    platform = platforms.current()
    if isinstance(implementation, Pallas):
        kernel = kernel_for(implementation, platform, settings, q, v, order)
        if isinstance(kernel, str):
            raise NotImplementedError(
                f'implementation="pallas" {kernel}; use implementation="sorted" or None'
            )
        return functools.partial(attend_with, kernel)
    if implementation is None:
        rows, rounds, slots = order.token.shape
        geometry = settings.geometry
        pairs = order.slot.shape[2] * order.key_slot.shape[2]
        visited = rounds * slots * geometry.span * geometry.chunk_size
        if settings.rows_at_once is None and pairs <= min(visited, _MOST_DENSE_PAIRS):
            return attend_dense
        if platform.name == "cuda" and kernels and isinstance(rows, int):  # no symbolic batch
            kernel = kernel_for(Pallas(), platform, settings, q, v, order)
            if isinstance(kernel, Kernel):
                return functools.partial(attend_with, kernel)
    return attend_dense if implementation == "dense" else attend_rounds
