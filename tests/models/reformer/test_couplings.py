"""Reversible layers: the same values and gradients as of layers that keep what they compute."""

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.models.chunks import Undone, in_chunks
from attnlab.models.reformer.couplings import Coupling, reversible, store_layers
from tests.trees import assert_close


def f(params, x, rest):
    return jnp.tanh(params * x + rest[0]), ()


def g(params, x, rest):
    return jnp.sin(params * x) + rest[1]


def undo_g(params, x, rest, cotangent):
    value, pull = jax.vjp(lambda params, x: g(params, x, rest), params, x)
    return Undone(value, *pull(cotangent))


def test_gradients_are_those_of_stored_layers():
    """Two couplings, three times; all four paths between the streams count."""
    draw = np.random.default_rng(0)
    params = tuple(tuple(jnp.asarray(draw.normal(size=(2, 3, 1, 5)), "f")) for _ in range(2))
    each = tuple(jnp.asarray(draw.normal(size=(2, 3, 1, 5)), "f"))
    streams, (d1, d2) = (tuple(jnp.asarray(draw.normal(size=(2, 7, 5)), "f")) for _ in range(2))
    couplings = (Coupling(f, g, undo_g),) * 2

    def run(layers):
        def loss(params, streams):
            (y1, y2), _ = layers(couplings, params, streams, each, jnp.float32(0.3))
            return (d1 * y1 + d2 * y2).sum()

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, streams)

    assert_close(run(reversible), run(store_layers), rtol=1e-4, atol=1e-4)


def test_a_chunk_is_undone_by_its_own_index():
    def function(params, x, rest, index):
        return jnp.tanh(params * x) * (1 + index) + rest

    draw = np.random.default_rng(0)
    params, x, cotangent = (
        jnp.asarray(draw.normal(size=size), "f") for size in ((1, 1, 5), (2, 7, 5), (2, 7, 5))
    )
    forward, undo = in_chunks(function, 3)
    value, pull = jax.vjp(lambda params, x: forward(params, x, 0.3), params, x)
    got = jax.jit(undo)(params, x, 0.3, cotangent)
    for one, want in zip(got, (value, *pull(cotangent)), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)
