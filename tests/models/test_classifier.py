"""The classifier of long inputs: what is pooled, and pairs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import routes
from attnlab.models.classifier import EncoderClassifier
from attnlab.models.transformer import TransformerConfig, TransformerEncoder
from tests.modules.reference import apply, init

CONFIG = TransformerConfig(11, num_layers=1, width=6, hidden=7, num_heads=2, dropout_rate=0.0)
DENSE = CONFIG.attention(routes.AllPairs("dense"))
ENCODE = jax.jit(TransformerEncoder(CONFIG, DENSE).apply)
TOKENS = jnp.array([[1, 5, 6, 7, 0], [1, 8, 0, 0, 0]])


def logits_of(pooling, tokens):
    """Logits and, from the same variables, those of the equations."""
    model = EncoderClassifier(CONFIG, 3, pooling, DENSE)
    variables = init(model, tokens)
    params = jax.tree.map(np.asarray, variables["params"])

    def state(row):
        row = np.asarray(row)[np.asarray(row) != 0]
        states = np.asarray(ENCODE({"params": params["encoder"]}, row[None])[0])
        return states[0] if pooling == "first" else states.mean(0)

    def head(x):
        for name in ("hidden", "classes"):
            x = x @ params[name]["kernel"] + params[name]["bias"]
            x = np.maximum(x, 0) if name == "hidden" else x
        return x

    return apply(model, variables, tokens), state, head


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_padding_is_not_pooled(pooling):
    got, state, head = logits_of(pooling, TOKENS)
    assert got.dtype == jnp.float32
    for logits, row in zip(got, TOKENS, strict=True):
        np.testing.assert_allclose(logits, head(state(row)), rtol=1e-4, atol=1e-5)


def test_logits_of_half_precision_are_not_rounded():
    config = dataclasses.replace(CONFIG, dtype=jnp.bfloat16)
    model = EncoderClassifier(config, 3, "mean", config.attention(routes.AllPairs("dense")))
    got = model.apply(init(model, TOKENS), TOKENS)  # compiled, a CPU would not round it anyway
    assert got.dtype == jnp.float32 and (got.astype(jnp.bfloat16) != got).any()


def test_a_pair_is_compared_by_its_states():
    pair = jnp.stack([TOKENS, TOKENS[::-1]], 1)
    got, state, head = logits_of("mean", pair)
    one, two = map(state, TOKENS)
    for logits, (a, b) in zip(got, ((one, two), (two, one)), strict=True):
        true = head(np.concatenate([a, b, a * b, a - b]))
        np.testing.assert_allclose(logits, true, rtol=1e-4, atol=1e-5)


def test_without_pooling_each_token_is_classified():
    pair = jnp.stack([TOKENS, TOKENS[::-1]], 1)
    got, _, head = logits_of("none", pair)
    model = EncoderClassifier(CONFIG, 3, "none", DENSE)
    states = ENCODE({"params": init(model, pair)["params"]["encoder"]}, TOKENS)
    np.testing.assert_allclose(got[:, 0], head(np.asarray(states)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[:, 1], got[::-1, 0], rtol=1e-4, atol=1e-5)
