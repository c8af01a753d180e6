"""Luong's attention against the equations: every score and window, while training and decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.luong import Luong
from tests.daily import daily
from tests.models import rnn_oracle
from tests.models.rnn_checks import (
    EXACT,
    IN_PIECES,
    SOURCE_VOCAB,
    TARGET_VOCAB,
    assert_drops,
    batch,
    decode,
    forward,
    random_params,
    sentences,
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


@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("name", daily(CASES, "dot", "local-m", "local-m at once", "local-p"))
def test_is_the_paper(name):
    model, (source, target) = luong(**CASES[name]), batch(source_width=6)
    params = random_params(model)
    found, memory = forward(model, params, source, target, return_weights=model.attends)
    logits, weights = found if model.attends else (found, None)
    settings = ("score", "window", "half_width", "input_feeding", "reverse_source")
    settings = {name: getattr(model, name) for name in settings}
    for b, s, read in sentences(source, target):
        true, alignment = rnn_oracle.luong(params, s, read, **settings)
        np.testing.assert_allclose(logits[b, : len(read)], true, **EXACT)
        if weights is not None:
            np.testing.assert_allclose(weights[b, : len(read), : len(s)], alignment, **EXACT)
            assert not weights[b, :, len(s) :].any()
    if weights is None:
        got = decode(model, params, memory, target, IN_PIECES)
        np.testing.assert_allclose(got, logits, **EXACT)
    elif model.window == "global":
        np.testing.assert_allclose(weights.sum(-1), 1)
    if model.window == "local-p":
        assert (weights.sum(-1) < 0.999).any(), "the Gaussian is not renormalized"
    if model.window == "local-m":
        got = decode(model, params, memory, target, IN_PIECES, return_weights=True)
        np.testing.assert_allclose(got[0], logits, **EXACT)
        np.testing.assert_allclose(got[1], weights, **EXACT)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile")
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
    with pytest.raises(ValueError, match="score=None has no weights"):
        jax.eval_shape(
            lambda: model.init(
                jax.random.key(0),
                *batch(),
                method=lambda m, s, t: m.decode(m.encode(s), t, return_weights=True),
            )
        )
