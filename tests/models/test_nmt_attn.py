"""NMTAttn against the equations, while training, evaluating and predicting."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.nmt_attn import NMTAttn
from tests.models import rnn_oracle
from tests.models.rnn_checks import (
    EXACT,
    IN_PIECES,
    SOURCE_VOCAB,
    TARGET_VOCAB,
    assert_drops,
    batch,
    count,
    decode,
    forward,
    random_params,
    sentences,
)


def nmt_attn(**options):
    return NMTAttn(SOURCE_VOCAB, TARGET_VOCAB, features=6, num_heads=3, **options)


@pytest.mark.usefixtures("x64", "quick_compile")
def test_is_the_model_of_trax_and_predicts_in_pieces():
    model, (source, target) = nmt_attn(param_dtype=jnp.float64), batch(source_width=6)
    params = random_params(model)
    (logits, weights), memory = forward(model, params, source, target, return_weights=True)
    for b, s, read in sentences(source, target):
        true, alignment = rnn_oracle.nmt_attn(params, s, read)
        np.testing.assert_allclose(logits[b, : len(read)], true, **EXACT)
        np.testing.assert_allclose(weights[b, : len(read), : len(s)], alignment, **EXACT)
        assert not weights[b, :, len(s) :].any()
    got = decode(model, params, memory, target, IN_PIECES, return_weights=True)
    np.testing.assert_allclose(got[0], logits, **EXACT)
    np.testing.assert_allclose(got[1], weights, **EXACT)


def test_parameters_by_layer():
    d, vocab = 1024, 33300
    lstm, attention = 4 * d * (2 * d + 1), 4 * d * (d + 1)
    assert count(NMTAttn()) == 2 * vocab * d + 5 * lstm + attention + (d + 1) * vocab


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("rate", ["dropout_rate", "attention_dropout_rate"])
def test_dropout_in_half_precision(rate):
    assert_drops(nmt_attn(dtype=jnp.bfloat16, **{rate: 0.5}))
