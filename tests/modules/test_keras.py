"""Keras's attention layers compute the same, where Keras is installed."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import AdditiveAttention, MultiplicativeAttention, masks, scores
from tests.modules.reference import apply

pytestmark = pytest.mark.slow
B, T, S, D, DV = 2, 5, 7, 3, 11
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
LENGTHS = np.array([S, 4])
REAL = np.arange(S) < LENGTHS[:, None]


@pytest.fixture(scope="module")
def keras():
    """Not imported until a test runs: it takes seconds."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    found = pytest.importorskip(
        "keras", reason="needs keras, of the extra compat", exc_type=ImportError
    )
    assert found.backend.backend() == "jax"
    return found


def arrays():
    rng = np.random.default_rng(0)
    shapes = (B, T, D), (B, S, D), (B, S, DV)
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def in_keras(layer, query, key, value, **options):
    with jax.numpy_rank_promotion("allow"):  # Keras counts on it
        context, weights = layer([query, value, key], return_attention_scores=True, **options)
    return np.asarray(context), np.asarray(weights)


def ours(module, params, query, key, value, **options):
    return apply(
        module,
        {"params": params},
        *(jnp.asarray(x) for x in (query, key, value)),
        return_weights=True,
        **options,
    )


def additive_params(scale):
    """Keras does not project: identities stand for W and U."""
    eye = {"kernel": jnp.eye(D)}
    return {"query": eye, "key": eye, "score": {"kernel": jnp.asarray(scale)[None]}}


@pytest.mark.parametrize("causal", [False, True])
def test_additive(causal, keras):
    query, key, value = arrays()
    layer = keras.layers.AdditiveAttention()
    layer.build([query.shape, value.shape, key.shape])
    scale = np.array([0.7, -1.1, 1.9], np.float32)
    layer.scale.assign(scale)
    mask = masks.Padding(jnp.asarray(LENGTHS))
    for mine, theirs in zip(
        ours(
            AdditiveAttention(D),
            additive_params(scale),
            query,
            key,
            value,
            mask=masks.Causal() & mask if causal else mask,
        ),
        in_keras(layer, query, key, value, mask=[None, REAL], use_causal_mask=causal),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, **CLOSE)


def test_dot_with_a_learned_scale(keras):
    query, key, value = arrays()
    layer = keras.layers.Attention(use_scale=True)
    layer.build([query.shape, value.shape, key.shape])
    layer.scale.assign(0.37)
    module = MultiplicativeAttention(scores.Dot(0.37))
    for mine, theirs in zip(
        ours(module, {}, query, key, value),
        in_keras(layer, query, key, value),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, **CLOSE)


def test_concat_is_additive_with_one_weight_for_all(keras):
    query, key, value = arrays()
    layer = keras.layers.Attention(score_mode="concat")
    layer.build([query.shape, value.shape, key.shape])
    layer.concat_score_weight.assign(1.3)
    for mine, theirs in zip(
        ours(AdditiveAttention(D), additive_params(np.full(D, 1.3, np.float32)), query, key, value),
        in_keras(layer, query, key, value),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, **CLOSE)
