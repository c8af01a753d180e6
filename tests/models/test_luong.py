"""Luong's attention against the equations: every score and window, while training and decoding."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.luong import Luong
from tests.daily import daily
from tests.models import rnn_oracle
from tests.models.rnn_checks import (
    SOURCE_VOCAB,
    TARGET_VOCAB,
    assert_is,
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
