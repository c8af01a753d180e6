"""NMTAttn against the equations, while training, evaluating and predicting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.nmt_attn import NMTAttn
from tests.models import rnn_oracle
from tests.models.rnn_checks import (
    EXACT,
    SOURCE_VOCAB,
    TARGET_VOCAB,
    assert_is,
    batch,
    forward,
    random_params,
)


def nmt_attn(**options):
    return NMTAttn(SOURCE_VOCAB, TARGET_VOCAB, features=6, num_heads=3, **options)


@pytest.mark.usefixtures("x64")
def test_is_the_model_of_trax_and_predicts_in_pieces():
    model = nmt_attn(param_dtype=jnp.float64)
    assert_is(rnn_oracle.nmt_attn, model)
    params, pair = random_params(model), batch()
    want, _ = forward(model, params, *pair)
    np.testing.assert_allclose(jax.jit(model.apply)({"params": params}, *pair), want, **EXACT)
