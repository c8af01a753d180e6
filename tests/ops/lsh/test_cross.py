"""LSH attention with queries and keys of their own, against a float64 oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops import dropout
from attnlab.ops.lsh import cross
from attnlab.ops.lsh.inputs import STRICT, LSHOptions
from tests.daily import daily
from tests.ops.lsh.plain import STATIC
from tests.ops.lsh.plain_cross import all_counts, dense, everything
from tests.trees import assert_close

BATCH, QUERIES, KEYS, HEADS, KV_HEADS, WIDTH, VALUE_WIDTH, ROUNDS, BUCKETS = (
    2,
    29,
    23,
    4,
    2,
    5,
    3,
    3,
    3,
)
CHUNK = 4

# The rounds, which short inputs would not go through of themselves.
lsh_cross_attention = functools.partial(cross.lsh_cross_attention, implementation="sorted")
attend = jax.jit(lsh_cross_attention, static_argnames=STATIC)


def inputs(num_queries=QUERIES, num_keys=KEYS, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(BATCH, num_queries, HEADS, WIDTH)).astype(dtype)
    k = rng.normal(size=(BATCH, num_keys, KV_HEADS, WIDTH)).astype(dtype)
    v = rng.normal(size=(BATCH, num_keys, KV_HEADS, VALUE_WIDTH)).astype(dtype)
    q_buckets = rng.integers(0, BUCKETS, (BATCH, ROUNDS, num_queries, HEADS), dtype=np.int32)
    k_buckets = rng.integers(0, BUCKETS, (BATCH, ROUNDS, num_keys, KV_HEADS), dtype=np.int32)
    return q, k, v, q_buckets, k_buckets


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(f, q, k, v):
    out, pull = jax.vjp(f, q, k, v)
    return (out, *pull(jnp.cos(out)))


CASES = {  # options, causal, reach, number of queries
    "both ways": (STRICT, False, CHUNK, QUERIES),
    "causal": (STRICT, True, CHUNK, QUERIES),
    "a long window, both ways": (LSHOptions(look_back=2, window=5), False, 5, QUERIES),
    "a short window, multiset": (LSHOptions(window=2, union=False), True, 2, QUERIES),
    "raw keys, few queries": (LSHOptions(key_norm=None, logit_scale=None), False, CHUNK, 3),
}


@pytest.mark.parametrize(
    ("case", "implementation"),
    daily([(case, way) for case in CASES for way in ("sorted", "dense")], ("causal", "sorted")),
)
def test_equals_the_oracle_and_its_gradients_those_of_a_dense_softmax(x64, case, implementation):
    options, causal, reach, num_queries = CASES[case]
    q, k, v, *buckets = inputs(num_queries)
    rng = np.random.default_rng(2)
    masked = {
        "valid": rng.random((BATCH, KEYS)) < 0.7,
        "q_valid": np.arange(num_queries) < np.array([[num_queries], [num_queries // 2 + 1]]),
        "segments": rng.integers(0, 2, (BATCH, KEYS)),
        "q_segments": rng.integers(0, 2, (BATCH, num_queries)),
    }
    masked["valid"][:, :2] = False
    norm, scale = options.key_norm, options.logit_scale or WIDTH**-0.5
    knobs = {"chunk_size": CHUNK, "options": options, "implementation": implementation}

    @jax.jit
    def ours(q, k, v, given):
        mask = masks.Explicit(given["valid"][:, None, None, :])
        lengths = jnp.sum(given["q_valid"], 1)
        mask &= masks.Padding(jnp.full(BATCH, KEYS), q_lengths=lengths)
        mask &= masks.Segments(given["q_segments"], given["segments"])
        return value_and_gradients(
            lambda q, k, v: lsh_cross_attention(
                q, k, v, *buckets, causal=causal, mask=mask, **knobs
            ),
            q,
            k,
            v,
        )

    for given in (everything(BATCH, num_queries, KEYS), masked):
        times = all_counts(*buckets, given, reach=reach, causal=causal)
        times = np.minimum(times, 1) if options.union else times
        wanted = value_and_gradients(
            lambda q, k, v, times=times: dense(q, k, v, times, norm=norm, scale=scale), q, k, v
        )
        assert_close(ours(q, k, v, given), wanted, atol=1e-11)


@pytest.mark.parametrize(
    ("num_queries", "num_keys"), daily([(1, 1), (1, 17), (17, 1), (5, 8), (16, 16)], (17, 1))
)
def test_any_lengths(x64, num_queries, num_keys):
    q, k, v, *buckets = inputs(num_queries, num_keys)
    got = attend(q, k, v, *buckets, chunk_size=CHUNK)
    given = everything(BATCH, num_queries, num_keys)
    times = np.minimum(all_counts(*buckets, given, reach=CHUNK, causal=False), 1)
    np.testing.assert_allclose(got, dense(q, k, v, times), atol=1e-12)


@pytest.mark.slow
def test_queries_may_begin_later_than_keys(x64):
    q, k, v, *buckets = inputs(5)
    mask = masks.Causal(q_offset=jnp.array([18, 3]))
    got = attend(q, k, v, *buckets, chunk_size=CHUNK, mask=mask)
    for b, offset in enumerate((18, 3)):
        times = all_counts(
            *buckets, everything(BATCH, 5, KEYS), reach=CHUNK, causal=True, offset=offset
        )
        want = dense(q, k, v, np.minimum(times, 1))
        np.testing.assert_allclose(got[b], want[b], atol=1e-12)


@pytest.mark.parametrize("first", [masks.Causal(), masks.Window(None, 0)])
def test_of_two_causal_masks_a_query_sees_what_both_show(x64, first):
    arrays, second = inputs(5), masks.Causal(np.array([18, 3]))
    found = [
        attend(*arrays, chunk_size=CHUNK, mask=mask)
        for mask in (first, first & second, second & first)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_queries_may_begin_far_behind_all_keys():
    q, k, v, *_ = inputs(dtype=np.float32)
    buckets = jnp.zeros((1, 1, QUERIES, 1), int), jnp.zeros((1, 1, KEYS, 1), int)
    near, far, before = (
        lsh_cross_attention(
            q[:1, :, :1], k[:1, :, :1], v[:1, :, :1], *buckets, chunk_size=64, mask=masks.Causal(at)
        )
        for at in (KEYS, 2**31 - 1, 1 - 2**31)
    )
    np.testing.assert_array_equal(near, far)
    assert near.any() and not before.any()


@pytest.mark.slow
def test_knobs_change_no_number(x64, monkeypatch):
    q, k, v, *buckets = inputs()
    key, rate = jax.random.key(5), 0.4

    def ours(q, k, v, **knobs):
        return lsh_cross_attention(
            q,
            k,
            v,
            *buckets,
            chunk_size=CHUNK,
            dropout_rate=rate,
            dropout_key=key,
            **knobs,
        )

    seeds = dropout.seeds(key, BATCH, HEADS, 1)
    keep = dropout.keep_mask(seeds, rate, jnp.arange(QUERIES), jnp.arange(KEYS))
    times = np.minimum(
        all_counts(*buckets, everything(BATCH, QUERIES, KEYS), reach=CHUNK, causal=False), 1
    )
    wanted = value_and_gradients(
        lambda q, k, v: dense(q, k, v, times, keep=keep[:, :, 0] / (1 - rate)), q, k, v
    )

    def tiled(q, k, v):
        return ours(q, k, v)

    in_turns = functools.partial(ours, rows_at_once=3)
    densely = functools.partial(ours, implementation="dense")
    runs = [value_and_gradients(f, q, k, v) for f in (ours, in_turns, densely)]
    # 4 of the 14 query chunks in a tile: the last one is moved back over chunks already computed.
    monkeypatch.setattr("attnlab.ops.lsh.rows._TILE_ON_CPU", 5 * 3 * CHUNK**2)
    for got in (*runs, value_and_gradients(tiled, q, k, v)):
        assert_close(got, wanted, atol=1e-11)


@pytest.mark.parametrize("which", [0, 1])
def test_bucket_ids_that_cannot_be_sorted_are_nan_under_jit(which):
    q, k, v, *buckets = inputs(dtype=np.float32)
    buckets[which] = buckets[which] - 1
    lengths = np.array([5, KEYS]), np.array([QUERIES, 7])
    assert np.isnan(attend(q, k, v, *buckets, chunk_size=CHUNK, mask=masks.Padding(*lengths))).all()
