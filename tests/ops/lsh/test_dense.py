"""LSH attention computed densely: the same function as round by round, whatever the options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.cross_order import CrossVisibility, sort_queries_and_keys
from attnlab.ops.lsh.dense import attend_dense, row_times, softmax_times
from attnlab.ops.lsh.options import STRICT, LSHOptions
from attnlab.ops.lsh.order import sort_rounds
from attnlab.ops.lsh.rounds import attend_rounds, attend_some_rounds
from attnlab.ops.lsh.rows import CallSettings, unit_keys
from tests.daily import daily
from tests.ops.lsh.plain import counts_of

BATCH, HEADS, WIDTH, VALUE_WIDTH, ROUNDS, CHUNK, BUCKETS = 2, 2, 5, 3, 3, 4, 3

CASES = {  # options, causal
    "strict": (STRICT, True),
    "strict, both ways": (STRICT, False),
    "strict, multiset": (LSHOptions(union=False), True),
    "strict, other window": (LSHOptions(look_back=2, window=5), False),
    "other keys": (LSHOptions(logit_scale=None, key_norm="l2"), True),
}


def inputs(length, seed=0, rounds=ROUNDS, dtype=np.float64):
    rng = np.random.default_rng(seed)
    qk = rng.normal(size=(BATCH, length, HEADS, WIDTH)).astype(dtype)
    v = rng.normal(size=(BATCH, length, HEADS, VALUE_WIDTH)).astype(dtype)
    buckets = rng.integers(0, BUCKETS, size=(BATCH, HEADS, rounds, length), dtype=np.int32)
    return qk, v, buckets


def some_masked(length, seed=1):
    rng = np.random.default_rng(seed)
    valid = rng.random((BATCH, length)) < 0.7
    return valid, rng.integers(0, 3, size=(BATCH, length), dtype=np.int32)


def make(options, causal, *, length=12, chunk=CHUNK, rate=0.0, rows_at_once=None):
    geometry = options.geometry(chunk, causal, length)
    return CallSettings(geometry, options.key_norm, rate, rows_at_once, None)


ordered = jax.jit(sort_rounds, static_argnums=3)
SEEDS = np.arange(2 * BATCH * HEADS, dtype=np.uint32).reshape(-1, 2) + 5


@functools.partial(jax.jit, static_argnums=(0, 1))
def value_and_gradients(attend, settings, qk, v, buckets, valid, segments, cotangent, scale=0.7):
    order = sort_rounds(buckets, valid, segments, settings.geometry)
    scale = jnp.asarray(scale, qk.dtype)
    out, pull = jax.vjp(lambda qk, v: attend(settings, qk, None, v, scale, order, SEEDS), qk, v)
    return (out, *pull(cotangent))


def compare(options, causal, masks, *, length=12, chunk=CHUNK, rounds=ROUNDS, rate=0.0):
    settings = make(options, causal, length=length, chunk=chunk, rate=rate)
    qk, v, buckets = inputs(length, rounds=rounds)
    cotangent = np.random.default_rng(3).normal(size=v.shape)
    for valid, segments in masks:
        given = (qk, v, buckets, valid, segments, cotangent)
        want = value_and_gradients(attend_rounds, settings, *given)
        got = value_and_gradients(attend_dense, settings, *given)
        for x, y, atol in zip(got, want, (1e-12, 1e-10, 1e-10), strict=True):
            np.testing.assert_allclose(x, y, atol=atol, rtol=0)


@functools.partial(jax.jit, static_argnums=0)
def times_of(geometry, order):
    """How often each pair of each example and head counts."""
    rows = jnp.arange(BATCH * HEADS)
    return jax.vmap(lambda row: row_times(geometry, order, HEADS, row))(rows)


@pytest.mark.parametrize("case", daily(CASES, "strict"))
def test_equals_attention_round_by_round(x64, case):
    valid, segments = some_masked(12)
    everyone, one_segment = np.ones_like(valid), np.zeros_like(segments)
    masks = [(everyone, one_segment), (valid, one_segment), (valid, segments)]
    compare(*CASES[case], masks)


def test_equals_it_without_any_mask(x64):
    compare(STRICT, True, [(None, None)])


@pytest.mark.parametrize("case", daily(CASES, "strict, other window"))
def test_a_pair_counts_as_often_as_the_oracle_says(case):
    (options, causal), (valid, segments) = CASES[case], some_masked(12)
    geometry, buckets = make(options, causal).geometry, inputs(12)[2]
    times = np.asarray(times_of(geometry, ordered(buckets, valid, segments, geometry)))
    where = {"chunk_size": CHUNK, "causal": causal, "valid": valid, "segments": segments}
    want = counts_of(buckets.transpose(0, 2, 3, 1), options, **where)
    want = np.minimum(want, 1) if options.union else want
    asks = valid[:, None, :, None]
    np.testing.assert_array_equal(times.reshape(want.shape) * asks, want * asks)


def test_a_pair_that_counts_twice_weighs_as_two_keys():
    got = jax.jit(softmax_times)(np.array([[0.3, -1.0, 2.0]], "f"), np.array([[2, 1, 0]]))
    weights = np.exp([0.3, 0.3, -1.0])
    one, two, other = weights / weights.sum()
    np.testing.assert_allclose(got, [[one + two, other, 0]], rtol=1e-6)


def test_the_log_sum_exp_of_the_rounds_has_its_gradient(x64):
    """By it devices that share the rounds of a head merge what each found."""
    settings, (qk, v, buckets) = make(STRICT, True), inputs(12)
    order = ordered(buckets, None, None, settings.geometry)
    times = np.asarray(times_of(settings.geometry, order))
    alone = ~times.any(-1, keepdims=True)

    def by_rounds(qk):
        args = qk, None, v, jnp.asarray(0.7), order, SEEDS, jnp.int32(0)
        return attend_some_rounds(settings, ROUNDS, *args)[1]

    def densely(qk):
        logits = jnp.einsum("bqnh,bknh->bnqk", qk, unit_keys(qk, 0.7, settings.key_norm))
        shown = jnp.where(times > 0, logits.reshape(times.shape), -jnp.inf)
        return jax.nn.logsumexp(jnp.where(alone, 0, shown), axis=-1)

    def value_and_gradient(lse):
        def weighed(qk):
            return (jnp.where(alone[..., 0], 0, lse(qk)) * jnp.cos(jnp.arange(12.0))[None]).sum()

        return jax.jit(jax.value_and_grad(weighed))(qk)

    for got, want in zip(*map(value_and_gradient, (by_rounds, densely)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-10)


@pytest.mark.parametrize(
    ("length", "chunk", "rounds"), daily([(1, 1, 1), (7, 7, 2), (14, 2, 3)], (1, 1, 1))
)
def test_equals_it_at_other_sizes(x64, length, chunk, rounds):
    compare(STRICT, True, [some_masked(length)], length=length, chunk=chunk, rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["strict, both ways", "other keys"])
def test_dropout_draws_the_same(x64, case):
    compare(*CASES[case], [some_masked(12)], rate=0.4)


@pytest.mark.slow
def test_rows_at_once_changes_no_number(x64):
    qk, v, buckets = inputs(12)
    given = (qk, v, buckets, None, None, np.ones_like(v))
    want = value_and_gradients(attend_dense, make(STRICT, True), *given)
    for rows in (1, 3):
        got = value_and_gradients(attend_dense, make(STRICT, True, rows_at_once=rows), *given)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-14)


@pytest.mark.parametrize(
    ("length", "chunk", "rounds"),
    daily([(256, 64, 4), (101, 101, 2), (60, 5, 3)], (60, 5, 3)),
)
def test_the_future_changes_not_one_bit_of_the_past(length, chunk, rounds):
    settings = make(STRICT, True, length=length, chunk=chunk)

    @jax.jit
    def run(qk, v, buckets):
        order = sort_rounds(buckets, None, None, settings.geometry)
        return attend_dense(settings, qk, None, v, jnp.float32(1), order, SEEDS)

    given = inputs(length, rounds=rounds, dtype=np.float32)
    before = np.asarray(run(*given))
    rng = np.random.default_rng(0)
    for cut in rng.integers(1, length, size=5):
        qk, v, buckets = (x.copy() for x in given)
        qk[:, cut:] = 3 * rng.normal(size=qk[:, cut:].shape) + 1
        v[:, cut:] = 1e30
        buckets[..., cut:] = rng.integers(0, BUCKETS, size=buckets[..., cut:].shape)
        after = np.asarray(run(qk, v, buckets))
        np.testing.assert_array_equal(after[:, :cut], before[:, :cut])
        assert not np.array_equal(after[:, cut:], before[:, cut:])


def test_what_is_not_seen_may_be_of_any_finite_size():
    settings = make(STRICT, True)
    qk, v, buckets = inputs(12, dtype=np.float32)
    cut = 9
    cotangent = np.ones_like(v)
    cotangent[:, cut:] = 0
    want = value_and_gradients(attend_dense, settings, qk, v, buckets, None, None, cotangent)
    qk[:, cut:], v[:, cut:] = 1e30, 3e38  # the weights' gradients overflow
    got = value_and_gradients(attend_dense, settings, qk, v, buckets, None, None, cotangent)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x[:, :cut], y[:, :cut])
    assert not np.any(got[1][:, cut:]) and not np.any(got[2][:, cut:])


@pytest.mark.parametrize("case", ["strict", "other keys"])
def test_zero_rows_are_finite(case):
    options, causal = CASES[case]
    qk, v, buckets = inputs(12, dtype=np.float32)
    qk[:, ::3] = 0
    everything = value_and_gradients(
        attend_dense, make(options, causal), qk, v, buckets, None, None, np.ones_like(v)
    )
    assert all(np.all(np.isfinite(x)) for x in everything)


@pytest.mark.slow
def test_bfloat16_is_as_near_to_the_truth_as_round_by_round():
    settings = make(STRICT, True)
    qk, v, buckets = inputs(12, dtype=np.float32)

    @functools.partial(jax.jit, static_argnums=0)
    def run(attend, qk, v):
        order = sort_rounds(buckets, None, None, settings.geometry)
        return attend(settings, qk, None, v, jnp.float32(0.7), order, SEEDS)

    want = run(attend_dense, qk, v)
    low = jnp.asarray(qk, jnp.bfloat16), jnp.asarray(v, jnp.bfloat16)
    ours, theirs = (run(f, *low) for f in (attend_dense, attend_rounds))
    assert ours.dtype == theirs.dtype == jnp.bfloat16
    errors = [np.abs(np.asarray(x, np.float32) - want).max() for x in (ours, theirs)]
    assert 0 < errors[0] <= 2 * errors[1]


@pytest.mark.slow
def test_separate_queries_and_keys(x64):
    length, num_queries = 12, 7
    settings = make(STRICT, True)
    k, v, k_buckets = inputs(length)
    q, _, q_buckets = inputs(num_queries, seed=4)
    valid, segments = some_masked(length)
    q_valid, q_segments = some_masked(num_queries, seed=5)
    position = np.broadcast_to(np.arange(num_queries, dtype=np.int32), q_valid.shape) + 3
    seen = CrossVisibility(valid, q_valid, segments, q_segments, position)
    cotangent = np.random.default_rng(3).normal(size=(BATCH, num_queries, HEADS, VALUE_WIDTH))

    def run(attend):
        order = sort_queries_and_keys(q_buckets, k_buckets, seen, settings.geometry)
        scale = jnp.asarray(0.7)
        out, pull = jax.vjp(
            lambda q, k, v: attend(settings, q, k, v, scale, order, SEEDS),
            *map(jnp.asarray, (q, k, v)),
        )
        return (out, *pull(cotangent))

    want, got = (jax.jit(run, static_argnums=0)(f) for f in (attend_rounds, attend_dense))
    assert np.any(np.all(want[0] == 0, axis=-1)) and np.any(want[0])
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


@pytest.mark.slow
def test_is_taken_for_short_inputs_and_sorting_for_long_ones():
    """By what is compiled: sorted attention loops over its rounds, dense attention does not."""

    def way(length, chunk_size, **options):
        qk = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        buckets = jax.ShapeDtypeStruct((1, 2, length, 1), jnp.int32)
        attend = functools.partial(lsh_attention, chunk_size=chunk_size, **options)
        text = str(jax.make_jaxpr(attend)(qk, qk, buckets))
        return "dense" if f"{length},{length}" in text else "sorted"

    assert way(32, 8) == "dense"  # 32 · 32 pairs, as many as 2 rounds of 2 chunks of 8 a query
    assert way(40, 8) == "sorted"
    assert way(40, 8, implementation="dense") == "dense"
    assert way(32, 8, implementation="sorted") == "sorted"
    assert way(32, 8, rows_at_once=1) == "sorted"
    assert way(512, 256) == "dense"
    assert way(520, 260) == "sorted"
