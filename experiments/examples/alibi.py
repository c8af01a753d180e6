"""Attention with linear biases.

    logits_ij = q_i·k_j / √H − m_n |i − j|,    m_n = 2^(−8n/N) for head n = 1 … N

Press, Smith & Lewis 2022, "Train Short, Test Long", §3. A number of heads that is no power of 2 has
the same formula here; the released code picks slopes of two powers (`attnlab.AlibiBias`).

Cost: that of the attention, and T + S − 1 numbers a head. Nothing is learned.
"""

import jax.numpy as jnp

from attnlab import BiasModule, biases


class Alibi(BiasModule):
    """Scaled dot product, less a slope times the distance."""

    def __call__(self, num_heads, num_queries, num_keys, *, causal=None):
        slopes = 2.0 ** (-8 * jnp.arange(1, num_heads + 1) / num_heads)
        distances = jnp.abs(jnp.float32(biases.distances(num_queries, num_keys)))
        return biases.Relative(-slopes[:, None] * distances[None])
