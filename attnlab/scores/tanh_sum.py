"""The additive score's inner loop: Σ_h w_h tanh(q_h + k_h) for a block, without [T, S, hidden].

A tanh for every (query, key, hidden unit) is the whole cost of additive attention. It is cut twice:

* `tanh(a + b) = 1 − 2 / (1 + e^{2a} e^{2b})`, so the exponentials are taken per position, and a
  pair pays one product and one division;
* terms are summed in groups, so memory holds one [T, S] block and no third axis. Nor does it in the
  backward pass, whose sums over the queries and over the keys are [hidden, S] and [hidden, T].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlab.core.opaque import on_all_cores
from attnlab.devices.meshes import vary_like

# Terms added up in one pass over their sum: enough to pay for reading and writing it.
_GROUP = 16


class _Range(NamedTuple):
    """Where products of exponentials are as good as tanh.

    Up to `safe`, or with one side beyond, the product is exact or saturates correctly: arguments
    are clipped where tanh is 1 in this precision whatever the safe side is; the largest product,
    e^{2·safe} · e^{2·clip}, is infinite in float32 and gives 1 − 2 / ∞ = 1; the square of `largest`
    is finite. Only two far and opposite arguments need the direct form.
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
      [..., bq, bk] in at least float32. O(bq·bk·hidden) time, O(bq·bk) memory, also backward;
      of one query O(bk·hidden) memory.
    """
    return _tanh_sum(*vary_like((q, k, w)))


@jax.custom_vjp
def _tanh_sum(q, k, w):
    return _for_range(_sum, _sum_of_one, q, k, w)


def _forward(q, k, w):
    return _tanh_sum(q, k, w), (q, k, w)


def _backward(residuals, dlogits):
    q, k, w = residuals
    # A NaN that matters is in dlogits; at a hidden position it must not meet the gradient 0.
    q = jnp.where(jnp.isnan(q), 0, q)
    k = jnp.where(jnp.isnan(k), 0, k)
    w = jnp.where(jnp.isnan(w), 0, w)
    dq, dk, dw = _for_range(_grads, _grad_of_one, q, k, w, dlogits)
    return tuple(
        _sum_to_shape(grad, x.shape).astype(x.dtype) for grad, x in ((dq, q), (dk, k), (dw, w))
    )


_tanh_sum.defvjp(_forward, _backward)


def _for_range(of_block, of_one, q, k, w, *more):
    """Products of exponentials where they are exact, tanh itself where both sides are extreme.

    Of one query, a decoder's, [1, S, hidden] is as large as the keys: `of_one` may hold it.
    """
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    q = q.astype(dtype)
    k = k.astype(dtype)
    w = w.astype(dtype)
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
    by_products = functools.partial(of_block, _BY_PRODUCTS)
    by_tanh = functools.partial(of_block, _BY_TANH)
    if count != 1:
        by_products = jax.vmap(by_products)
        by_tanh = jax.vmap(by_tanh)
        of_one = jax.vmap(of_one)
    if q.shape[-2] == 1:
        result = of_one(*merged)
    else:
        result = jax.lax.cond(exact, by_products, by_tanh, *merged)
    return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[count != 1 :]), result)


def _exponential(x: jax.Array) -> jax.Array:
    clip = _RANGES[x.dtype.name].clip
    return jnp.exp(2 * jnp.clip(x, -clip, clip))


def _add_tanh(total, sums, weights):
    for x, w in zip(sums, weights, strict=True):
        total += w * jnp.tanh(x)
    return total


def _add_tanh_of_products(total, products, weights):
    """Two terms share a division: w/d + v/e = (w e + v d) / (d e)."""
    largest = _RANGES[total.dtype.name].largest
    # Clipped where tanh is 1 anyway, so that the product of two is still finite.
    denominators = [jnp.minimum(1 + x, largest) for x in products]
    for i in range(0, len(denominators), 2):
        d, e, w, v = denominators[i], denominators[i + 1], weights[i], weights[i + 1]
        total += (w + v) - (2 * w * e + 2 * v * d) / (d * e)
    return total


class _Way(NamedTuple):
    """How tanh(q + k) and its slope are found.

    Attributes:
      of_position: function of a position's q or k, taken before any pair.
      of_pair: function that joins those of a query and of a key.
      add_units: function that adds to a sum the tanh of some hidden units, with their weights.
      reciprocal: function of what is joined: r = 1 / (1 + e^{2x}) of x = q + k, of which
        tanh(x) is 1 − 2r and its slope 4(r − r²).
    """

    of_position: Callable[[jax.Array], jax.Array]
    of_pair: Callable[[jax.Array, jax.Array], jax.Array]
    add_units: Callable[[Any, Any, Any], Any]
    reciprocal: Callable[[jax.Array], jax.Array]


_BY_PRODUCTS = _Way(_exponential, jnp.multiply, _add_tanh_of_products, lambda x: 1 / (1 + x))
_BY_TANH = _Way(lambda x: x, jnp.add, _add_tanh, lambda x: (1 - jnp.tanh(x)) / 2)


def _in_groups(add, total, terms):
    """`add(total, *group)` for all terms, arrays [n, ...], a group of them at a time."""

    def groups(x):
        size = min(_GROUP, len(x) + len(x) % 2)  # even: units are taken in pairs
        x = jnp.pad(x, [(0, -len(x) % size)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, size, *x.shape[1:])

    grouped = jax.tree.map(groups, terms)

    def add_group(total, i):
        i = on_all_cores(i)
        group = [jax.lax.dynamic_index_in_dim(x, i, keepdims=False) for x in grouped]
        return add(total, *group), None

    start = vary_like(total, terms[0])
    return jax.lax.scan(add_group, start, jnp.arange(len(grouped[0])))[0]


def _sum(way: _Way, q, k, w):
    """Adds up over the hidden units, in [bq, bk]."""
    # Positions come last: along them rows are read as vectors.
    q = way.of_position(q).T
    k = way.of_position(k).T

    def add_units(block, q, k, w):
        pairs = [way.of_pair(q[h, :, None], k[h, None]) for h in range(len(w))]
        return way.add_units(block, pairs, w)

    block = jnp.zeros((q.shape[1], k.shape[1]), q.dtype)
    return _in_groups(add_units, block, (q, k, w))


def _grads(way: _Way, q, k, w, dlogits):
    """Adds up over the positions of one side, in [hidden, positions of the other].

    Passes that each find the pairs again are twice as fast on a CPU as one that holds
    [bq, hidden, bk] in parts to reduce it three times. What is summed over the queries shares a
    pass: XLA:CPU writes one array in a pass, and a complex one holds two sums.
    """
    q = way.of_position(q)
    k = way.of_position(k)

    def add_over(of_reciprocal, x, y, weights):
        y = y.T

        def add_positions(total, x, weights):
            for i in range(len(x)):
                # Not two to a division: what a hidden position holds must not change how others
                # round.
                r = way.reciprocal(way.of_pair(x[i, :, None], y))
                total += of_reciprocal(r, weights[i, None])
            return total

        zero = jnp.zeros_like(of_reciprocal(y, y))
        return _in_groups(add_positions, zero, (x, weights)).T

    def quarter_slope(r, weight):
        weighted = weight * r
        return weighted - weighted * r

    def quarter_slope_and_half_tanh(r, weight):
        return jax.lax.complex(quarter_slope(r, weight), weight * (0.5 - r))

    slopes = add_over(quarter_slope, k, q, dlogits.T)
    both = add_over(quarter_slope_and_half_tanh, q, k, dlogits)
    return 4 * w[None] * slopes, 4 * w[None] * both.real, 2 * both.imag.sum(0)


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
