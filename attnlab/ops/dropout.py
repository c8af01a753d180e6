"""Random numbers of attention weights, a function of positions: dropout, and noise to sample with.

What is drawn for a weight depends on the key and on (example, head, query, key position) alone. So
the dense and the blockwise version drop the same weights, whatever the blocks, and a backward pass
that recomputes the weights drops them again without storing anything.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.extend.random
import jax.numpy as jnp

__all__ = ["OnePattern", "gumbel_noise", "keep_mask", "seeds"]


class OnePattern(NamedTuple):
    """A dropout key by which all examples and heads drop the same weights."""

    key: jax.Array


def seeds(key: jax.Array | OnePattern, batch: int, num_kv_heads: int, group_size: int) -> jax.Array:
    """Two words for every example and head, [B, K, G, 2] uint32."""
    shape = batch, num_kv_heads, group_size, 2
    if isinstance(key, OnePattern):
        return jnp.broadcast_to(jax.random.bits(key.key, (1, 1, 1, 2), jnp.uint32), shape)
    return jax.random.bits(key, shape, jnp.uint32)


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
    return _words(seeds, q_positions, k_positions) >= jnp.uint32(rate * 2**32)


def gumbel_noise(seeds: jax.Array, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
    """−log(−log u), u uniform on (0, 1), of every weight.

    The key of the largest logit + noise is a sample of softmax(logits): the Gumbel-max trick. u has
    23 bits, so the noise is cut off at 16.6, which one of 2²⁴ draws would exceed.

    Args: as for `keep_mask`.

    Returns:
      [B, K, G, bq, bk] float32.
    """
    bits = _words(seeds, q_positions, k_positions) >> 9
    u = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-23)  # exact: neither 0 nor 1
    return -jnp.log(-jnp.log(u))


def _words(seeds: jax.Array, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
    """A random word of every weight, [B, K, G, bq, bk] uint32."""
    shape = q_positions.shape + k_positions.shape
    rows = jnp.broadcast_to(q_positions[:, None], shape).astype(jnp.uint32).ravel()
    columns = jnp.broadcast_to(k_positions[None, :], shape).astype(jnp.uint32).ravel()
    counter = jnp.concatenate([rows, columns])

    def words(seed):
        return jax.extend.random.threefry_2x32(seed, counter)[: rows.size].reshape(shape)

    return jax.vmap(words)(seeds.reshape(-1, 2)).reshape(*seeds.shape[:-1], *shape)
