"""Masks: who may see whom, as values.

A mask is a small pytree. It combines with `&`, passes through `jit`, `vmap` and `grad`, and stays
lazy: an attention engine asks for one block of it at a time (`block`), and first asks which keys a
block of queries can see at all (`key_range`), so that blocks nobody looks at are never visited.

True means "may attend". Drawn for 4 queries and 4 keys (`x` = may attend):

    Causal()      Window(1, 0)   Padding(3)    Segments([0, 0, 1, 1])
    x . . .       x . . .        x x x .       x x . .
    x x . .       x x . .        x x x .       x x . .
    x x x .       . x x .        x x x .       . . x x
    x x x x       . . x x        x x x .       . . x x

Letters: *B batch axes, T queries, S keys, N query heads, K key/value heads, G = N / K.

    >>> mask = Causal() & Padding(3)
    >>> mask.as_array(4, 4)[0].astype(int)
    Array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 0]], dtype=int32)
"""

from __future__ import annotations

import abc
import functools
import operator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.axes import HeadLayout, lead_with_ones, merge_batch, split_heads
from attnlab.checks import require, require_arrays_of_mask, require_instance

__all__ = [
    "Both",
    "Causal",
    "Explicit",
    "Mask",
    "Padding",
    "Segments",
    "Window",
    "as_mask",
    "combine",
    "from_padding",
]


class Mask(flax.struct.PyTreeNode, abc.ABC):
    """Who may see whom. Subclasses are pytrees whose arrays lead with the batch axes."""

    @abc.abstractmethod
    def block(self, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
        """The mask for some queries and keys.

        Args:
          q_positions: query positions [bq], ascending and contiguous.
          k_positions: key positions [bk], ascending and contiguous.

        Returns:
          Booleans that broadcast to [*B, N, bq, bk].
        """

    @abc.abstractmethod
    def in_layout(self, layout: HeadLayout) -> Mask:
        """The same mask with arrays of [B, K, ...] (or 1 in place of B, K), as an engine slices."""

    def key_range(self, q_positions: jax.Array, num_keys: int) -> tuple[Any, Any]:
        """Bounds [first, stop) outside which none of these queries sees a key, in any example."""
        del q_positions
        return 0, num_keys

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """How many keys before and after its position a query sees at most; None = unbounded."""
        return None, None

    def for_queries(self, offset: ArrayLike, count: int) -> Mask:
        """A mask of the whole sequence, cut to `count` queries that begin at position `offset`."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be cut to some queries: define for_queries to decode"
        )

    def pad(self, block_q: int, block_k: int) -> Mask:
        """The same mask, so that `block` can be asked about positions in whole blocks only."""
        del block_q, block_k
        return self

    def as_array(self, num_queries: int, num_keys: int) -> jax.Array:
        """The whole mask, [*B, 1 or N, T, S]; O(T·S) memory, for reference and for looking at."""
        require_arrays_of_mask(self)
        whole = self.block(jnp.arange(num_queries), jnp.arange(num_keys))
        return jnp.broadcast_to(whole, (*whole.shape[:-2], num_queries, num_keys))

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Both(self, other)


class Both(Mask):
    """A pair is visible if both masks show it; made by `&`."""

    first: Mask
    second: Mask

    def block(self, q_positions, k_positions):
        first = self.first.block(q_positions, k_positions)
        second = self.second.block(q_positions, k_positions)
        ndim = max(first.ndim, second.ndim)
        return lead_with_ones(first, ndim) & lead_with_ones(second, ndim)

    def in_layout(self, layout):
        return Both(self.first.in_layout(layout), self.second.in_layout(layout))

    def for_queries(self, offset, count):
        return Both(self.first.for_queries(offset, count), self.second.for_queries(offset, count))

    def pad(self, block_q, block_k):
        return Both(self.first.pad(block_q, block_k), self.second.pad(block_q, block_k))

    def key_range(self, q_positions, num_keys):
        first_start, first_stop = self.first.key_range(q_positions, num_keys)
        second_start, second_stop = self.second.key_range(q_positions, num_keys)
        return jnp.maximum(first_start, second_start), jnp.minimum(first_stop, second_stop)

    @property
    def reach(self):
        pairs = zip(self.first.reach, self.second.reach, strict=True)
        left, right = (
            min((size for size in pair if size is not None), default=None) for pair in pairs
        )
        return left, right


class Causal(Mask):
    """Query i sees keys j ≤ i + q_offset (top-left aligned when T ≠ S, as in `jax.nn`).

    Args:
      q_offset: position of the first query among the keys, an int or integers [*B]; the number of
        tokens already in the cache when decoding.
    """

    q_offset: ArrayLike = 0

    def block(self, q_positions, k_positions):
        return _relative(self.q_offset, q_positions, k_positions) <= 0

    def in_layout(self, layout):
        return Causal(merge_batch(self.q_offset, layout, "Causal.q_offset"))

    def for_queries(self, offset, count):
        return Causal(self.q_offset + offset)

    def key_range(self, q_positions, num_keys):
        stop = q_positions[-1] + 1 + jnp.max(jnp.asarray(self.q_offset))
        return 0, jnp.clip(stop, 0, num_keys)

    @property
    def reach(self):
        return None, 0


class Window(Mask):
    """Query i sees keys i + q_offset − left ≤ j ≤ i + q_offset + right, both ends included.

    Args:
      left: number of keys seen before the query; None = all of them.
      right: number of keys seen after the query; None = all of them.
      q_offset: position of the first query among the keys, as in `Causal`.
    """

    left: int | None = flax.struct.field(pytree_node=False)
    right: int | None = flax.struct.field(pytree_node=False)
    q_offset: ArrayLike = 0

    def __post_init__(self):
        for name, size in (("left", self.left), ("right", self.right)):
            require(
                size is None or (isinstance(size, int) and size >= 0),
                f"Window.{name} counts keys, an int ≥ 0 or None; got {size!r}",
            )

    def block(self, q_positions, k_positions):
        relative = _relative(self.q_offset, q_positions, k_positions)
        visible = jnp.ones(relative.shape, bool)
        if self.left is not None:
            visible &= relative >= -self.left
        if self.right is not None:
            visible &= relative <= self.right
        return visible

    def in_layout(self, layout):
        return self.replace(q_offset=merge_batch(self.q_offset, layout, "Window.q_offset"))

    def for_queries(self, offset, count):
        return self.replace(q_offset=self.q_offset + offset)

    def key_range(self, q_positions, num_keys):
        offset = jnp.asarray(self.q_offset)
        start: Any = 0
        stop: Any = num_keys
        if self.left is not None:
            start = jnp.clip(q_positions[0] + jnp.min(offset) - self.left, 0, num_keys)
        if self.right is not None:
            stop = jnp.clip(q_positions[-1] + jnp.max(offset) + self.right + 1, 0, num_keys)
        return start, stop

    @property
    def reach(self):
        return self.left, self.right


class Padding(Mask):
    """Keys from `kv_lengths` on are seen by nobody; queries from `q_lengths` on see nothing.

    Args:
      kv_lengths: numbers of real keys of each example, integers [*B].
      q_lengths: numbers of real queries of each example, integers [*B]; None = all queries are
        real.
    """

    kv_lengths: ArrayLike
    q_lengths: ArrayLike | None = None

    def block(self, q_positions, k_positions):
        kv_lengths = jnp.asarray(self.kv_lengths)[..., None, None, None]
        visible = lead_with_ones(k_positions, kv_lengths.ndim) < kv_lengths
        if self.q_lengths is not None:
            q_lengths = jnp.asarray(self.q_lengths)[..., None, None, None]
            rows = lead_with_ones(q_positions[:, None], q_lengths.ndim) < q_lengths
            ndim = max(visible.ndim, rows.ndim)
            visible = lead_with_ones(visible, ndim) & lead_with_ones(rows, ndim)
        return visible

    def in_layout(self, layout):
        kv_lengths = merge_batch(self.kv_lengths, layout, "Padding.kv_lengths")
        if self.q_lengths is None:
            return Padding(kv_lengths)
        return Padding(kv_lengths, merge_batch(self.q_lengths, layout, "Padding.q_lengths"))

    def for_queries(self, offset, count):
        if self.q_lengths is None:
            return self
        return Padding(self.kv_lengths, jnp.asarray(self.q_lengths) - offset)

    def key_range(self, q_positions, num_keys):
        del q_positions
        return 0, jnp.clip(jnp.max(jnp.asarray(self.kv_lengths)), 0, num_keys)


class Segments(Mask):
    """Query i sees key j if both carry the same segment id: several sequences packed in one row.

    Args:
      q_ids: segment ids of the queries, integers [*B, T].
      kv_ids: segment ids of the keys, integers [*B, S]; None = `q_ids` (self-attention).
    """

    q_ids: ArrayLike
    kv_ids: ArrayLike | None = None

    def block(self, q_positions, k_positions):
        q_ids, kv_ids = self._ids()
        rows = jnp.take(q_ids, q_positions, axis=-1, mode="clip")[..., None, :, None]
        columns = jnp.take(kv_ids, k_positions, axis=-1, mode="clip")[..., None, None, :]
        return rows == columns

    def in_layout(self, layout):
        q_ids, kv_ids = self._ids()
        for name, ids, length in (
            ("q_ids", q_ids, layout.num_queries),
            ("kv_ids", kv_ids, layout.num_keys),
        ):
            require(
                ids.ndim >= 1 and ids.shape[-1] == length,
                f"Segments.{name} must be [*B, {length}], an id a position; got {ids.shape}",
            )
        return Segments(
            merge_batch(q_ids, layout, "Segments.q_ids", tail=1),
            merge_batch(kv_ids, layout, "Segments.kv_ids", tail=1),
        )

    def for_queries(self, offset, count):
        q_ids, kv_ids = self._ids()
        return Segments(jax.lax.dynamic_slice_in_dim(q_ids, offset, count, q_ids.ndim - 1), kv_ids)

    def key_range(self, q_positions, num_keys):
        q_ids, kv_ids = self._ids()
        ids = jnp.take(q_ids, q_positions, axis=-1, mode="clip")
        first, last = ids.min(-1, keepdims=True), ids.max(-1, keepdims=True)
        return _hull(((kv_ids >= first) & (kv_ids <= last)).reshape(-1, num_keys).any(0))

    def _ids(self) -> tuple[jax.Array, jax.Array]:
        q_ids = jnp.asarray(self.q_ids)
        return q_ids, (q_ids if self.kv_ids is None else jnp.asarray(self.kv_ids))


class Explicit(Mask):
    """Any boolean array that broadcasts to [*B, N, T, S]; O(T·S) memory is then the caller's."""

    array: ArrayLike

    def block(self, q_positions, k_positions):
        array = jnp.asarray(self.array)
        array = lead_with_ones(array, max(2, array.ndim))
        for axis, positions in ((-2, q_positions), (-1, k_positions)):
            if array.shape[axis] != 1:
                # A slice, not a gather: positions are contiguous.
                array = jax.lax.dynamic_slice_in_dim(
                    array, positions[0], positions.shape[0], axis % array.ndim
                )
        return array

    def in_layout(self, layout):
        remedy = " (real tokens [*B, S] go through masks.from_padding)"
        return Explicit(split_heads(self.array, layout, "mask", remedy))

    def for_queries(self, offset, count):
        array = jnp.asarray(self.array)
        if array.ndim < 2 or array.shape[-2] == 1:
            return self
        return Explicit(jax.lax.dynamic_slice_in_dim(array, offset, count, array.ndim - 2))

    def pad(self, block_q, block_k):
        array = jnp.asarray(self.array)
        rows, columns = (
            0 if size == 1 else -size % block
            for size, block in zip(array.shape[-2:], (block_q, block_k), strict=True)
        )
        return Explicit(jnp.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, rows), (0, columns)]))

    def key_range(self, q_positions, num_keys):
        array = jnp.asarray(self.array)
        if array.shape[-1] == 1:
            return 0, num_keys
        if array.shape[-2] != 1:
            array = jax.lax.dynamic_slice_in_dim(
                array, q_positions[0], q_positions.shape[0], array.ndim - 2
            )
        start, stop = _hull(array.reshape(-1, array.shape[-1]).any(0))
        return start, jnp.minimum(stop, num_keys)


def from_padding(real: ArrayLike) -> Explicit:
    """Keys that are padding are seen by nobody, wherever in the row they stand.

    Args:
      real: booleans [*B, S], True = a real token. Where these come first, `Padding` of their number
        says the same, and more implementations serve it.
    """
    real = jnp.asarray(real)
    require(
        real.dtype == jnp.bool_ and real.ndim > 0,
        "from_padding takes booleans [*B, S], True = a real token; got"
        f" {real.dtype} {real.shape} (tokens != pad_id; lengths go to masks.Padding)",
    )
    return Explicit(real[..., None, None, :])


def as_mask(mask: Mask | ArrayLike | None) -> Mask | None:
    """Masks and None stay; a boolean array becomes `Explicit`.

    Raises:
      ValueError: for anything else, such as an additive mask of floats, or a mask made of it.
    """
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        wanted = "of attnlab.masks, such as masks.Causal(), or a boolean array"
        require_instance("mask", mask, not isinstance(mask, str), wanted)
        mask = Explicit(jnp.asarray(mask))
    require_arrays_of_mask(mask)
    return mask


def combine(*given: Mask | ArrayLike | None) -> Mask | None:
    """`&` of all that are not None; boolean arrays become `Explicit`."""
    present = [mask for mask in map(as_mask, given) if mask is not None]
    return functools.reduce(operator.and_, present) if present else None


def _relative(q_offset: ArrayLike, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
    """k − (q + offset), [*B, 1, bq, bk] where the offset is [*B]."""
    offset = jnp.asarray(q_offset)[..., None, None, None]
    relative = k_positions[None, :] - q_positions[:, None]
    return lead_with_ones(relative, offset.ndim) - offset


def _hull(any_visible: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First and one-past-last True of [S]; (0, 0) where there is none."""
    num_keys = any_visible.shape[0]
    start = jnp.argmax(any_visible)
    stop = num_keys - jnp.argmax(any_visible[::-1])
    return start, jnp.where(any_visible.any(), stop, start)
