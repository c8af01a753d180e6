"""Differential attention: two softmaxes, one subtracted from the other.

    head = (1 − λ₀) · norm((softmax(q₁k₁ᵀ/√(H/2)) − λ softmax(q₂k₂ᵀ/√(H/2))) v)
    λ    = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ₀

q₁ and k₁ are every other entry of q and k, q₂ and k₂ the rest; norm divides by the root of the mean
square and has a learned scale.
Ye et al. 2024, "Differential Transformer", §2.1 and §2.2. λ₀ is 0.8 in all layers, which §2.1 names
beside one that grows with depth. Their layers have half as many heads, twice as wide.

Cost: two attentions of half the width of queries and keys, values of the whole.
"""

import flax.linen as nn
import jax.numpy as jnp

import attnlab
from attnlab import routes


class Differential(attnlab.MultiHeadAttention):
    """Two softmaxes, one subtracted from the other."""

    lambda_init: float = 0.8

    def make_route(self, q, k):
        shape = (2, 2, q.shape[-1] // 2)
        pairs = self.param("lambda", nn.initializers.normal(0.1), shape, self.param_dtype)
        first, second = jnp.exp(pairs.prod(1).sum(-1))
        norm = nn.RMSNorm(dtype=q.dtype, param_dtype=self.param_dtype, name="norm")

        def difference(q, k, v, *, mask=None):
            one = attnlab.dot_product_attention(q[..., 0::2], k[..., 0::2], v, mask=mask)
            other = attnlab.dot_product_attention(q[..., 1::2], k[..., 1::2], v, mask=mask)
            weight = (first - second + self.lambda_init).astype(v.dtype)
            return (1 - self.lambda_init) * norm(one - weight * other)

        return routes.Function(difference)
