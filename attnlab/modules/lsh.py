"""LSH self-attention as in the Reformer."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.checks import points_to, require
from attnlab.modules.conventions import Initializer, lecun_normal
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.ops.routes import LSH

__all__ = ["LSHSelfAttention"]


@points_to(
    **{field.name: f"use route=routes.LSH({field.name}=…)" for field in dataclasses.fields(LSH)}
)
class LSHSelfAttention(nn.Module):
    """Reformer's self-attention: shared queries and keys, hashed, sorted, attended in chunks.

    `MultiHeadAttention` with `routes.LSH`, with parameters of the same names. Source: Kitaev et al.
    2020, §2. It differs from the paper in being strictly causal; see `ops.lsh`.

    Call it with [*B, L, D]; returns [*B, L, out_features]. With `decode=True` it computes the same
    a token at a time, or a prompt at once, as `MultiHeadAttention` describes: each new token then
    costs O(rounds · window), however many came before.

    Attributes:
      num_heads: N.
      route: rounds, buckets, chunk size and the options of the hashing.
      causal: see only earlier tokens.
      num_kv_heads: heads of the values, a divisor of N; None = N.
      qkv_features: width of all heads together; None = width of the input.
      out_features: width of the result; None = width of the input.
      normalize_qk: as for `MultiHeadAttention`, like all below.
      rotary: turn queries and keys by their positions, before hashing unless the route says after.
      use_bias: in the projections.
      dropout_rate: on the weights.
      dtype: of the computation.
      param_dtype: of the parameters.
      precision: of the matrix products.
      kernel_init: for all projections.
      logical_axes: name the axes of the kernels.
    """

    num_heads: int
    route: LSH = LSH()
    causal: bool = True
    num_kv_heads: int | None = None
    qkv_features: int | None = None
    out_features: int | None = None
    normalize_qk: bool = False
    rotary: bool = False
    use_bias: bool = False
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = lecun_normal
    logical_axes: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        *,
        mask: masks.Mask | jax.Array | None = None,
        deterministic: bool | None = None,
        decode: bool = False,
    ) -> jax.Array:
        """The result [*B, L, out_features] of x [*B, L, D]; see the class for decoding."""
        require(
            self.causal or not decode,
            "decode=True needs causal=True: a token is computed before the next is known; got"
            " causal=False",
        )
        shared = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(MultiHeadAttention)
            if field.name in self.__dataclass_fields__ and field.name not in ("parent", "name")
        }
        attention = MultiHeadAttention(**shared)
        nn.share_scope(self, attention)
        if self.causal:
            mask = masks.combine(masks.Causal(), mask)
        return attention(x, mask=mask, deterministic=deterministic, decode=decode)
