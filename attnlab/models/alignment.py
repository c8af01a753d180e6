"""Attention of decoder states over a source: weights first, since an alignment is looked at.

Within a step of a recurrence there is one query an example, so that nothing is gained by blocks:
the weights are dense, O(B·T·S).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.ops.attention import attention_weights
from attnlab.scores import Score

__all__ = ["align", "blend"]


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
