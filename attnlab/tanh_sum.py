"""The additive score's inner loop: Σ_h w_h tanh(q_h + k_h) for a block, without [T, S, hidden].

A tanh for every (query, key, hidden unit) is the whole cost of additive attention. It is cut twice:

* `tanh(a + b) = 1 − 2 / (1 + e^{2a} e^{2b})`, so the exponentials are taken per position, and a
  pair pays one product and one division;
* the hidden units are summed in groups, so memory holds one [T, S] block and no third axis.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attnlab.meshes import vary_like

__all__ = ["tanh_sum"]

# Hidden units summed in one pass over the block: enough to pay for reading and writing it.
_FORWARD_GROUP = 16
# Hidden units held at once in the backward, as [bq, group, bk].
_BACKWARD_GROUP = 2


class _Range(NamedTuple):
    """Where products of exponentials are as good as tanh.

    Up to `safe`, or with one side beyond, the product is exact or saturates correctly: arguments
    are clipped where tanh is 1 in this precision whatever the safe side is, and e^{2·safe} ·
    e^{2·clip} and the square of `largest` are still finite. Only two far and opposite arguments
    need the direct form.
    """

    safe: float
    clip: float
    largest: float


_RANGES = {"float32": _Range(33.0, 43.0, 2e17), "float64": _Range(150.0, 170.0, 1e150)}


def tanh_sum(q: jax.Array, k: jax.Array, w: jax.Array) -> jax.Array:
    """logits[i, j] = Σ_h w[h] · tanh(q[i, h] + k[j, h]).

    Args:
      q: queries [..., bq, hidden], floats.
      k: keys [..., bk, hidden]; leading axes broadcast with those of q.
      w: weights of the hidden units, [..., hidden]; leading axes broadcast too.

    Returns:
      [..., bq, bk] in at least float32. O(bq·bk·hidden) time, O(bq·bk) memory, also backward.
    """
    return _tanh_sum(*vary_like((q, k, w)))


@jax.custom_vjp
def _tanh_sum(q, k, w):
    return _for_range(_sum_by_products, _sum_by_tanh, _sum_of_one, q, k, w)


def _forward(q, k, w):
    return _tanh_sum(q, k, w), (q, k, w)


def _backward(residuals, dlogits):
    # A NaN that matters is in dlogits; at a hidden position it must not meet the gradient 0.
    q, k, w = (jnp.where(jnp.isnan(x), 0, x) for x in residuals)
    dq, dk, dw = _for_range(_grad_by_products, _grad_by_tanh, _grad_of_one, q, k, w, dlogits)
    return tuple(
        _sum_to_shape(grad, x.shape).astype(x.dtype) for grad, x in ((dq, q), (dk, k), (dw, w))
    )


_tanh_sum.defvjp(_forward, _backward)


def _for_range(by_products, by_tanh, of_one, q, k, w, *more):
    """Products of exponentials where they are exact, tanh itself where both sides are extreme.

    Of one query, a decoder's, [1, S, hidden] is as large as the keys: `of_one` may hold it.
    """
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    q, k, w = (x.astype(dtype) for x in (q, k, w))
    safe = _RANGES[dtype.name].safe
    exact = functools.reduce(
        jnp.logical_or, (jnp.max(jnp.abs(x), initial=0) <= safe for x in (q, k))
    )
    lead = jnp.broadcast_shapes(q.shape[:-2], k.shape[:-2], w.shape[:-1])
    count = math.prod(lead)

    def merge_lead(x, tail):
        x = jnp.broadcast_to(x, lead + x.shape[x.ndim - tail :])
        # Axes of length 1 are dropped: XLA:CPU reduces such arrays five times slower.
        return x.reshape(*(() if count == 1 else (count,)), *x.shape[len(lead) :])

    merged = merge_lead(q, 2), merge_lead(k, 2), merge_lead(w, 1), *(merge_lead(x, 2) for x in more)
    if count != 1:
        by_products, by_tanh, of_one = (jax.vmap(f) for f in (by_products, by_tanh, of_one))
    if q.shape[-2] == 1:
        result = of_one(*merged)
    else:
        result = jax.lax.cond(exact, by_products, by_tanh, *merged)
    return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[count != 1 :]), result)


def _hidden_groups(x: jax.Array, size: int) -> jax.Array:
    """[n, hidden] to [hidden / size, size, n], padded with zeros; [hidden] alike without n.

    Positions come last: along them a block's rows are read as vectors.
    """
    hidden = x.shape[-1]
    group = min(size, hidden + hidden % 2)  # even: units are taken in pairs
    x = jnp.pad(x.T, [(0, -hidden % group)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(-1, group, *x.shape[1:])


def _sum(add_units, q, k, w):
    """Adds up Σ_h w_h tanh(·) over the hidden units, a group of them at a time."""

    def add_group(block, group):
        return add_units(block, *group), None

    groups = jax.tree.map(functools.partial(_hidden_groups, size=_FORWARD_GROUP), (q, k, w))
    block = jnp.zeros((q.shape[0], k.shape[0]), q.dtype)
    return jax.lax.scan(add_group, vary_like(block, q), groups)[0]


def _exponential(x: jax.Array) -> jax.Array:
    clip = _RANGES[x.dtype.name].clip
    return jnp.exp(2 * jnp.clip(x, -clip, clip))


def _sum_by_products(q, k, w):
    """Two units share a division: w/d + v/e = (w e + v d) / (d e)."""
    largest = _RANGES[q.dtype.name].largest

    def add_units(block, a, b, w):
        for h in range(0, w.shape[0], 2):
            # Clipped where tanh is 1 anyway, so that the product of two is still finite.
            d, e = (jnp.minimum(1 + a[i, :, None] * b[i, None], largest) for i in (h, h + 1))
            block += (w[h] + w[h + 1]) - (2 * w[h] * e + 2 * w[h + 1] * d) / (d * e)
        return block

    return _sum(add_units, _exponential(q), _exponential(k), w)


def _sum_by_tanh(q, k, w):
    def add_units(block, q, k, w):
        for h in range(w.shape[0]):
            block += w[h] * jnp.tanh(q[h, :, None] + k[h, None])
        return block

    return _sum(add_units, q, k, w)


def _grads(tanh_and_slope, q, k, w, dlogits):
    """dq, dk, dw from tanh and its slope 1 − tanh², a group of hidden units at a time."""

    def one_group(_, group):
        q, k = group
        tanh, slope = tanh_and_slope(q.T[:, :, None], k[None])
        dlogits_of_units = dlogits[:, None, :]
        # Held in memory on purpose: XLA:CPU would recompute the division in each reduction below,
        # in scalar code (30 times slower).
        dw_terms, dsum = jax.lax.optimization_barrier(
            (dlogits_of_units * tanh, dlogits_of_units * slope)
        )
        return None, (dsum.sum(2).T, dsum.sum(0), dw_terms.sum(2).T)

    groups = jax.tree.map(functools.partial(_hidden_groups, size=_BACKWARD_GROUP), (q, k))
    _, grads = jax.lax.scan(one_group, None, groups)  # each [hidden / size, size, n]
    dsum_q, dsum_k, dw = (x.reshape(-1, x.shape[-1])[: w.shape[0]].T for x in grads)
    return w[None] * dsum_q, w[None] * dsum_k, dw.sum(0)


def _grad_by_products(q, k, w, dlogits):
    def tanh_and_slope(a, b):
        reciprocal = jax.lax.optimization_barrier(1 / (1 + a * b))
        return 1 - 2 * reciprocal, 4 * reciprocal * (1 - reciprocal)

    return _grads(tanh_and_slope, _exponential(q), _exponential(k), w, dlogits)


def _grad_by_tanh(q, k, w, dlogits):
    def tanh_and_slope(a, b):
        tanh = jnp.tanh(a + b)
        return tanh, 1 - tanh * tanh

    return _grads(tanh_and_slope, q, k, w, dlogits)


def _sum_of_one(q, k, w):
    return (jnp.tanh(q + k) * w[None]).sum(1)[None]


def _grad_of_one(q, k, w, dlogits):
    tanh, dlogits = jnp.tanh(q + k), dlogits[0][:, None]
    dsum = w[None] * dlogits * (1 - tanh * tanh)
    return dsum.sum(0, keepdims=True), dsum, (dlogits * tanh).sum(0)


def _sum_to_shape(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Undoes broadcasting: sums the axes that `shape` lacks or has as 1."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1)
    return x.sum(axes, keepdims=True)
