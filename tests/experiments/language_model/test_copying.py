"""The copy task: what it asks, and that a model that looks far answers it."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from experiments.language_model import copying
from experiments.language_model.copying import FIRST_NOISE, FIRST_NUMBER, SYMBOLS, WORD, words
from experiments.language_model.settings import Settings


@pytest.mark.parametrize("distance", [17, 101])
def test_each_symbol_is_asked_for_by_its_number_far_behind_it(distance):
    for batch in (words(distance, seed=1)[i] for i in range(3)):
        tokens, target = batch["tokens"], batch["target"]
        assert tokens.shape == target.shape == (copying.BATCH, distance + 2 * WORD)
        for row, wanted in zip(tokens, target, strict=True):
            asked = np.flatnonzero(wanted)
            assert len(asked) == WORD
            np.testing.assert_array_equal(row[asked], wanted[asked])
            np.testing.assert_array_equal(row[asked - 1], FIRST_NUMBER + np.arange(WORD))
            places = [np.flatnonzero(row == symbol).tolist() for symbol in wanted[asked]]
            assert places == [[i, j] for i, j in enumerate(asked)]  # nowhere else
            assert all(j - i >= distance for i, j in places)
            noise = row[WORD:distance]
            assert noise.min() >= FIRST_NOISE and noise.max() < FIRST_NOISE + copying.NOISE
            assert np.all((row[:WORD] - 4) // SYMBOLS == np.arange(WORD))


def test_words_are_seeded():
    one, same, other = (words(40, seed)[0]["tokens"] for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert not np.array_equal(one, words(40, 1)[1]["tokens"])


class Lookup(nn.Module):
    """Looks for the symbol of the place, in the last `reach` tokens, and has no parameters."""

    reach: int

    @nn.compact
    def __call__(self, tokens, *, deterministic=True):
        length = tokens.shape[1]
        number = np.roll(tokens, 1, axis=1) - FIRST_NUMBER  # the token before
        place = np.where((tokens >= 4) & (tokens < FIRST_NUMBER), (tokens - 4) // SYMBOLS, -9)
        near = np.arange(length)[:, None] - np.arange(length)[None]
        hit = (number[:, :, None] == place[:, None, :]) & (near > 0) & (near <= self.reach)
        one_hot = np.eye(FIRST_NOISE + copying.NOISE, dtype=np.float32)[tokens]
        return jax.numpy.asarray(hit.astype(np.float32) @ one_hot)


@pytest.mark.slow
def test_accuracy_is_that_of_the_copies(monkeypatch):
    monkeypatch.setattr(jax, "jit", lambda function: function)
    assert copying.accuracy(Lookup(200), {}, 64, seed=0) == 1.0
    # A tie of all logits counts as right: what has no answer gives the first symbol a head start.
    monkeypatch.setattr(copying, "HELD_OUT", 2)

    class Wrong(Lookup):
        def __call__(self, tokens, *, deterministic=True):
            return super().__call__(tokens).at[..., 0].add(0.5)

    assert Wrong(200).apply({}, words(64, 0)[0]["tokens"]).shape[-1] == FIRST_NOISE + 32
    assert copying.accuracy(Wrong(50), {}, 64, seed=0) == 0.0


def test_the_model_is_small_whatever_the_run_trains():
    sizes = copying.sizes_of(Settings(num_layers=7, dropout_rate=0.5, chunk_size=11))
    assert (sizes.num_layers, sizes.dropout_rate) == (1, 0.0)
    assert sizes.chunk_size == 11
