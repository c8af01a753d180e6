"""Decoding by hash: any pieces are the parallel forward, and what is remembered is what entered."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops.lsh.decode import empty_state, lsh_decode
from attnlab.ops.lsh.hashing import running_center
from attnlab.ops.lsh.inputs import STRICT, LSHOptions
from attnlab.ops.lsh.running_mean import RunningMean
from tests import oracle_lsh
from tests.daily import daily
from tests.ops.lsh.plain import BUCKETS, CHUNK, LENGTH, ROUNDS, counts_of, dense, inputs, key_mask

pytestmark = pytest.mark.usefixtures("x64")

TOKEN_BY_TOKEN = (1,) * LENGTH
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@functools.partial(jax.jit, static_argnames=("options",))
def step(qk, v, buckets, state, start, mask, *, options):
    return lsh_decode(qk, v, buckets, state, start, chunk_size=CHUNK, mask=mask, options=options)


def decode(qk, v, buckets, pieces, *, mask=None, options=STRICT):
    """The contexts of consecutive pieces, joined, and the state at the end.

    What stands in the cache behind a piece is NaN.
    """
    state = empty_state(
        qk.shape, num_hashes=ROUNDS, num_buckets=BUCKETS, chunk_size=CHUNK, options=options
    )
    contexts, start = [], 0
    for size in pieces:
        stop = start + size
        cache = (
            np.where((np.arange(x.shape[1]) < stop)[:, None, None], x, np.nan) for x in (qk, v)
        )
        new = buckets[:, :, start:stop]
        context, state = step(*cache, new, state, start, mask, options=options)
        contexts.append(context)
        start = stop
    return np.concatenate(contexts, axis=1), state


def true_contexts(qk, v, buckets, *, options=STRICT, valid=None):
    v = np.repeat(v, qk.shape[2] // v.shape[2], axis=2)
    fields = dataclasses.asdict(options)
    return oracle_lsh.lsh_attention(
        qk, v, buckets, chunk_size=CHUNK, causal=True, options=fields, valid=valid
    )


def lists(buckets, window, valid=None):
    """`DecodeState.latest` by hand."""
    batch, rounds, length, heads = buckets.shape
    found = np.zeros((batch, heads, rounds, BUCKETS, window), np.int32)
    for b, r, n, bucket in np.ndindex(batch, rounds, heads, BUCKETS):
        member = buckets[b, r, :, n] == bucket
        entered = np.flatnonzero(member if valid is None else member & valid[b])[-window:] + 1
        found[b, n, r, bucket, window - len(entered) :] = entered
    return found


PROMPTS = {"none": 0, "one": 1, "seven": 7, "chunk": CHUNK, "long": 2 * CHUNK + 3}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_and_then_single_tokens_are_the_parallel_forward(prompt):
    arrays = inputs()
    pieces = (prompt,) * (prompt > 0) + (1,) * (LENGTH - prompt)
    got, state = decode(*arrays, pieces)
    np.testing.assert_allclose(got, true_contexts(*arrays), **EXACT)
    np.testing.assert_array_equal(state.buckets, arrays[2])
    np.testing.assert_array_equal(state.latest, lists(arrays[2], CHUNK))


OPTIONS = {
    "multiset": LSHOptions(union=False, window=2),
    "wide": LSHOptions(look_back=2, window=CHUNK + 2, key_norm="l2", logit_scale=None),
}


@pytest.mark.parametrize("name", daily(OPTIONS, "multiset"))
def test_options(name):
    arrays, options = inputs(), OPTIONS[name]
    true = true_contexts(*arrays, options=options)
    for pieces in (TOKEN_BY_TOKEN, (7, *TOKEN_BY_TOKEN[7:])):
        got, state = decode(*arrays, pieces, options=options)
        np.testing.assert_allclose(got, true, **EXACT)
        window = options.geometry(CHUNK, True, LENGTH).window
        np.testing.assert_array_equal(state.latest, lists(arrays[2], window))


def test_grouped_values_and_several_tokens_at_any_place():
    qk, v, buckets = inputs(seed=3)
    got, state = decode(qk, v[:, :, :1], buckets, (1, 1, 7, 1, 7, *TOKEN_BY_TOKEN[17:]))
    np.testing.assert_allclose(got, true_contexts(qk, v[:, :, :1], buckets), **EXACT)
    np.testing.assert_array_equal(state.latest, lists(buckets, CHUNK))


def padding_somewhere():
    """One example is padded in front, one in the middle and behind its prompt of 11 tokens."""
    position = np.arange(LENGTH)
    return np.stack(
        [position >= 5, ((position < 2) | (position > 3)) & ~((8 < position) & (position < 12))]
    )


@pytest.mark.parametrize("prompt", [0, 11])
def test_padding_is_entered_nowhere(prompt):
    qk, v, buckets = inputs(seed=4)
    valid = padding_somewhere()
    hidden = ~valid[:, :, None, None]
    pieces = (prompt,) * (prompt > 0) + (1,) * (LENGTH - prompt)
    nan = np.where(hidden, np.nan, qk), np.where(hidden, np.nan, v), buckets
    got, state = decode(*nan, pieces, mask=key_mask(valid))
    np.testing.assert_allclose(got, true_contexts(qk, v, buckets, valid=valid), **EXACT)
    np.testing.assert_array_equal(state.latest, lists(buckets, CHUNK, valid))


def test_a_mask_of_pairs_hides_them_in_a_prompt_and_after_it():
    qk, v, buckets = inputs(seed=7)
    pairs = np.random.default_rng(7).random((LENGTH, LENGTH)) < 0.6
    np.fill_diagonal(pairs, True)
    times = counts_of(buckets, STRICT, chunk_size=CHUNK, causal=True)
    got, _ = decode(qk, v, buckets, (7, *TOKEN_BY_TOKEN[7:]), mask=pairs[None, None])
    np.testing.assert_allclose(got, dense(qk, v, np.minimum(times, 1) * pairs), **EXACT)


def test_query_lengths_silence_queries_that_remain_keys():
    arrays = inputs(seed=5)
    kv_lengths, q_lengths = np.array([LENGTH, 20]), np.array([9, LENGTH])
    got, _ = decode(*arrays, (7, *TOKEN_BY_TOKEN[7:]), mask=masks.Padding(kv_lengths, q_lengths))
    position = np.arange(LENGTH)
    true = true_contexts(*arrays, valid=position < kv_lengths[:, None])
    true[position >= q_lengths[:, None]] = 0
    np.testing.assert_allclose(got, true, **EXACT)


def test_a_key_that_a_later_call_hides_is_not_seen():
    qk, v, buckets = inputs(seed=6)
    buckets[:] = 0
    _, state = decode(qk, v, buckets, (LENGTH - 1,))
    mask = key_mask(np.arange(LENGTH)[None, :] != LENGTH - 2)

    def last(v):
        new = buckets[:, :, -1:]
        return step(qk, v, new, state, LENGTH - 1, mask, options=STRICT)[0]

    other = v.copy()
    other[:, -2] = np.nan
    np.testing.assert_array_equal(last(v), last(other))
    other[:, -3] = 7.0
    assert np.abs(last(v) - last(other)).min() > 1e-3


@pytest.mark.parametrize("batch", [(), pytest.param((2, 1, 2), marks=pytest.mark.slow)])
def test_any_number_of_batch_axes(batch):
    flat = inputs(seed=7, batch=4)
    qk, v, buckets = (x[: np.prod(batch, dtype=int)].reshape(*batch, *x.shape[1:]) for x in flat)
    state = empty_state(qk.shape, num_hashes=ROUNDS, num_buckets=BUCKETS, chunk_size=CHUNK)
    contexts = []
    for start, stop in ((0, 7), (7, 8), (8, 9)):
        new = buckets[..., start:stop, :]
        context, state = step(qk, v, new, state, start, None, options=STRICT)
        contexts.append(context)
    got = np.concatenate(contexts, axis=-3)
    assert got.shape == (*batch, 9, *v.shape[-2:])
    true = true_contexts(*flat)[: np.prod(batch, dtype=int), :9]
    np.testing.assert_allclose(got.reshape(true.shape), true, **EXACT)


def test_bfloat16():
    qk, v, buckets = inputs(seed=8)
    low = jnp.asarray(qk, jnp.bfloat16), jnp.asarray(v, jnp.bfloat16)
    state = empty_state(qk.shape, num_hashes=ROUNDS, num_buckets=BUCKETS, chunk_size=CHUNK)
    true = true_contexts(*(np.asarray(x, np.float64) for x in low), buckets)
    for start, stop in ((0, 11), (11, 12)):
        got, state = step(*low, buckets[:, :, start:stop], state, start, None, options=STRICT)
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            got.astype(np.float64), true[:, start:stop], rtol=0.02, atol=0.02
        )


def test_extreme_logits_and_zero_rows_are_finite():
    qk, v, buckets = inputs(seed=9)
    qk[0] *= 1e30
    qk[1, ::2] = 0
    got, _ = decode(qk, v, buckets, TOKEN_BY_TOKEN)
    np.testing.assert_allclose(got, true_contexts(qk, v, buckets), **EXACT)


def test_a_token_costs_the_same_however_long_the_cache():
    def cost(length):
        qk = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
        buckets = jax.ShapeDtypeStruct((1, ROUNDS, 1, 2), jnp.int32)
        start = jax.ShapeDtypeStruct((), jnp.int32)
        state = jax.eval_shape(
            lambda: empty_state(qk.shape, num_hashes=ROUNDS, num_buckets=64, chunk_size=CHUNK)
        )
        lowered = step.lower(qk, qk, buckets, state, start, None, options=STRICT)
        compiled = lowered.compile()
        return compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes

    short, long = cost(2**10), cost(2**14)
    assert short == long


def test_centers_go_on_from_a_running_mean():
    x = np.random.default_rng(0).normal(size=(2, 13, 3, 4)) + 5
    valid = np.random.default_rng(1).random((2, 13)) < 0.6
    valid[0, :2] = False
    go_on, whole = jax.jit(RunningMean.go_on), jax.jit(running_center)
    for given in (None, valid):
        mean = RunningMean.empty(x.shape)
        found = []
        for part in (slice(0, 1), slice(1, 6), slice(6, 7), slice(7, 13)):
            piece = None if given is None else given[:, part]
            centers, mean = go_on(mean, x[:, part], piece)
            found.append(centers)
        np.testing.assert_allclose(
            np.concatenate(found, axis=1), whole(x, given), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_array_equal(mean.count, 13 if given is None else valid.sum(1))


def test_the_first_state_may_be_donated():
    state = empty_state((2, 7, 3, 5), num_hashes=1, num_buckets=2, running_mean=True)
    count = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    assert all((x == 1).all() for x in jax.tree.leaves(count(state)))


@pytest.mark.parametrize("count", [1, 7])
def test_bucket_ids_that_the_state_has_no_list_for_are_nan_under_jit(count):
    qk, v, buckets = inputs()
    state = empty_state(qk.shape, num_hashes=ROUNDS, num_buckets=BUCKETS, chunk_size=CHUNK)
    for ids in (buckets[:, :, :count] + BUCKETS, buckets[:, :, :count] - BUCKETS):
        assert np.isnan(step(qk, v, ids, state, 0, None, options=STRICT)[0]).all()


def test_a_window_longer_than_the_cache_keeps_no_more_than_the_cache():
    arrays = inputs()
    shape = arrays[0].shape
    state = empty_state(shape, num_hashes=ROUNDS, num_buckets=BUCKETS, chunk_size=8192)
    assert state.latest.shape[-1] == LENGTH
    step, contexts = jax.jit(functools.partial(lsh_decode, chunk_size=8192)), []
    for start, stop in ((0, 11), (11, 12), (12, LENGTH - 1), (LENGTH - 1, LENGTH)):
        new = arrays[2][:, :, start:stop]
        context, state = step(*arrays[:2], new, state, start)
        contexts.append(context)
    true = oracle_lsh.lsh_attention(*arrays, chunk_size=8192, causal=True)
    np.testing.assert_allclose(np.concatenate(contexts, axis=1), true, **EXACT)
