"""The variations of Britz et al. 2017: their printed sizes, and what they compute."""

import jax.numpy as jnp
import pytest

from attnlab.models.britz import Britz
from tests.daily import daily
from tests.models import rnn_oracle
from tests.models.rnn_checks import (
    SOURCE_VOCAB,
    TARGET_VOCAB,
    assert_is,
)

LSTM = {"encoder_cell": "lstm", "decoder_cell": "lstm"}
DEEP = {"decoder_residual": "add", "input_transform": True}


def britz(**options):
    options = {
        "embed_features": 5,
        "hidden_features": 5,
        "attention_features": 7,
        "param_dtype": jnp.float64,
    } | options
    return Britz(SOURCE_VOCAB, TARGET_VOCAB, **options)


CASES = {
    "mul": {"encoder_layers": 2, "encoder_residual": "dense", "embed_features": 5},
    "add": {"attention": "add", "direction": "backward", "embed_features": 3} | LSTM,
    "scaled-mul": {"attention": "scaled-mul", "attention_features": 64},
    "residual": {"decoder_layers": 3, "direction": "forward", "encoder_residual": "add"} | DEEP,
    "dense": {"decoder_layers": 3, "decoder_residual": "dense", "decoder_cell": "tanh"},
    "none-state": {"attention": "none-state", "embed_features": 3, "encoder_layers": 2} | LSTM,
    "none-input": {"attention": "none-input", "decoder_residual": "dense", "encoder_layers": 2},
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", daily(CASES, "none-state", "none-input"))
def test_is_the_paper(name):
    model = britz(**CASES[name])
    assert model.attends != model.attention.startswith("none")
    settings = ("attention", "encoder_cell", "decoder_cell", "encoder_residual")
    settings += ("decoder_residual", "input_transform", "direction")
    assert_is(rnn_oracle.britz, model, *settings, in_pieces=name in ("residual", "none-state"))
