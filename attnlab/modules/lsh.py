"""LSH self-attention as in the Reformer."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax

from attnlab import masks
from attnlab.checks import points_to, require, require_instance
from attnlab.modules.conventions import AttentionModule
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.ops.routes import LSH

__all__ = ["LSHSelfAttention"]


@points_to(
    **{field.name: f"use route=routes.LSH({field.name}=…)" for field in dataclasses.fields(LSH)}
)
class LSHSelfAttention(AttentionModule):
    """Reformer's self-attention: shared queries and keys, hashed, sorted, attended in chunks.

    `MultiHeadAttention` with `routes.LSH`, with parameters of the same names. Source: Kitaev et al.
    2020, §2. It differs from the paper in being strictly causal; see `ops.lsh`.

    Call it with [*B, L, D]; returns [*B, L, out_features]. With `decode=True` it computes the same
    a token at a time, or a prompt at once, as `MultiHeadAttention` describes: each new token then
    costs O(rounds · window), however many came before.

    The keywords of `AttentionModule` (dropout_rate, dtype, …) belong to it too.

    Attributes:
      num_heads: number of heads, N.
      route: route of the attention: its rounds, buckets, chunk size and the options of the hashing.
      causal: whether a token sees only earlier tokens, as `masks.Causal()` in the mask says too;
        default True, because the Reformer is a language model. False leaves it to the mask.
      num_kv_heads: number of heads of the values, a divisor of N; None = N.
      qkv_features: width of all heads together; None = width of the input.
      out_features: width of the result; None = width of the input.
      normalize_qk: whether to RMS-normalize queries and keys in each head, with a learned scale
        (Henry et al. 2020).
      rotary: whether to turn queries and keys by their positions, or a number, as for
        `MultiHeadAttention`; before hashing unless the route says after.
      use_bias: whether the projections have biases; as in the Reformer they have none, unlike those
        of `MultiHeadAttention`.
    """

    num_heads: int
    route: LSH = LSH()
    causal: bool = True
    num_kv_heads: int | None = None
    qkv_features: int | None = None
    out_features: int | None = None
    normalize_qk: bool = False
    rotary: bool | float = False
    use_bias: bool = False

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
        require_instance(
            "route",
            self.route,
            isinstance(self.route, LSH),
            "a routes.LSH",
            " (MultiHeadAttention takes any route)",
        )
        attention = MultiHeadAttention(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            qkv_features=self.qkv_features,
            out_features=self.out_features,
            route=self.route,
            normalize_qk=self.normalize_qk,
            rotary=self.rotary,
            use_bias=self.use_bias,
            dropout_rate=self.dropout_rate,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            logical_axes=self.logical_axes,
        )
        nn.share_scope(self, attention)
        deterministic = self.is_deterministic(deterministic)
        if self.causal:
            mask = masks.combine(masks.Causal(), mask)
        return attention(x, mask=mask, deterministic=deterministic, decode=decode)
