"""Alignments of a model that looks where it should, by the step that predicts or by the next."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.core.tokens import NUM_SPECIAL
from attnlab.data import dates
from attnlab.data.tokenizers import Bytes
from attnlab.models.luong import Luong
from attnlab.models.seq2seq import Seq2Seq
from experiments.translate.corpus import Corpus, Drawn, Tokenizers
from experiments.translate.evaluate import (
    alignments,
    attention_entropy,
    date_alignment_error,
    translate,
)

TEXTS = ("2019-03-05", "1998-10-31")


class Same(dates.Dates):
    """Dates that are written as they should be: each character stems from itself."""

    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, index):
        return {"source": TEXTS[index], "target": TEXTS[index]}

    def alignment(self, index):
        return tuple((i,) for i in range(len(TEXTS[index])))


BYTES = Tokenizers(Bytes(), Bytes())
DRAWN = tuple(Drawn(text, text) for text in TEXTS)
CORPUS = Corpus("dates", {"test": Same("test")}, lambda joint: BYTES, "exact match", DRAWN)


class Diagonal(Seq2Seq):
    """Step t looks at the source's character t."""

    def encode(self, source, *, deterministic=True):
        return source

    def decode(self, memory, tokens, *, deterministic=True, decode=False, return_weights=False):
        weights = jnp.eye(tokens.shape[1], memory.shape[1])
        logits = jnp.zeros((*tokens.shape, NUM_SPECIAL + 256))
        return logits, jnp.broadcast_to(weights, (len(tokens), *weights.shape))


class Uniform(Diagonal):
    """Looks at `looks` tokens alike, with weights that sum to `total`; at EOS looks at one."""

    looks: int = 4
    total: float = 1.0

    def decode(self, memory, tokens, *, deterministic=True, decode=False, return_weights=False):
        shape = (*tokens.shape, memory.shape[1])
        weights = jnp.where(jnp.arange(shape[-1]) < self.looks, self.total / self.looks, 0.0)
        weights = jnp.broadcast_to(weights, shape)
        last = jnp.arange(shape[1])[:, None] == len(TEXTS[0])  # the step that predicts EOS
        one = jnp.arange(shape[-1]) == 0
        logits = jnp.zeros((*tokens.shape, NUM_SPECIAL + 256))
        return logits, jnp.where(last, one, weights)


@pytest.mark.parametrize(
    ("model", "entropy"),
    [
        (Diagonal(), 0),
        (Uniform(), np.log(4)),
        (Uniform(looks=7, total=0.3), np.log(7)),
        (Uniform(looks=1), 0),
        (Uniform(total=np.nan), np.nan),
    ],
)
def test_the_entropy_is_of_the_shares_of_each_token(model, entropy):
    assert attention_entropy(model, {}, CORPUS, BYTES) == pytest.approx(
        entropy, abs=1e-5, nan_ok=True
    )


def test_links_are_those_of_the_step_that_predicts_the_word():
    assert date_alignment_error(Diagonal(), {}, CORPUS, BYTES) == 0
    length = len(TEXTS[0])
    for one in alignments(Diagonal(), {}, CORPUS, BYTES):
        np.testing.assert_array_equal(np.asarray(one.weights)[:length, :length], np.eye(length))
        assert len(one.target) == np.shape(one.weights)[0] == length + 1  # and EOS


def test_other_pairs_that_are_drawn_have_another_name():
    other = (Drawn("a", "b"),)
    assert CORPUS.drawn_name == dataclasses.replace(CORPUS, digest="x").drawn_name
    assert CORPUS.drawn_name != dataclasses.replace(CORPUS, drawn=other).drawn_name


def test_a_source_longer_than_luongs_locations_is_translated():
    size = BYTES.target.vocab_size
    sizes = {"embed_features": 3, "hidden_features": 5, "num_layers": 1, "max_source_length": 7}
    model = Luong(size, size, score="location", **sizes)
    tokens = jnp.ones((1, 4), int)
    variables = jax.jit(model.init)(jax.random.key(0), tokens, tokens)
    found = translate(
        model, variables, CORPUS, BYTES, split="test", beam_size=1, length_penalty=0.0, max_length=3
    )
    assert len(found) == len(TEXTS)
