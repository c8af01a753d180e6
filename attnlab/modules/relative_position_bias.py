"""A learned bias for each distance between a query and a key."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from attnlab import biases
from attnlab.checks import as_size
from attnlab.modules.conventions import Initializer

__all__ = ["RelativePositionBias"]


class RelativePositionBias(nn.Module):
    """One learned number for each head and bucket of distances: Raffel et al. 2020, §2.1 (T5).

    Call it as `module(num_queries, num_keys)` and give what it returns to attention as `bias=`; a
    model calls it once, and all of its layers take the same. Distances share buckets as
    `biases.buckets_of_distances` says. The table is used as it is: T5 does not divide logits by
    √H, so with its weights a score of `DotScore(1.0)` belongs to it.

    Cost: T + S − 1 numbers a head, gradients included; nothing T × S is made by any engine but
    `"dense"`.

    Attributes:
      num_heads: number of query heads, N.
      num_buckets: number of buckets.
      max_distance: distance from which on all share a bucket.
      bidirectional: whether keys after the query have buckets of their own; False in a decoder.
      embedding_init: initializer of the table [num_buckets, N].
      param_dtype: dtype of the table.
    """

    num_heads: int
    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    embedding_init: Initializer = nn.initializers.normal(1.0)
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, num_queries: int, num_keys: int) -> biases.Relative:
        """The bias [N, T + S − 1] of T queries and S keys, with parameter `embedding`."""
        sizes = {"num_heads": self.num_heads, "num_queries": num_queries, "num_keys": num_keys}
        for name, size in sizes.items():
            as_size(name, size)
        buckets = biases.buckets_of_distances(
            biases.distances(num_queries, num_keys),
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        shape = (self.num_buckets, self.num_heads)
        table = self.param("embedding", self.embedding_init, shape, self.param_dtype)
        return biases.Relative(jnp.take(table, buckets, axis=0).T)
