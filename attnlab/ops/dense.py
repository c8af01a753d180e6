"""The textbook: all T·S logits at once; the reference for every engine, and the way to weights."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.biases import Bias
from attnlab.core.axes import lead_with_ones
from attnlab.masks import Mask
from attnlab.ops import dropout
from attnlab.ops.layout import Prepared


# Compiled here, so that a call outside any `jit` compiles once and not each time.
@functools.partial(jax.jit, static_argnames=("precision",), inline=True)
def weights(x: Prepared, *, precision=None) -> jax.Array:
    """softmax(logits + bias) over the visible keys, [B, K, G, T, S], at least float32.

    A query that sees no key has weights of zero.
    """
    return normalize(x.score.logits(x.q, x.k, precision=precision), x.bias, x.mask)


def normalize(logits: jax.Array, bias: Bias | None, mask: Mask | None) -> jax.Array:
    """`weights` of logits [B, K, G, T, S], and of the bias and the mask in their layout."""
    if bias is not None:
        logits += bias.as_array(*logits.shape[-2:])
    if mask is not None:
        visible = mask.block(*map(jnp.arange, logits.shape[-2:]))
        visible = lead_with_ones(visible, logits.ndim)
        logits = jnp.where(visible, logits, -jnp.inf)
    # Not -inf: in a row without visible keys, -inf − -inf would be NaN.
    floor = jnp.finfo(logits.dtype).min
    largest = jnp.max(logits, axis=-1, keepdims=True, initial=floor)
    unnormalized = jnp.exp(logits - jax.lax.stop_gradient(largest))
    total = jnp.sum(unnormalized, axis=-1, keepdims=True)
    weights = unnormalized / jnp.where(total == 0, 1, total)
    if mask is None:
        return weights
    # Already zero: this keeps out of the gradient what a huge value there would make infinite.
    return jnp.where(visible, weights, 0)


def attend(x: Prepared, *, dropout_rate: float = 0.0, precision=None) -> jax.Array:
    """Σ_j weights_ij v_j, [B, K, G, T, D]. O(T·S) time and memory."""
    options: Any = {"dropout_rate": dropout_rate, "precision": precision}
    return context(weights(x, precision=precision), x.v, x.dropout_seeds, **options)


def context(
    attention_weights: jax.Array,
    v: jax.Array,
    dropout_seeds: jax.Array | None,
    *,
    dropout_rate: float = 0.0,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Σ_j weights_ij v_j, [B, K, G, T, D], of weights [B, K, G, T, S] and v [B, K, 1, S, D]."""
    if dropout_rate > 0.0 and dropout_seeds is not None:
        *_, num_queries, num_keys = attention_weights.shape
        keep = dropout.keep_mask(
            dropout_seeds,
            dropout_rate,
            jnp.arange(num_queries),
            jnp.arange(num_keys),
        )
        attention_weights = jnp.where(keep, attention_weights / (1 - dropout_rate), 0)
    mean = jnp.matmul(
        attention_weights.astype(v.dtype),
        v,
        precision=precision,
        preferred_element_type=attention_weights.dtype,
    )
    return mean.astype(v.dtype)
