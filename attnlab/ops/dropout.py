"""Dropout on attention weights, a function of positions.

Whether a weight is dropped depends on the key and on (example, head, query, key position) alone. So
the dense and the blockwise version drop the same weights, whatever the blocks, and a backward pass
that recomputes the weights drops them again without storing anything.
"""

from __future__ import annotations

import jax
import jax.extend.random
import jax.numpy as jnp

__all__ = ["keep_mask", "seeds"]


def seeds(key: jax.Array, batch: int, num_kv_heads: int, group_size: int) -> jax.Array:
    """Two words for every example and head, [B, K, G, 2] uint32."""
    return jax.random.bits(key, (batch, num_kv_heads, group_size, 2), jnp.uint32)


def keep_mask(
    seeds: jax.Array, rate: float, q_positions: jax.Array, k_positions: jax.Array
) -> jax.Array:
    """True where a weight is kept, with probability 1 − rate.

    Args:
      seeds: seeds of every example and head from `seeds`, [B, K, G, 2].
      rate: probability of dropping a weight.
      q_positions: positions of the queries, [bq].
      k_positions: positions of the keys, [bk].

    Returns:
      [B, K, G, bq, bk] booleans. Cost: one Threefry hash a weight.
    """
    shape = q_positions.shape + k_positions.shape
    rows = jnp.broadcast_to(q_positions[:, None], shape).astype(jnp.uint32).ravel()
    columns = jnp.broadcast_to(k_positions[None, :], shape).astype(jnp.uint32).ravel()
    counter = jnp.concatenate([rows, columns])

    def words(seed):
        return jax.extend.random.threefry_2x32(seed, counter)[: rows.size].reshape(shape)

    words = jax.vmap(words)(seeds.reshape(-1, 2)).reshape(*seeds.shape[:-1], *shape)
    return words >= jnp.uint32(rate * 2**32)
