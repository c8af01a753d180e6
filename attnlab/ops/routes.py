"""Routes: which pairs of query and key are visited at all, as values.

A route is called with a score and the arrays, and is what a multi-head module is given as `route=`.
All take q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D] and the keywords of `attention`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.ops.attention import Implementation, attention, attention_weights
from attnlab.ops.local import window_attention
from attnlab.ops.lsh.route import LSH
from attnlab.scores import Score

__all__ = ["LSH", "AllPairs", "Route", "Window"]


@dataclasses.dataclass(frozen=True)
class AllPairs:
    """Every query visits every key that its mask shows; exact.

    Args:
      implementation: None, a name, or `Pallas(...)`, as for `attention`.
    """

    implementation: Implementation = None
    shares_qk: ClassVar[bool] = False

    def __call__(
        self,
        score: Score,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        q_offset: ArrayLike = 0,
        **options: Any,
    ) -> jax.Array:
        """The context [*B, T, N, D]."""
        del q_offset  # all pairs, wherever the queries stand
        return attention(score, q, k, v, implementation=self.implementation, **options)

    def weights(self, score, q, k, *, q_offset: ArrayLike = 0, **options) -> jax.Array:
        """The weights [*B, N, T, S], dense; the keywords of `attention_weights`."""
        del q_offset
        return attention_weights(score, q, k, **options)


@dataclasses.dataclass(frozen=True)
class Window:
    """A query visits the keys around its own position: `window_attention`; exact within the window.

    Args:
      left: keys before the query.
      right: keys after the query.
      implementation: as for `attention`.
    """

    left: int
    right: int
    implementation: Implementation = None
    shares_qk: ClassVar[bool] = False

    def __call__(
        self,
        score: Score,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        q_offset: ArrayLike = 0,
        **options: Any,
    ) -> jax.Array:
        """The context [*B, T, N, D]."""
        return window_attention(
            q,
            k,
            v,
            window=(self.left, self.right),
            q_offset=q_offset,
            score=score,
            implementation=self.implementation,
            **options,
        )

    def weights(self, score, q, k, *, q_offset: ArrayLike = 0, mask=None, **options) -> jax.Array:
        """The weights [*B, N, T, S], dense; the keywords of `attention_weights`."""
        mask = masks.combine(masks.Window(self.left, self.right, q_offset), mask)
        return attention_weights(score, q, k, mask=mask, **options)


Route = AllPairs | Window | LSH
