"""Masks that say of each example what is padding, and which sequences are packed in it."""

from __future__ import annotations

from typing import final

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.core.checks import as_array, require_integers
from attnlab.core.shapes import fit
from attnlab.masks.int32 import as_position, shift
from attnlab.masks.mask import Lengths, Mask, OfPositions, SegmentIds, cut_rows, hull


@final
class Padding(OfPositions):
    """Keys from `kv_lengths` on are seen by nobody; queries from `q_lengths` on see nothing.

    Args:
      kv_lengths: numbers of real keys of each example, integers [*B].
      q_lengths: numbers of real queries of each example, integers [*B]; None = all queries are
        real.
    """

    kv_lengths: ArrayLike
    q_lengths: ArrayLike | None = None

    def visible(self, i, j):
        if self.q_lengths is None:
            return j < self.kv_lengths
        return (j < self.kv_lengths) & (i < self.q_lengths)

    @property
    def lengths(self):
        of_queries = None if self.q_lengths is None else as_position(self.q_lengths)
        return Lengths(as_position(self.kv_lengths), of_queries)

    def for_queries(self, offset, count):
        if self.q_lengths is None:
            return self
        return Padding(self.kv_lengths, shift(self.q_lengths, -as_position(offset)))

    def key_range(self, q_positions, num_keys):
        del q_positions
        return 0, jnp.clip(jnp.max(jnp.asarray(self.lengths.kv_lengths)), 0, num_keys)


@final
class Segments(Mask):
    """Query i sees key j if both carry the same segment id: several sequences packed in one row.

    Args:
      q_ids: segment ids of the queries, integers [*B, T].
      kv_ids: segment ids of the keys, integers [*B, S]; None = `q_ids` (self-attention).
    """

    q_ids: ArrayLike
    kv_ids: ArrayLike | None = None

    ranks = {"q_ids": 1, "kv_ids": 1}
    _hides_otherwise = False

    def visible(self, i, j):
        q_ids, kv_ids = self._ids()
        return jnp.take(q_ids, i, mode="clip") == jnp.take(kv_ids, j, mode="clip")

    @property
    def segment_ids(self):
        return SegmentIds(self.q_ids, self.kv_ids)

    def as_array(self, num_queries, num_keys):
        self._require_lengths(num_queries, num_keys)
        return super().as_array(num_queries, num_keys)

    def in_layout(self, layout):
        self._require_lengths(layout.num_queries, layout.num_keys)
        return super().in_layout(layout)

    def check(self):
        require_integers(self, "q_ids", "kv_ids")
        self._ids()  # which int32 holds

    def for_queries(self, offset, count):
        q_ids, kv_ids = self._ids()
        of_none = jnp.iinfo(jnp.int32).min  # the id of no key
        q_ids = q_ids.astype(int)
        return Segments(cut_rows(q_ids, offset, count, q_ids.ndim - 1, none=of_none), kv_ids)

    def key_range(self, q_positions, num_keys):
        q_ids, kv_ids = self._ids()
        # [..., bq] to [..., 1]: the least and the largest id of these queries
        ids = jnp.take(q_ids, q_positions, axis=-1, mode="clip")
        least = ids.min(-1, keepdims=True)
        largest = ids.max(-1, keepdims=True)
        # [..., S] to [S]: the keys of some id between them, in any example
        may_be_seen = (kv_ids >= least) & (kv_ids <= largest)
        return hull(may_be_seen.reshape(-1, num_keys).any(0))

    def _ids(self) -> tuple[jax.Array, jax.Array]:
        q_ids = as_array("Segments.q_ids", self.q_ids)
        if self.kv_ids is None:
            return q_ids, q_ids
        return q_ids, as_array("Segments.kv_ids", self.kv_ids)

    def _require_lengths(self, num_queries: int, num_keys: int) -> None:
        q_ids, kv_ids = self._ids()
        remedy = "kv_ids=None takes q_ids: give the keys' own" if self.kv_ids is None else ""
        fit("Segments.q_ids: *B T", q_ids, T=num_queries, remedy=remedy)
        fit("Segments.kv_ids: *B S", kv_ids, S=num_keys, remedy=remedy)
