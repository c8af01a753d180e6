"""Alignments of a model that looks where it should, by the step that predicts or by the next."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.data import dates
from attnlab.data.tokenizers import Bytes
from attnlab.models.luong import Luong
from attnlab.models.seq2seq import Seq2Seq
from attnlab.tokens import NUM_SPECIAL
from attnlab.translation import report
from attnlab.translation.corpus import Corpus, Drawn, Tokenizers
from attnlab.translation.evaluate import date_alignment_error

TEXTS = ("2019-03-05", "1998-10-31")


class Same(dates.Dates):
    """Dates that are written as they should be: each character stems from itself."""

    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, index):
        return {"source": TEXTS[index], "target": TEXTS[index]}

    def alignment(self, index):
        return tuple((i,) for i in range(len(TEXTS[index])))


class Diagonal(Seq2Seq):
    """Step t looks at the source's character t or, `late`, at the one before."""

    late: bool = False

    @property
    def weights_follow_input(self):
        return self.late

    def encode(self, source, *, deterministic=True):
        return source

    def decode(self, memory, tokens, *, deterministic=True, decode=False, return_weights=False):
        weights = jnp.eye(tokens.shape[1], memory.shape[1], -int(self.late))
        logits = jnp.zeros((*tokens.shape, NUM_SPECIAL + 256))
        return logits, jnp.broadcast_to(weights, (len(tokens), *weights.shape))


@pytest.mark.parametrize("late", [False, True])
def test_links_are_those_of_the_step_that_the_model_says(late):
    bytes_ = Tokenizers(Bytes(), Bytes())
    drawn = (Drawn(TEXTS[0], TEXTS[0]), Drawn(TEXTS[1], TEXTS[1]))
    corpus = Corpus("dates", {"test": Same("test")}, lambda joint: bytes_, "exact match", drawn)
    model = Diagonal(late)
    assert date_alignment_error(model, {}, corpus, bytes_) == 0
    shown = report._alignments(model, {}, corpus, bytes_)
    length = len(TEXTS[0])
    for one in shown:
        np.testing.assert_array_equal(np.asarray(one.weights)[:length, :length], np.eye(length))
        assert len(one.target) == np.shape(one.weights)[0] == length + (not late)  # and EOS


def test_luongs_scores_of_content_follow_the_word_that_is_read():
    scores = ("location", "dot", "general", "concat")
    assert [Luong(5, 5, score=name).weights_follow_input for name in scores] == [
        False, True, True, True,
    ]  # fmt: skip
    assert not Seq2Seq().weights_follow_input
