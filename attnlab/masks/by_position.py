"""Masks that say by their positions which keys a query sees."""

from __future__ import annotations

from typing import Any, final

import flax.struct
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.core.checks import as_count, as_size
from attnlab.masks.int32 import LARGEST, as_position, shift
from attnlab.masks.mask import Band, OfPositions


# `self: Any` in these two: the fields and `band` are those of the subclasses, unknown to mypy here.
class _Shifted(OfPositions):
    """A mask with a field `q_offset`, by which its queries are shifted among the keys."""

    @property
    def first_position(self: Any):
        return as_position(self.q_offset)

    def for_queries(self: Any, offset, count):
        return self.replace(q_offset=shift(self.first_position, offset))


class _Banded(_Shifted):
    """A mask that is its `band`."""

    def visible(self: Any, i, j):
        lowest, highest = self.band.edges
        return (j - i >= lowest) & (j - i <= highest)

    def key_range(self: Any, q_positions, num_keys):
        start, stop = self.band.key_range(q_positions[0], q_positions[-1], num_keys)
        return jnp.min(start), jnp.max(stop)

    @property
    def reach(self: Any):
        return self.band.left, self.band.right


@final
class Causal(_Banded):
    """Query i sees keys j ≤ i + q_offset (top-left aligned when T ≠ S, as in `jax.nn`).

    Args:
      q_offset: position of the first query among the keys, an int or integers [*B]: of functions
        that are given a cache, the number of its tokens before. Modules that decode count these
        themselves: they take `Causal()` at every step.
    """

    q_offset: ArrayLike = 0

    @property
    def band(self):
        return Band(None, 0, self.first_position)


@final
class Window(_Banded):
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
            if size is not None:
                count = as_count(f"Window.{name} counts keys (None = all),", size)
                object.__setattr__(self, name, min(count, LARGEST))

    @property
    def band(self):
        return Band(self.left, self.right, self.first_position)


@final
class Chunks(_Shifted):
    """Query i sees the keys of its own chunk of positions and of `look_back` chunks before it.

    Args:
      size: number of positions of a chunk.
      look_back: number of chunks seen before a query's own.
      q_offset: position of the first query among the keys, as in `masks.Causal`.
    """

    size: int = flax.struct.field(pytree_node=False)
    look_back: int = flax.struct.field(pytree_node=False, default=1)
    q_offset: ArrayLike = 0

    def __post_init__(self):
        size = as_size("Chunks.size", self.size)
        look_back = as_count("Chunks.look_back counts chunks,", self.look_back)
        object.__setattr__(self, "size", min(size, LARGEST))
        object.__setattr__(self, "look_back", min(look_back, LARGEST))

    def visible(self, i, j):
        first, last = self._chunks(i, self.q_offset)
        return (first <= j // self.size) & (j // self.size <= last)

    def key_range(self, q_positions, num_keys):
        offset = jnp.asarray(self.first_position)
        first, _ = self._chunks(q_positions[0], jnp.min(offset))
        _, last = self._chunks(q_positions[-1], jnp.max(offset))
        # Chunks of keys alone, whose ends int32 holds.
        start = jnp.maximum(first, 0) * self.size
        stop = (jnp.clip(last, -1, (num_keys - 1) // self.size) + 1) * self.size
        return jnp.minimum(start, num_keys), jnp.minimum(stop, num_keys)

    @property
    def reach(self):
        return (self.look_back + 1) * self.size - 1, self.size - 1

    def _chunks(self, i, q_offset):
        """The first and the last chunk that queries see."""
        own = shift(q_offset, i) // self.size
        return shift(own, -self.look_back), own
