"""Masks that say by their positions which keys a query sees."""

from __future__ import annotations

from typing import Any, final

import flax.struct
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.checks import as_count, as_size, require, require_integers
from attnlab.masks.mask import Band, Mask

__all__ = ["Causal", "Chunks", "Window"]

_UNSET: Any = ...


class _Shifted(Mask):
    """A mask with a field `q_offset`, by which its queries are shifted among the keys."""

    def check(self):
        require_integers(self, "q_offset")

    @property
    def first_position(self: Any):
        given = self.q_offset
        given = jnp.asarray(given) if isinstance(given, list | tuple) else given
        return given.astype(jnp.int32) if hasattr(given, "dtype") else given  # int8 ends at 127

    def for_queries(self: Any, offset, count):
        return self.replace(q_offset=self.first_position + offset)


@final
class Causal(_Shifted):
    """Query i sees keys j ≤ i + q_offset (top-left aligned when T ≠ S, as in `jax.nn`).

    Args:
      q_offset: position of the first query among the keys, an int or integers [*B]; the number of
        tokens already in the cache when decoding.
    """

    q_offset: ArrayLike = 0

    def visible(self, i, j):
        return j - i - self.q_offset <= 0

    def key_range(self, q_positions, num_keys):
        stop = q_positions[-1] + 1 + jnp.max(jnp.asarray(self.q_offset))
        return 0, jnp.clip(stop, 0, num_keys)

    @property
    def reach(self):
        return None, 0

    @property
    def band(self):
        return Band(None, 0, self.q_offset)


@final
class Window(_Shifted):
    """Query i sees keys i + q_offset − left ≤ j ≤ i + q_offset + right, both ends included.

    Args:
      left: number of keys seen before the query; None = all of them.
      right: number of keys seen after the query; None = all of them.
      q_offset: position of the first query among the keys, as in `Causal`.
    """

    left: int | None = flax.struct.field(pytree_node=False)
    right: int | None = flax.struct.field(pytree_node=False, default=_UNSET)
    q_offset: ArrayLike = 0

    def __post_init__(self):
        require(
            self.right is not _UNSET,
            f"Window takes both sides, left and right; got Window({self.left}): write Window"
            f"({self.left}, {self.left}), or of the keys before a query Window({self.left}, 0)",
        )
        for name, size in (("left", self.left), ("right", self.right)):
            if size is not None:
                count = as_count(f"Window.{name} counts keys (None = all)", size)
                object.__setattr__(self, name, count)

    def visible(self, i, j):
        relative = j - i - self.q_offset
        visible = jnp.ones(relative.shape, bool)
        if self.left is not None:
            visible &= relative >= -self.left
        if self.right is not None:
            visible &= relative <= self.right
        return visible

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

    @property
    def band(self):
        return Band(self.left, self.right, self.q_offset)


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
        object.__setattr__(self, "size", as_size("Chunks.size", self.size))
        look_back = as_count("Chunks.look_back counts chunks", self.look_back)
        object.__setattr__(self, "look_back", look_back)

    def visible(self, i, j):
        chunks_before = (i + self.q_offset) // self.size - j // self.size
        return (chunks_before >= 0) & (chunks_before <= self.look_back)

    def key_range(self, q_positions, num_keys):
        offset = jnp.asarray(self.q_offset)
        first = (q_positions[0] + jnp.min(offset)) // self.size - self.look_back
        last = (q_positions[-1] + jnp.max(offset)) // self.size
        start, stop = first * self.size, (last + 1) * self.size
        return jnp.clip(start, 0, num_keys), jnp.clip(stop, 0, num_keys)

    @property
    def reach(self):
        return (self.look_back + 1) * self.size - 1, self.size - 1
