"""Biases of positions: Linen modules that say what a distance adds to the logits.

Each is called with the numbers of query heads, queries and keys, and returns a `biases.Relative`. A
`MultiHeadAttention` that is given one as `position_bias=` calls it itself, and says whether its
mask or its route hides what follows a query (None: a boolean array, or a mask of your own, does not
say). One module that is given to several is one table for all of them, as Flax has it; the layers
of `models.transformer` have a table each.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from attnlab import biases
from attnlab.core.axes import widen
from attnlab.core.checks import as_size, require
from attnlab.modules.conventions import Initializer


class BiasModule(nn.Module):
    """The base of modules that make a bias of positions: of those here, and of your own.

    It is called as `module(num_heads, num_queries, num_keys, *, causal)`, and returns a value of
    `attnlab.biases` or an array [N, T, S].
    """


class AlibiBias(BiasModule):
    """`biases.alibi`, −m_n · |j − i|, no parameters: Press, Smith & Lewis 2022, §3."""

    def __call__(
        self, num_heads: int, num_queries: int, num_keys: int, *, causal: bool | None = False
    ) -> biases.Relative:
        """The bias [N, T + S − 1], the same whether causal or not."""
        del causal
        return biases.alibi(num_heads, num_queries, num_keys)


class RelativePositionBias(BiasModule, kw_only=True):
    """One learned number for each head and bucket of distances: Raffel et al. 2020, §2.1 (T5).

    Distances share buckets as `biases.buckets_of_distances` says. T5 shares one table among all
    layers of a stack, and does not divide logits by √H: with its weights go a bias that all layers
    are given, and `scores.Dot(1.0)`.

    Cost: T + S − 1 numbers a head, gradients included; nothing T × S is made by any engine but
    `"dense"`.

    Attributes:
      num_buckets: number of buckets.
      max_distance: distance from which on all share a bucket.
      bidirectional: whether keys after the query have buckets of their own, half of all; None =
        unless the call is causal, as in a decoder.
      embedding_init: initializer of the table [num_buckets, N].
      param_dtype: dtype of the table.
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool | None = None
    embedding_init: Initializer = nn.initializers.normal(1.0)
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, num_heads: int, num_queries: int, num_keys: int, *, causal: bool | None = False
    ) -> biases.Relative:
        """The bias [N, T + S − 1], with parameter `embedding` [num_buckets, N].

        Args:
          num_heads: number of query heads, N.
          num_queries: number of queries, T.
          num_keys: number of keys, S.
          causal: whether a query sees no key that follows it; None = not known, which only a
            module that says `bidirectional` takes.
        """
        require(
            causal is not None or self.bidirectional is not None,
            "RelativePositionBias must know whether keys after the query are seen, and this mask"
            " does not say; got bidirectional=None (give mask=masks.Causal() & mask, or"
            " RelativePositionBias(bidirectional=True or False))",
        )
        sizes = {"num_heads": num_heads, "num_queries": num_queries, "num_keys": num_keys}
        for name, size in sizes.items():
            as_size(name, size)
        buckets = biases.buckets_of_distances(
            biases.distances(num_queries, num_keys),
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=not causal if self.bidirectional is None else self.bidirectional,
        )
        shape = (self.num_buckets, num_heads)
        table = self.param("embedding", self.embedding_init, shape, self.param_dtype)
        return biases.Relative(jnp.take(widen(table), buckets, axis=0).astype(table.dtype).T)
