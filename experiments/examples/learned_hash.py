"""Attention within buckets, by a hash that is learned.

    b(x) = argmax softmax(x W),    g(x) = max softmax(x W)
    o_i  = g(q_i) Σ_j softmax_j(q_i·k_j / |k_j|) g(k_j) v_j    over j with b(k_j) = b(q_i)

As `routes.LSH`, with one hash W [H, buckets] a head in place of random rotations. The bucket has no
gradient; W learns from its probability g, as the router of Fedus et al. 2022, "Switch
Transformers", §2.1 does. (Sun, Yang & Yoo 2022, "Sparse Attention with Learning to Hash", train
theirs on the exact weights.) Tokens are sorted by bucket, and a bucket's last keys before a query
are the ones seen where it holds more than a chunk.

Cost: O(T·(C·(H + D) + H·buckets + log T)) time and O(T) memory, for chunks of C tokens.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

import attnlab
from attnlab import routes
from attnlab.ops.lsh.cross import lsh_cross_attention


class LearnedHash(attnlab.MultiHeadAttention):
    """Attention within buckets, by a hash that is learned."""

    num_buckets: int = 16
    chunk_size: int = 64

    def make_route(self, q, k):
        shape = (*q.shape[-2:], self.num_buckets)
        planes = self.param("planes", nn.initializers.normal(1.0), shape, self.param_dtype)

        def within_buckets(q, k, v, *, mask=None):
            def hash_softly(x):
                """A round of hashing: a gate [*B, L, N, 1] and buckets [*B, 1, L, N]."""
                weights = jax.nn.softmax(jnp.einsum("...nh,nhb->...nb", x, planes))
                gate = weights.max(-1, keepdims=True).astype(v.dtype)
                return gate, weights.argmax(-1)[..., None, :, :]

            gate_q, q_buckets = hash_softly(q)
            gate_k, k_buckets = hash_softly(k)
            options = {"mask": mask, "chunk_size": self.chunk_size}
            return gate_q * lsh_cross_attention(q, k, gate_k * v, q_buckets, k_buckets, **options)

        return routes.Function(within_buckets)
