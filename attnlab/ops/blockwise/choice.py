"""The key that a query chooses, of any score under any mask, in memory linear in T + S.

Blocks as in the engine. A row keeps its best logit + noise so far and where it stood, and what the
log-probability and the entropy need: the largest logit m, ℓ = Σ e^{s − m} and Σ e^{s − m} (s − m).
Every block is computed again in the backward pass (`jax.checkpoint`), which JAX derives.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.core.axes import pad_to_multiple, widen
from attnlab.devices.meshes import vary_like
from attnlab.ops import dropout
from attnlab.ops.blockwise import engine
from attnlab.ops.layout import Prepared

_BLOCK = 256  # rows: all examples and heads are computed at once


# Compiled here, so that a call outside any `jit` compiles once and not each time.
@functools.partial(jax.jit, static_argnames=("precision",), inline=True)
def choose(
    x: Prepared, seeds: jax.Array | None, *, precision: Any = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The place of a key for each query, its log-probability, and the entropy of all; [B, K, G, T].

    The place, int32, is −1 where no key is visible; the others, at least float32, are 0 there, and
    have gradients. Of equal keys the first is taken; a visible NaN is taken before all, and the
    log-probability and the entropy are then NaN.

    Args:
      x: operands of the attention; its values are not looked at.
      seeds: seeds of every example and head, with which a key is sampled; None = the likeliest key.
      precision: precision of the matrix products.

    Cost: O(T·S) time; memory O(T + S + block²) for each example and head, also backward.
    """
    num_queries, num_keys = x.q.shape[-2], x.k.shape[-2]
    block = min(engine.default_block(x.mask), _BLOCK)
    block_q = engine.even_block(num_queries, block)
    block_k = engine.even_block(num_keys, block)
    q = pad_to_multiple(x.q, -2, block_q)
    k = pad_to_multiple(x.k, -2, block_k)
    mask = None if x.mask is None else x.mask.pad(block_q, block_k)
    bias = None if x.bias is None else x.bias.padded(q.shape[-2], k.shape[-2])
    # [S/bk, B, K, 1, bk, H] and [S/bk]
    k_blocks, k_starts = _cut(k, block_k)
    # Every block of queries adds to the gradients of these.
    wide_score, k_blocks = jax.tree.map(widen, (x.score, k_blocks))

    def query_block(inputs):
        q, first_q = inputs
        q_positions = first_q + jnp.arange(block_q)

        def key_block(state, inputs):
            k, first_k = inputs
            k = k.astype(x.k.dtype)
            score = jax.tree.map(lambda wide, like: wide.astype(like.dtype), wide_score, x.score)
            k_positions = first_k + jnp.arange(block_k)
            # [B, K, G, bq, bk]
            logits = score.logits(q, k, precision=precision)
            real = k_positions < num_keys
            logits = engine.visible_logits(logits, bias, mask, first_q, first_k, real)
            noise = None
            if seeds is not None:
                noise = dropout.gumbel_noise(seeds, q_positions, k_positions).astype(logits.dtype)
            return _step(state, logits, noise, first_k), None

        shape = (*q.shape[:-2], block_q)
        dtype = jnp.promote_types(q.dtype, jnp.float32)
        start = (
            jnp.full(shape, -jnp.inf, dtype),
            jnp.full(shape, -1, jnp.int32),
            jnp.zeros(shape, dtype),
            jnp.full(shape, jnp.finfo(dtype).min, dtype),  # not -inf: −inf − −inf would be NaN
            jnp.zeros(shape, dtype),
            jnp.zeros(shape, dtype),
        )
        start = vary_like(start, q, k, x.score, bias, mask, seeds)
        # All rows [B, K, G, bq]: best logit + noise, its place and logit, m, ℓ, Σ e^{s − m}(s − m).
        state, _ = jax.lax.scan(jax.checkpoint(key_block), start, (k_blocks, k_starts))
        _, place, chosen, largest, total, spread = state
        sees_any = place >= 0
        total = jnp.where(sees_any, total, 1)
        log_prob = jnp.where(sees_any, chosen - largest - jnp.log(total), 0)
        entropy = jnp.where(sees_any, jnp.log(total) - spread / total, 0)
        return place, log_prob, entropy

    def join(blocks):
        # [T/bq, B, K, G, bq] to [B, K, G, T]
        blocks = jnp.moveaxis(blocks, 0, -2)
        return blocks.reshape(*blocks.shape[:-2], -1)[..., :num_queries]

    place, log_prob, entropy = jax.lax.map(jax.checkpoint(query_block), _cut(q, block_q))
    return join(place), join(log_prob), join(entropy)


def _step(state, logits, noise, first_k):
    """The state of the rows of a block after one more block of keys."""
    best, place, chosen, largest, total, spread = state
    noisy = jax.lax.stop_gradient(logits if noise is None else logits + noise)
    # [B, K, G, bq, 1]: the first of equal ones, and a NaN before all
    at = jnp.argmax(noisy, -1, keepdims=True).astype(jnp.int32)
    best_here = jnp.take_along_axis(noisy, at, -1)[..., 0]
    better = (best_here > best) | jnp.isnan(best_here)
    place = jnp.where(better, first_k + at[..., 0], place)
    chosen = jnp.where(better, jnp.take_along_axis(logits, at, -1)[..., 0], chosen)
    new_largest = jnp.maximum(largest, jax.lax.stop_gradient(logits.max(-1)))
    weights = jnp.exp(logits - new_largest[..., None])
    below = jnp.where(weights > 0, logits - new_largest[..., None], 0)  # 0 · −inf would be NaN
    # Σ e^{s − m'}(s − m') = e^{m − m'} (Σ e^{s − m}(s − m) + (m − m') ℓ)
    shift = jnp.where(total > 0, largest - new_largest, 0)
    rescale = jnp.exp(shift)
    spread = rescale * (spread + shift * total) + (weights * below).sum(-1)
    total = rescale * total + weights.sum(-1)
    return jnp.maximum(best, best_here), place, chosen, new_largest, total, spread


def _cut(x: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """x [..., number · size, H] as [number, ..., size, H], and where each block begins, int32."""
    number = x.shape[-2] // size
    blocks = jnp.moveaxis(x.reshape(*x.shape[:-2], number, size, x.shape[-1]), -3, 0)
    return blocks, jnp.arange(number, dtype=jnp.int32) * size
