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
from attnlab.checks import require
from attnlab.ops.attention import attention, attention_weights
from attnlab.ops.hashing import default_num_buckets, hash_buckets, make_rotations
from attnlab.ops.local import window_attention
from attnlab.ops.lsh import STRICT, LSHOptions, lsh_attention
from attnlab.scores import Dot, Score

__all__ = ["LSH", "AllPairs", "Route", "Window"]


@dataclasses.dataclass(frozen=True)
class AllPairs:
    """Every query visits every key that its mask shows; exact.

    Args:
      implementation: None, "dense", "blockwise" or "cudnn", as for `attention`.
    """

    implementation: str | None = None
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
    implementation: str | None = None
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


@dataclasses.dataclass(frozen=True)
class LSH:
    """A query visits the keys that hash into its bucket: `lsh_attention`; approximate.

    Queries and keys are one projection (`shares_qk`): the route reads q and takes k to be the same.

    Args:
      num_hashes: R, rounds; more come nearer to all pairs, at R times the cost.
      num_buckets: an even number, or a tuple of even factors; None = 2·L/chunk_size, as the paper
        has it, for the length L at hand (`hashing.default_num_buckets`).
      chunk_size: C, slots of sorted order attended together.
      options: what published implementations disagree about; default strictly causal.
      seed: of the rotations where no `hash_key` is given, so that evaluation is deterministic.
    """

    num_hashes: int = 4
    num_buckets: int | tuple[int, ...] | None = None
    chunk_size: int = 64
    options: LSHOptions = STRICT
    seed: int = 0
    shares_qk: ClassVar[bool] = True

    def __call__(
        self,
        score: Score,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        mask: masks.Mask | ArrayLike | None = None,
        bias: ArrayLike | None = None,
        dropout_rate: float = 0.0,
        dropout_key: jax.Array | None = None,
        hash_key: jax.Array | None = None,
        precision: jax.lax.PrecisionLike = None,
        q_offset: ArrayLike | None = None,
    ) -> jax.Array:
        """The context [*B, L, N, D]; causal where the mask has `masks.Causal()`."""
        if q_offset is not None:
            raise NotImplementedError(
                "LSH does not decode with a key/value cache: buckets are sorted as a whole "
                "(run the causal forward over the sequence so far)"
            )
        require(
            q.shape[-3] == k.shape[-3],
            f"LSH attends within one sequence; got {q.shape[-3]} queries and {k.shape[-3]} keys",
        )
        if not (isinstance(score, Dot) and score.scale is None):
            raise NotImplementedError(
                "LSH has a score of its own, the dot product with unit keys; got "
                f"{score} (leave score unset, and scale with LSHOptions.logit_scale)"
            )
        if bias is not None:
            raise NotImplementedError("LSH takes no bias: it never makes the T × S logits")
        length, num_heads, head_dim = q.shape[-3:]
        rotations = make_rotations(
            jax.random.key(self.seed) if hash_key is None else hash_key,
            num_heads=num_heads,
            head_dim=head_dim,
            num_hashes=self.num_hashes,
            num_buckets=self.num_buckets or default_num_buckets(length, self.chunk_size),
        )
        return lsh_attention(
            q,
            v,
            hash_buckets(q, rotations),
            chunk_size=self.chunk_size,
            causal=False,
            mask=mask,
            options=self.options,
            dropout_rate=dropout_rate,
            dropout_key=dropout_key,
            precision=precision,
        )

    def weights(self, score, q, k, **options) -> jax.Array:
        """Refused: the T × S weights are what this route avoids."""
        del score, q, k, options
        raise NotImplementedError(
            "LSH never makes the T × S weights; compare its context with AllPairs instead"
        )


Route = AllPairs | Window | LSH
