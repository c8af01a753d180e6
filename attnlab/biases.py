"""Biases: what is added to the logits of queries and keys, as values.

An array [*B, N, T, S] is a bias, and so is a `Relative`, which knows the distance j − i alone and
holds T + S − 1 numbers a head instead of T · S. Engines ask for one block of it at a time, and its
gradient is as small.

    >>> import jax.numpy as jnp
    >>> Relative(jnp.array([-2.0, -1.0, 0.0, 1.0])).as_array(2, 3)  # distances -1, 0, 1, 2
    Array([[-1.,  0.,  1.],
           [-2., -1.,  0.]], dtype=float32)

Letters: *B batch axes, T queries, S keys, N query heads, K key/value heads, G = N / K.
"""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from attnlab.core.axes import HeadLayout, split_heads
from attnlab.core.checks import as_array, as_size, is_floating, require, require_instance
from attnlab.core.shapes import fit

__all__ = ["Bias", "Explicit", "Relative", "alibi", "as_bias", "buckets_of_distances", "distances"]


class Bias(flax.struct.PyTreeNode, abc.ABC):
    """A term of the logits. Subclasses are pytrees whose arrays lead with the batch and heads."""

    # Letters of the array's axes in layout, as `split.by_device` divides them.
    axes: ClassVar[str]

    @abc.abstractmethod
    def as_array(self, num_queries: int, num_keys: int) -> jax.Array:
        """The whole bias, [..., T or 1, S or 1]; of a `Relative` in float32 at least."""

    @abc.abstractmethod
    def in_layout(self, layout: HeadLayout) -> Bias:
        """The same bias with arrays of [B|1, K|1, G|1, ...], as an engine slices.

        Raises:
          ValueError: the arrays do not fit, or are not floating point.
        """

    @abc.abstractmethod
    def for_queries(self, offset: Any, count: int, num_keys: int) -> Bias:
        """A bias of the whole sequence, cut to `count` queries that begin at position `offset`.

        NaN where they begin before its first row or end behind its last.
        """

    @abc.abstractmethod
    def padded(self, num_queries: int, num_keys: int) -> Bias:
        """A bias in layout with zeros behind, so that `tile` can be asked for whole blocks only."""

    @abc.abstractmethod
    def tile(self, first_q: Any, first_k: Any, num_queries: int, num_keys: int) -> Bias:
        """The part of a padded bias that belongs to these queries and keys."""

    @abc.abstractmethod
    def add_tile(self, tile: Any, first_q: Any, first_k: Any) -> Bias:
        """The same bias and what is added to its `tile`: the transpose of that."""


class Explicit(Bias):
    """Any array that broadcasts to [*B, N, T, S]; O(T·S) memory is then the caller's.

    Args:
      array: floats.
    """

    array: ArrayLike

    axes: ClassVar[str] = "bngt"

    def as_array(self, num_queries, num_keys):
        return jnp.asarray(self.array)

    def in_layout(self, layout):
        return Explicit(split_heads(_as_floats("bias", self.array), layout, "bias"))

    def for_queries(self, offset, count, num_keys):
        array = jnp.asarray(self.array)
        if array.ndim < 2 or array.shape[-2] == 1:
            return self
        _require_rows(array.shape[-2], count)
        rows = jax.lax.dynamic_slice_in_dim(array, offset, count, array.ndim - 2)
        return Explicit(jnp.where(_is_within(offset, count, array.shape[-2]), rows, jnp.nan))

    def padded(self, num_queries, num_keys):
        array = jnp.asarray(self.array)
        behind = [(0, 0)] * (array.ndim - 2)
        for size, wanted in zip(array.shape[-2:], (num_queries, num_keys), strict=True):
            behind.append((0, 0 if size == 1 else wanted - size))
        return Explicit(jnp.pad(array, behind))

    def tile(self, first_q, first_k, num_queries, num_keys):
        array = jnp.asarray(self.array)
        for axis, start, size in ((-2, first_q, num_queries), (-1, first_k, num_keys)):
            if array.shape[axis] != 1:
                array = jax.lax.dynamic_slice_in_dim(array, start, size, array.ndim + axis)
        return Explicit(array)

    def add_tile(self, tile, first_q, first_k):
        array = jnp.asarray(self.array)
        ends = zip(array.shape[-2:], (first_q, first_k), strict=True)
        start = (0 if size == 1 else first for size, first in ends)
        return Explicit(_add_slice(array, tile.array, *start))


class Relative(Bias):
    """A bias of the distance alone: by_distance[j − i + T − 1] for query i and key j.

    Exact in every engine in memory O(T + S), gradients included. `alibi` makes one, and so does the
    module `RelativePositionBias`; any other is a function of `distances(T, S)`.

    Args:
      by_distance: floats [*B|1, N|1, T + S − 1], of the distances −(T − 1) … S − 1.
    """

    by_distance: ArrayLike
    # The place of the distance 0; engines set it.
    zero: int | None = flax.struct.field(pytree_node=False, default=None)

    axes: ClassVar[str] = "bng"

    def as_array(self, num_queries, num_keys):
        x = self._checked(num_queries, num_keys)
        # So that the gradient of a distance, a sum over its pairs, is one in float32.
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        # One period of num_queries + num_keys, read in rows that are shorter by one: each begins
        # one place further to the left.
        period = num_queries + num_keys
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])[..., None, :]
        x = jnp.broadcast_to(x, (*x.shape[:-2], num_queries, period))
        x = x.reshape(*x.shape[:-2], -1)[..., num_queries - 1 : num_queries * period - 1]
        return x.reshape(*x.shape[:-1], num_queries, period - 1)[..., :num_keys]

    def in_layout(self, layout):
        x = self._checked(layout.num_queries, layout.num_keys)
        length = x.shape[-1]
        x = split_heads(x[..., None, :], layout._replace(num_queries=1, num_keys=length), "bias")
        return Relative(x[..., 0, :], layout.num_queries - 1)

    def for_queries(self, offset, count, num_keys):
        x = as_array("Relative.by_distance", self.by_distance)
        rows, size = x.shape[-1] - num_keys + 1, count + num_keys - 1
        _require_rows(rows, count)
        part = jax.lax.dynamic_slice_in_dim(x, rows - offset - count, size, x.ndim - 1)
        return Relative(jnp.where(_is_within(offset, count, rows), part, jnp.nan))

    def padded(self, num_queries, num_keys):
        x, zero = jnp.asarray(self.by_distance), num_queries - 1
        before = zero - self.zero
        after = num_queries + num_keys - 1 - x.shape[-1] - before
        return Relative(jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)]), zero)

    def tile(self, first_q, first_k, num_queries, num_keys):
        x, zero = jnp.asarray(self.by_distance), num_queries - 1
        start = first_k - first_q + self.zero - zero
        size = num_queries + num_keys - 1
        return Relative(jax.lax.dynamic_slice_in_dim(x, start, size, x.ndim - 1), zero)

    def add_tile(self, tile, first_q, first_k):
        x, start = jnp.asarray(self.by_distance), first_k - first_q + self.zero - tile.zero
        return Relative(_add_slice(x, tile.by_distance, start), self.zero)

    def _checked(self, num_queries: int, num_keys: int) -> jax.Array:
        """The numbers, which must be those of so many queries and keys."""
        x = _as_floats("Relative.by_distance", self.by_distance)
        length = num_queries + num_keys - 1
        remedy = f"a number a distance of {num_queries} queries and {num_keys} keys"
        fit("Relative.by_distance: *B distances", x, distances=length, remedy=remedy)
        set_here = self.zero in (None, num_queries - 1)
        require(set_here, f"Relative.zero is for engines to set; got {self.zero} (leave it None)")
        return x


def distances(num_queries: int, num_keys: int) -> np.ndarray:
    """The distances j − i that a `Relative` has, [T + S − 1]: −(T − 1) … S − 1."""
    return np.arange(1 - num_queries, num_keys)


def alibi(num_heads: int, num_queries: int, num_keys: int) -> Relative:
    """Attention with linear biases: −m_n · |j − i|, the slopes m_n a geometric sequence.

    For N heads, a power of 2, m_n = 2^(−8n/N), n = 1 … N; for other N the slopes of the next
    smaller power of 2, and behind them every second one of twice that power. The paper has it
    under `masks.Causal()`; without, it is the same on both sides.

    Args:
      num_heads: number of query heads, N.
      num_queries: number of queries, T.
      num_keys: number of keys, S.

    Returns:
      A `Relative` [N, T + S − 1], float32, with nothing to learn.

    Source: Press, Smith & Lewis 2022, §3, and their released code for other N.

    Example:
      >>> alibi(2, 2, 2).as_array(2, 2)[0]  # slope 1/16
      Array([[-0.    , -0.0625],
             [-0.0625, -0.    ]], dtype=float32)
    """
    num_heads = as_size("num_heads", num_heads)
    num_queries = as_size("num_queries", num_queries)
    num_keys = as_size("num_keys", num_keys)
    power = 1 << num_heads.bit_length() - 1
    slopes = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    slopes += [2 ** (-4 * n / power) for n in range(1, 2 * power + 1, 2)][: num_heads - power]
    table = -np.outer(slopes, np.abs(distances(num_queries, num_keys)))
    return Relative(jnp.asarray(table, jnp.float32))


def buckets_of_distances(
    distances: ArrayLike,
    *,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> np.ndarray:
    """The buckets that share a learned bias: each small distance has one, larger ones fewer.

    Of B buckets (half of them for each direction, where `bidirectional`) the first B/2 are one
    distance each; the others are of equal width in the logarithm, and the last has all from
    `max_distance` on. Where it is not bidirectional, keys after the query share bucket 0.

    Args:
      distances: distances j − i, integers of any shape, known while tracing.
      num_buckets: number of buckets; a multiple of 4 where bidirectional, else of 2.
      max_distance: distance from which on all share a bucket; more than the single ones.
      bidirectional: whether keys after the query have buckets of their own.

    Returns:
      Integers in [0, num_buckets), of the same shape. Source: Raffel et al. 2020, §2.1, and their
      released code.

    Raises:
      ValueError: numbers of buckets that cannot be halved; a largest distance without a bucket.
    """
    num_buckets = as_size("num_buckets", num_buckets)
    max_distance = as_size("max_distance", max_distance)
    parts = 4 if bidirectional else 2
    require(
        num_buckets % parts == 0,
        f"num_buckets must be a multiple of {parts} where bidirectional={bidirectional}; got"
        f" {num_buckets}",
    )
    distances = np.asarray(distances)
    require(
        np.issubdtype(distances.dtype, np.integer),
        f"distances must be integers; got {distances.dtype}",
    )
    distances = distances.astype(np.int64)  # small types hold no −(−128), unsigned no −3
    of_side = num_buckets // 2 if bidirectional else num_buckets
    single = of_side // 2
    require(
        max_distance > single,
        f"max_distance must be more than {single}, of which each distance has a bucket of its own;"
        f" got {max_distance} (use fewer buckets)",
    )
    length = np.abs(distances) if bidirectional else np.maximum(-distances, 0)
    width = math.log(max_distance / single) / (of_side - single)
    # Of float32, as the released code: at a border between two buckets it decides by rounding.
    logarithm = np.log(np.maximum(length, 1).astype(np.float32) / single) / np.float32(width)
    large = np.minimum(single + logarithm.astype(int), of_side - 1)
    bucket = np.where(length < single, length, large)
    return bucket + np.where(distances > 0, of_side, 0) if bidirectional else bucket


def as_bias(bias: Bias | ArrayLike | None) -> Bias | None:
    """Biases and None stay; an array becomes `Explicit`.

    Raises:
      ValueError: bias is another thing, such as a function that makes one.
    """
    if bias is None or isinstance(bias, Bias):
        return bias
    given: Any = bias
    wanted = "an array, or a value of attnlab.biases, such as biases.alibi(N, T, S)"
    remedy = " (a module that makes one goes to position_bias=)"
    require_instance("bias", given, not (isinstance(given, str) or callable(given)), wanted, remedy)
    return Explicit(as_array("bias", given))


def _as_floats(name: str, x: ArrayLike) -> jax.Array:
    x = as_array(name, x)
    require(
        is_floating(x.dtype),
        f"{name} must be floating point of 16 bits or more, added to the logits; got {x.dtype}"
        " (cast it; a boolean mask goes to mask=)",
    )
    return x


def _add_slice(x: jax.Array, part: jax.Array, *start: Any) -> jax.Array:
    """x and `part` added to it from `start` on in the last axes; in the others they are alike."""
    starts = [jnp.int32(0)] * (x.ndim - len(start)) + [jnp.asarray(n, jnp.int32) for n in start]
    updated = jax.lax.dynamic_slice(x, starts, part.shape) + part
    return jax.lax.dynamic_update_slice(x, updated, starts)


def _is_within(offset: Any, count: int, rows: int) -> Any:
    return (offset >= 0) & (offset <= rows - count)  # a sum may be more than int32 holds


def _require_rows(rows: int, count: int) -> None:
    require(
        rows >= count,
        f"bias must be of the whole sequence, whose next {count} queries are decoded; got one of"
        f" {max(rows, 0)}",
    )
