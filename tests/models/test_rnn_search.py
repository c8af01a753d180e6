"""RNNsearch and RNNencdec against the equations, while training and while decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.rnn_search import RNNEncDec, RNNSearch
from tests.models import rnn_oracle
from tests.models.rnn_checks import (
    SOURCE_VOCAB,
    TARGET_VOCAB,
    assert_is,
    batch,
    count,
    forward,
    random_params,
)

SIZES = {"embed_features": 3, "hidden_features": 5, "maxout_features": 2}


def search(**options):
    options = SIZES | {"align_features": 7, "param_dtype": jnp.float64} | options
    return RNNSearch(SOURCE_VOCAB, TARGET_VOCAB, **options)


def enc_dec(**options):
    options = SIZES | {"param_dtype": jnp.float64} | options
    return RNNEncDec(SOURCE_VOCAB, TARGET_VOCAB, **options)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("options", [{}, {"output_state": "after", "use_bias": True}])
def test_search_is_the_paper(options):
    made = search(**options)
    weights = assert_is(rnn_oracle.rnn_search, made, "output_state", in_pieces=not options)
    np.testing.assert_allclose(weights.sum(-1), 1)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("options", [{}, {"output_state": "after", "use_bias": True}])
def test_enc_dec_is_the_paper(options):
    assert_is(rnn_oracle.rnn_enc_dec, enc_dec(**options), "output_state", in_pieces=not options)


def test_the_paper_has_80_million_parameters():
    assert count(RNNSearch(30000, 30000)) == 80_401_000
    # Neither backward encoder, alignment nor the backward half of the contexts.
    n, m, align, half = 1000, 620, 1000, 500
    less = 3 * n * (m + n) + (n + 2 * n + 1) * align + 3 * n * n + 2 * half * n
    assert count(RNNEncDec(30000, 30000)) == 80_401_000 - less


def test_attention_begins_uniform():
    model = search(param_dtype=jnp.float32)

    @jax.jit
    def init(key):
        params = model.init(key, *batch())["params"]
        return params["decoder"]["score"]["kernel"], params["align_keys"]["kernel"]

    v, keys = init(jax.random.key(0))
    assert not v.any() and 0 < keys.std() < 0.002


def test_half_precision_is_near_and_its_logits_are_not_rounded():
    model, (source, target) = enc_dec(param_dtype=jnp.float32), batch()
    params = random_params(model)
    exact, _ = forward(model, params, source, target)
    halved, _ = forward(model.clone(dtype=jnp.bfloat16), params, source, target)
    assert halved.dtype == exact.dtype == jnp.float32
    assert 0 < abs(halved - exact).max() < 0.1 * abs(exact).max()
    assert (halved.astype(jnp.bfloat16) != halved).any(), "summed in float32"


def test_parameters_in_half_precision():
    model, (source, target) = search(param_dtype=jnp.bfloat16), batch()
    params = random_params(model)
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    got, _ = forward(model, params, source, target)
    want, _ = forward(model.clone(param_dtype=jnp.float32), exact, source, target)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    assert 0 < abs(got - want).max() < 0.1 * abs(want).max()


def test_a_cache_from_init_holds_no_sentence():
    source, target = batch()
    model = search(param_dtype=jnp.float32)
    params = random_params(model)
    one, other = (
        model.apply({"params": params}, x, method="encode") for x in (source, source[::-1])
    )
    given = {"decode": True, "method": "decode"}
    cache = model.init(jax.random.key(0), other, target, **given).get("cache", {})
    state, mutable = {"params": params, "cache": cache}, ["cache", "static"]
    got, _ = model.apply(state, one, target, mutable=mutable, **given)
    whole = model.apply({"params": params}, one, target, method="decode")
    np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-6)
    assert model.apply({"params": params}, source[:0], target[:0]).shape[0] == 0
