"""Softmax over the k largest logits of each query.

    a_ij = exp(s_ij) / Σ_{l ∈ top_i} exp(s_il)    for j ∈ top_i,    else 0

top_i are the k keys of the largest logits among those that query i sees; ties are all kept.
Gupta et al. 2021, "Memory-efficient Transformers via Top-k Attention", §2.1. They go through the
queries in chunks; here all T·S weights are made at once.

Cost: O(T·S·(H + D)) time and O(T·S) memory.
"""

import dataclasses

import jax

from attnlab import routes


@dataclasses.dataclass(frozen=True)
class TopK(routes.Exact):
    """Softmax over the k largest logits of each query."""

    size: int = 16

    def weights(self, score, q, k, **options):
        weights = super().weights(score, q, k, **options)  # in the order of the logits
        size = min(self.size, weights.shape[-1])
        smallest = jax.lax.top_k(weights, size)[0][..., -1:]
        top = (weights >= smallest) & (weights > 0)
        return super().weights(score, q, k, **{**options, "mask": top})
