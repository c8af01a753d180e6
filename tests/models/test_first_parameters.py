"""Parameters are really made: a shape alone says nothing of what a traced step leaves behind."""

import jax
import numpy as np
import pytest

from attnlab.models import Britz, Luong, NMTAttn, RNNEncDec, RNNSearch
from tests.daily import daily
from tests.models.rnn_checks import SOURCE_VOCAB, TARGET_VOCAB, batch

WIDTHS = {"embed_features": 3, "hidden_features": 5}
MODELS = {
    Britz: {**WIDTHS, "attention_features": 7},
    Luong: {**WIDTHS, "num_layers": 2},
    NMTAttn: {"features": 8, "num_heads": 2},
    RNNEncDec: {**WIDTHS, "maxout_features": 3},
    RNNSearch: {**WIDTHS, "maxout_features": 3, "align_features": 5},
}


@pytest.mark.parametrize("kind", daily(MODELS, Britz))
def test_a_model_makes_its_parameters(kind):
    model = kind(SOURCE_VOCAB, TARGET_VOCAB, **MODELS[kind])
    for make in (model.init, jax.jit(model.init)):
        params = make(jax.random.key(0), *batch())["params"]
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
    for side in (0, 1):
        sides = batch()
        sides[side][0, 1] = -1  # no word, and not the last of them
        finite = np.isfinite(jax.jit(model.apply)({"params": params}, *sides)).all((1, 2))
        np.testing.assert_array_equal(finite, [False, True, True])
