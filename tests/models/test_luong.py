"""Luong's attention against the equations: every score and window, while training and decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.luong import Luong
from tests.daily import daily
from tests.models import rnn_oracle
from tests.models.rnn_checks import (
    SOURCE_VOCAB,
    TARGET_VOCAB,
    assert_drops,
    assert_has_no_weights,
    assert_is,
    batch,
)


def luong(**options):
    options = {
        "embed_features": 3,
        "hidden_features": 5,
        "num_layers": 2,
        "half_width": 1,
        "max_source_length": 7,
        "param_dtype": jnp.float64,
    } | options
    return Luong(SOURCE_VOCAB, TARGET_VOCAB, **options)


CASES = {
    "location": {"score": "location"},
    "location of the first words": {"score": "location", "max_source_length": 3},
    "dot": {"score": "dot", "input_feeding": False},
    "none": {"score": None, "input_feeding": False},
    "concat": {"score": "concat", "reverse_source": False},
    "local-m": {"window": "local-m"},
    "local-m at once": {"window": "local-m", "score": "concat", "input_feeding": False},
    "local-p": {"window": "local-p", "input_feeding": False},
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", daily(CASES, "dot", "local-m", "local-m at once", "local-p"))
def test_is_the_paper(name):
    model = luong(**CASES[name])
    settings = ("score", "window", "half_width", "input_feeding", "reverse_source")
    in_pieces = model.window == "local-m" or not model.attends
    weights = assert_is(rnn_oracle.luong, model, *settings, in_pieces=in_pieces)
    if model.attends and model.window == "global":
        np.testing.assert_allclose(weights.sum(-1), 1)
    if model.window == "local-p":
        assert (weights.sum(-1) < 0.999).any(), "the Gaussian is not renormalized"


@pytest.mark.slow
def test_dropout_in_half_precision():
    options = {"window": "local-p", "dropout_rate": 0.5}
    assert_drops(luong(param_dtype=jnp.float32, dtype=jnp.bfloat16, **options))


def test_refusals():
    source, target = batch()
    for options, error, message in (
        ({"score": "cosine"}, ValueError, "score must be one of 'location'.*; got 'cosine'"),
        ({"window": "local"}, ValueError, "window must be one of 'global'.*; got 'local'"),
        ({"score": None}, ValueError, "score=None has no attention.*; got .* input_feeding=True"),
        (
            {"score": None, "input_feeding": False, "window": "local-m"},
            ValueError,
            "score=None has no attention.*; got window='local-m'",
        ),
        (
            {"score": "location", "window": "local-p"},
            NotImplementedError,
            "local attention looks at keys and Location does not",
        ),
    ):
        model = luong(param_dtype=jnp.float32, **options)
        with pytest.raises(error, match=message):
            jax.eval_shape(model.init, jax.random.key(0), source, target)


def test_weights_need_attention():
    model = luong(param_dtype=jnp.float32, score=None, input_feeding=False)
    assert_has_no_weights(model, "score=None has no weights")
