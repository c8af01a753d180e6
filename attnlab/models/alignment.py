"""Attention of decoder states over a source: weights first, since an alignment is looked at.

Within a step of a recurrence there is one query an example, so that nothing is gained by blocks:
the weights are dense, O(B·T·S).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.ops.attention import attention_weights
from attnlab.scores import Score


class Attended(NamedTuple):
    """What an objective that looks at the attention of a model is given.

    Attributes:
      logits: logits of the target [B, T, V].
      weights: soft weights α over the source [B, T, S], also where one key is taken.
      log_prob: log α of the key that was taken [B, T]; 0 where none was.
      advantage: log-likelihood of each target, less the baseline [B]; 0 if no key was sampled, or
        the baseline has not moved yet.
    """

    logits: jax.Array
    weights: jax.Array
    log_prob: jax.Array
    advantage: jax.Array


def align(score: Score, queries: jax.Array, keys: jax.Array, lengths: jax.Array) -> jax.Array:
    """softmax_j(score(query_i, key_j)) over the real keys, [B, T, S] in at least float32.

    Args:
      score: score of one head.
      queries: queries [B, T, Hq].
      keys: keys [B, S, Hk].
      lengths: number of real keys of each example, [B]; where it is 0, the weights are zero.
    """
    mask = masks.Padding(lengths)
    return attention_weights(score, queries[:, :, None], keys[:, :, None], mask=mask)[:, 0]


def blend(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Σ_j weights_ij value_j, [B, T, D], of weights [B, T, S] and values [B, S, D]."""
    return jnp.einsum("bts,bsd->btd", weights.astype(values.dtype), values)


def one_hot(weights: jax.Array, key: jax.Array | None) -> jax.Array:
    """1 at a key that is sampled from the weights, or at the likeliest; [*B, S], without gradient.

    Args:
      weights: weights [*B, S] that sum to 1, or to 0 where there is no key.
      key: a PRNG key; None = the likeliest key, the first of equal ones.
    """
    weights = jax.lax.stop_gradient(weights)
    logits = jnp.log(weights)
    if key is not None:
        logits += jax.random.gumbel(key, weights.shape, weights.dtype)
    chosen = jax.nn.one_hot(logits.argmax(-1), weights.shape[-1], dtype=weights.dtype)
    return jnp.where(weights > 0, chosen, 0)
