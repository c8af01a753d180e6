"""Dropout on the weights: the same ones dropped by every implementation, at the rate asked for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks, scores
from attnlab.ops import blockwise, dense, dropout
from attnlab.ops.attention import attention
from attnlab.ops.layout import prepare
from attnlab.testing import Sizes
from tests.daily import daily
from tests.mechanism_cases import SCORES
from tests.trees import assert_close

RATE = 0.3
BRANCHES = [("cpu", 2), ("cpu", 1), ("default", 2)]  # of the engine, and heads that share keys
keep_mask = jax.jit(dropout.keep_mask, static_argnums=1)


@pytest.mark.parametrize(("branch", "group_size"), daily(BRANCHES, ("cpu", 2)))
def test_dense_and_blockwise_drop_the_same(branch, group_size, monkeypatch):
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *args, **branches: branches[branch](*args)
    )
    jax.clear_caches()
    q, k, v = (
        jnp.asarray(x, jnp.float32)
        for x in SCORES[1].qkv(np.random.default_rng(0), Sizes(batch=2, group_size=group_size))
    )
    mask = masks.Causal(3)

    def run(attend):
        def loss(q, k, v, key):
            x = prepare(scores.Dot(), q, k, v, mask, None, dropout_key=key)
            context = attend(x, dropout_rate=RATE)
            return (context**2).sum(), context

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(
            q, k, v, jax.random.key(5)
        )

    engine = functools.partial(blockwise.attend, block_q=7, block_k=9)
    assert_close(run(engine), run(dense.attend), rtol=1e-4, atol=1e-5)
    jax.clear_caches()


@functools.cache
def shown_weights(rate, seed, implementation="dense"):
    """The weights after dropout, [2, 6, 64, 64]: what the context is if values are the identity."""
    q = np.random.default_rng(1).normal(size=(2, 64, 6, 3)).astype("f")
    k = q[:, :, :3]
    v = np.broadcast_to(np.eye(64, dtype="f")[None, :, None], (2, 64, 3, 64))
    return np.moveaxis(
        np.asarray(dropped(q, k, v, jax.random.key(seed), rate, implementation)), 2, 1
    )


@functools.partial(jax.jit, static_argnums=(4, 5))
def dropped(q, k, v, key, rate, implementation):
    options = {"dropout_rate": rate, "dropout_key": key, "implementation": implementation}
    return attention(scores.Dot(), q, k, v, **options)


def test_rate_and_scale():
    whole, dropped = shown_weights(0.0, 0), shown_weights(RATE, 0)
    kept = dropped != 0
    deviation = np.sqrt(RATE * (1 - RATE) / kept.size)
    assert abs(kept.mean() - (1 - RATE)) < 4 * deviation
    np.testing.assert_allclose(dropped[kept], whole[kept] / (1 - RATE), rtol=1e-5)
    np.testing.assert_array_equal(shown_weights(RATE, 0, "blockwise") != 0, kept)


def test_everything_is_dropped_apart():
    """Heads, examples, rows, columns and keys agree as often as independent coins do."""
    kept = shown_weights(RATE, 0) != 0
    pairs = {
        "heads": (kept[:, :-1], kept[:, 1:]),
        "examples": (kept[0], kept[1]),
        "rows": (kept[..., :-1, :], kept[..., 1:, :]),
        "columns": (kept[..., :-1], kept[..., 1:]),
        "transpose": (kept, np.swapaxes(kept, -1, -2)),
        "keys": (kept, shown_weights(RATE, 1) != 0),
    }
    expected = RATE**2 + (1 - RATE) ** 2
    for name, (a, b) in pairs.items():
        assert abs((a == b).mean() - expected) < 5 * np.sqrt(0.25 / a.size) + 1 / 64, name


def test_the_same_key_drops_the_same():
    shown_weights.cache_clear()
    first = shown_weights(RATE, 3)
    shown_weights.cache_clear()
    np.testing.assert_array_equal(first, shown_weights(RATE, 3))


def test_a_block_drops_as_the_whole_does():
    seeds = dropout.seeds(jax.random.key(0), 2, 3, 1)
    whole = keep_mask(seeds, RATE, np.arange(13), np.arange(17))
    block = keep_mask(seeds, RATE, np.arange(5, 9), np.arange(11, 17))
    np.testing.assert_array_equal(block, whole[..., 5:9, 11:17])


@pytest.mark.parametrize("rate", [1e-6, 0.999999, 1 - 2**-33])
def test_extreme_rates(rate):
    seeds = dropout.seeds(jax.random.key(0), 1, 1, 1)
    keep = np.asarray(keep_mask(seeds, rate, np.arange(50), np.arange(50)))
    assert keep.mean() == (1.0 if rate < 0.5 else 0.0)


def test_noise_of_the_least_and_the_largest_word_is_finite(monkeypatch):
    monkeypatch.setattr(dropout, "_words", lambda *_: jnp.array([0, 2**32 - 1], jnp.uint32))
    nothing = jnp.zeros(0)
    u = np.array([2.0**-24, 1 - 2.0**-24])
    got = dropout.gumbel_noise(nothing, nothing, nothing)
    np.testing.assert_allclose(got, -np.log(-np.log(u)), rtol=1e-5)
