"""Random numbers of attention weights, a function of positions: dropout, and noise to sample with.

What is drawn for a weight depends on the key and on (example, head, query, key position) alone. So
the dense and the blockwise version drop the same weights, whatever the blocks, and a backward pass
that recomputes the weights drops them again without storing anything.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.extend.random
import jax.numpy as jnp


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
    return is_kept(_words(seeds, q_positions, k_positions), rate)


def is_kept(words: jax.Array, rate: float) -> jax.Array:
    """True where a random word, uint32, keeps its weight, with probability 1 − rate."""
    return words >= jnp.uint32(rate * 2**32)


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


def words(seed: jax.Array, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
    """A random word, uint32, of each pair of positions of one rank that broadcast together.

    A function of the two positions and the seed [2] alone: a backward pass draws it again, and all
    blocks and rounds agree on it.
    """
    shape = jnp.broadcast_shapes(q_positions.shape, k_positions.shape)
    # Threefry makes two words of two, (query, key): of the halves that come out one is enough.
    counter = jnp.concatenate(
        [jnp.broadcast_to(x, shape).ravel().astype(jnp.uint32) for x in (q_positions, k_positions)]
    )
    return jax.extend.random.threefry_2x32(seed, counter)[: counter.size // 2].reshape(shape)


def _words(seeds: jax.Array, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
    """`words` of every weight of [B, K, G, bq, bk]."""
    of_seed = functools.partial(
        words, q_positions=q_positions[:, None], k_positions=k_positions[None, :]
    )
    drawn = jax.vmap(of_seed)(seeds.reshape(-1, 2))
    return drawn.reshape(*seeds.shape[:-1], *drawn.shape[1:])
