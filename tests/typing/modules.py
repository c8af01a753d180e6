"""What a type checker is told of the modules, inside a module of a user's own."""

from typing import assert_type

import flax.linen as nn
import jax
import jax.numpy as jnp

import attnlab
from attnlab import masks, routes
from attnlab.ops.routes import Route

ROUTES: list[Route] = [
    routes.AllPairs("dense"),
    routes.Window(8, 0),
    routes.Chunked(4),
    routes.Hard(),
    routes.LSH(),
]


class Layer(nn.Module):
    look: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        mask = masks.Causal() & masks.Padding(lengths)
        attention = attnlab.MultiHeadAttention(2, route=ROUTES[1], score=attnlab.AdditiveScore())
        y = attention(x, mask=mask, deterministic=True, decode=False)
        assert_type(y, jax.Array)
        pair = attention(x, x, bias=attnlab.biases.alibi(2, 5, 5), return_weights=True)
        assert_type(pair, tuple[jax.Array, jax.Array])
        found = attnlab.AdditiveAttention(8)(x, x, mask=mask)
        assert_type(found, jax.Array)
        dot = attnlab.MultiplicativeAttention(attnlab.scores.Dot(1.0))
        pair = dot(x, x, x, return_weights=True)
        assert_type(pair, tuple[jax.Array, jax.Array])
        hashed = attnlab.LSHSelfAttention(2, route=routes.LSH(num_hashes=2))(x)
        assert_type(hashed, jax.Array)
        config = attnlab.models.TransformerConfig(11)
        assert_type(config, attnlab.models.TransformerConfig)
        local: jax.Array = attnlab.LocalAttention()(x, x)
        return jnp.tanh(y + found + hashed + local)
