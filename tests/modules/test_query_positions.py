"""Queries stand where their mask says: some rows of a sequence are those of the whole forward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import (
    AlibiBias,
    MultiHeadAttention,
    MultiplicativeAttention,
    RelativePositionBias,
    masks,
    routes,
)
from tests.modules.reference import apply, init

B, L, D, FIRST = 2, 11, 12, 3
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
DENSE = routes.AllPairs("dense")

MODULES = {
    "plain": MultiHeadAttention(3, route=DENSE),
    "rotary": MultiHeadAttention(3, route=DENSE, rotary=True),
    "alibi": MultiHeadAttention(3, route=DENSE, position_bias=AlibiBias()),
    "t5": MultiHeadAttention(
        3, route=DENSE, position_bias=RelativePositionBias(num_buckets=8, max_distance=16)
    ),
    "window": MultiHeadAttention(3, route=routes.Window(2, 1, "dense")),
    "chunked": MultiHeadAttention(3, route=routes.Chunked(2, implementation="dense")),
    "single_head": MultiplicativeAttention(route=routes.Window(2, 1, "dense")),
}


def sequence(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, L, D)), jnp.float32)


@pytest.mark.parametrize("name", MODULES)
def test_some_rows_are_those_of_the_whole(name):
    """The weights too, whether the offset is known while tracing or not, in `&` as well."""
    module, x = MODULES[name], sequence()
    variables = init(module, x)
    true, all_weights = apply(module, variables, x, mask=masks.Causal(), return_weights=True)

    @jax.jit
    def rows(offset):
        mask = masks.Padding(L) & masks.Causal(offset)
        return module.apply(variables, x[:, FIRST:], x, mask=mask, return_weights=True)

    known = apply(module, variables, x[:, FIRST:], x, mask=masks.Causal(FIRST), return_weights=True)
    for got, weights in (known, rows(FIRST)):
        np.testing.assert_allclose(got, true[:, FIRST:], **CLOSE)
        np.testing.assert_allclose(weights, all_weights[..., FIRST:, :], **CLOSE)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_an_offset_of_a_small_type_is_a_position_too(dtype):
    """Where neither the number of keys nor that of rows fits the type."""
    module, length, first = MODULES["alibi"], 263, 127
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, length, D)), jnp.float32)
    variables = init(module, x)
    true = apply(module, variables, x, mask=masks.Causal())

    def rows(offset):
        return module.apply(variables, x[:, first:], x, mask=masks.Causal(offset))

    for got in (jax.jit(rows)(dtype(first)), jax.jit(lambda: rows(dtype(first)))()):
        np.testing.assert_allclose(got, true[:, first:], **CLOSE)


@pytest.mark.parametrize("name", ["rotary", "t5", "window"])
def test_decoding_goes_on_from_there(name):
    """Under a mask that sees no more than the cache holds."""
    module, x, mask = MODULES[name], sequence(), masks.Window(9, 0, -1 if name != "t5" else 1)
    variables = init(module, x, decode=True)
    params = {"params": variables["params"]}
    true = apply(module, params, x, mask=mask & masks.Explicit(np.tri(L, dtype=bool)))
    for piece in (x[:, :5], x[:, 5:6]):
        got, cache = apply(module, variables, piece, decode=True, mask=mask, mutable=["cache"])
        variables = params | cache
    np.testing.assert_allclose(got[:, 0], true[:, 5], **CLOSE)


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_examples_may_have_offsets_of_their_own(name):
    module, x, offsets = MODULES[name], sequence(), np.array([1, FIRST])
    variables = init(module, x)
    true = apply(module, variables, x, mask=masks.Causal())
    query = jnp.stack([x[b, i : i + 4] for b, i in enumerate(offsets)])
    got = apply(module, variables, query, x, mask=masks.Causal(jnp.asarray(offsets)))
    for b, i in enumerate(offsets):
        np.testing.assert_allclose(got[b], true[b, i : i + 4], **CLOSE)


def test_a_mask_that_does_not_say_begins_at_0():
    assert masks.first_position(None) == masks.first_position(masks.Padding(3)) == 0
    assert masks.first_position(masks.Padding(3) & masks.Window(2, None, 4)) == 4
    assert masks.first_position(masks.Chunks(2, q_offset=5) & masks.Causal(5)) == 5


def test_a_bias_before_the_first_row_is_nan():
    """A position that is not known while tracing cannot be refused."""
    module, x = MODULES["alibi"], sequence()
    variables = init(module, x)
    got = jax.jit(lambda o: module.apply(variables, x[:, :4], x, mask=masks.Window(9, 9, o)))(-2)
    assert np.isnan(got).all()
