"""The published single-head mechanisms as NNX modules.

They have the fields, parameters and numbers of Linen's modules of the same names, and beside these
`in_features`, the width of the queries, and `in_kv_features`, that of the keys. They are called as
those are, `module(query, key=None, value=None)`, and return the context [*B, T, Dv], with
`return_weights=True` also the weights [*B, T, S].

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from attnlab import masks
    >>> source, target = jnp.ones((2, 7, 12)), jnp.ones((2, 5, 8))
    >>> attention = AdditiveAttention(16, in_features=8, in_kv_features=12, rngs=nnx.Rngs(0))
    >>> attention(target, source, mask=masks.Padding(jnp.array([7, 3]))).shape
    (2, 5, 12)
    >>> attention.query.kernel.shape, attention.score.kernel.shape
    ((8, 16), (1, 16))
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from attnlab.biases import Bias
from attnlab.core.checks import as_size
from attnlab.masks import Mask
from attnlab.modules import local, single_head
from attnlab.modules.one_head import Additive, Concat, Local, Location, Multiplicative
from attnlab.nnx.base import AttentionModule, Call, make_score


class _OneHead(AttentionModule):
    """How all of them are made.

    Args:
      *sizes: sizes that Linen's module takes by position.
      in_features: width of the queries, Dq.
      in_kv_features: width of the keys, Dk; None = in_features.
      rngs: random numbers, as for `MultiHeadAttention`.
      keep_rngs: whether the module keeps streams of its own of these.
      **fields: fields of Linen's module.
    """

    def __init__(
        self,
        *sizes: int,
        in_features: int,
        in_kv_features: int | None = None,
        rngs: nnx.Rngs,
        keep_rngs: bool = True,
        **fields: Any,
    ):
        given = self.set_fields(*sizes, rngs=rngs, keep_rngs=keep_rngs, **fields)
        self.in_features = as_size("in_features", in_features)
        widths = in_features, in_features if in_kv_features is None else in_kv_features
        layers = given._projections(*widths)
        for name, projection in layers.items():
            setattr(self, name, self.make_linear(projection, rngs))
        if "key" in layers:  # both are projected to one width
            widths = layers["query"].outputs + layers["key"].outputs
        self.score = make_score(given._own_score(), (1, 1), widths, rngs)


class _Exact(_OneHead):
    """How all but local attention are called."""

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        bias: Bias | jax.Array | None = None,
        deterministic: bool | None = None,
        return_weights: bool = False,
        sow_weights: bool = False,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Any:
        """The context [*B, T, Dv], or it and the weights [*B, T, S].

        Args:
          query: queries [*B, T, Dq].
          key: keys [*B, S, Dk]; None = query.
          value: values [*B, S, Dv]; None = key.
          mask: mask or boolean array that broadcasts to [*B, 1, T, S]; True = may attend.
          bias: bias of the logits, or an array that broadcasts to [*B, 1, T, S].
          deterministic: whether nothing is dropped or sampled; None = what the attribute says.
          return_weights: whether to return the weights too.
          sow_weights: whether to sow them, as `nnx.Intermediate`.
          rngs: random numbers of this call; None = those of the module.
        """
        meeting: Any = self
        return meeting._attend(
            Call(self, query, rngs, sow_weights),
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            deterministic=deterministic,
            return_weights=return_weights,
        )


class AdditiveAttention(Additive, _Exact):
    """`attnlab.AdditiveAttention` as an NNX module."""

    linen = single_head.AdditiveAttention


class MultiplicativeAttention(Multiplicative, _Exact):
    """`attnlab.MultiplicativeAttention` as an NNX module."""

    linen = single_head.MultiplicativeAttention


class ConcatAttention(Concat, _Exact):
    """`attnlab.ConcatAttention` as an NNX module."""

    linen = single_head.ConcatAttention


class LocationAttention(Location, _Exact):
    """`attnlab.LocationAttention` as an NNX module."""

    linen = single_head.LocationAttention


class LocalAttention(Local, _OneHead):
    """`attnlab.LocalAttention` as an NNX module."""

    linen = local.LocalAttention

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        steps: jax.Array | None = None,
        deterministic: bool | None = None,
        return_weights: bool = False,
        sow_weights: bool = False,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Any:
        """The context [*B, T, Dv], or it and the weights [*B, T, S].

        Args:
          query: queries [*B, T, Dq].
          key: keys [*B, S, Dk].
          value: values [*B, S, Dv]; None = key.
          mask: mask or boolean array, as for Linen's module.
          steps: time t of each query [*B, T] for local-m, as for Linen's module.
          deterministic: whether dropout is off; None = what the attribute says.
          return_weights: whether to return the weights too.
          sow_weights: whether to sow them, as `nnx.Intermediate`.
          rngs: random numbers of this call; None = those of the module.
        """
        return self._attend(
            Call(self, query, rngs, sow_weights),
            query,
            key,
            value,
            mask=mask,
            steps=steps,
            deterministic=deterministic,
            return_weights=return_weights,
        )
