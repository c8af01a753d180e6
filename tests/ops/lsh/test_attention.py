"""LSH attention against a float64 oracle; causality and masks."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops.lsh import hashing, published
from attnlab.ops.lsh.options import STRICT, LSHOptions
from attnlab.ops.lsh.published import LUCIDRAINS, PAPER, TRAX, Published
from tests import oracle_lsh
from tests.daily import daily
from tests.ops.lsh.plain import (
    BATCH,
    BUCKETS,
    CHUNK,
    HEADS,
    LAST_BIT,
    LENGTH,
    PLAIN,
    ROUNDS,
    WIDTH,
    attend,
    counts_of,
    dense,
    fields_of,
    inputs,
    key_mask,
    lsh_attention,
    some_padding,
    value_and_gradients,
)

CASES = {  # options, causal
    "strict": (STRICT, True),
    "strict, both ways": (STRICT, False),
    "strict, multiset": (LSHOptions(union=False), True),
    "strict, longer window": (LSHOptions(look_back=2, window=5), False),
    "trax": (TRAX, True),
    "trax, both ways": (TRAX, False),
    "lucidrains": (LUCIDRAINS, True),
    "paper": (PAPER, True),
    "chunks on both sides": (Published(look_ahead=1), False),
    "union across buckets": (Published(same_bucket=False, look_ahead=2), True),
    "ring, 3 chunks back and 2 ahead": (
        dataclasses.replace(TRAX, look_back=3, look_ahead=2),
        False,
    ),
}


@pytest.mark.parametrize("case", daily(CASES, "strict", "chunks on both sides"))
def test_equals_the_oracle_and_its_gradients_those_of_a_dense_softmax(x64, case):
    (options, causal), (qk, v, buckets) = CASES[case], inputs()
    fields = fields_of(options)
    scale = options.logit_scale or WIDTH**-0.5
    cotangent = np.random.default_rng(3).normal(size=v.shape)

    def ours(qk, v, valid, segments):
        mask = key_mask(valid) & masks.Segments(segments)
        given = {"chunk_size": CHUNK, "causal": causal, "options": options}
        return lsh_attention(qk, v, buckets, mask=mask, **given)

    some_segments = np.random.default_rng(2).integers(0, 3, size=(BATCH, LENGTH))
    for valid, segments in (
        (np.ones((BATCH, LENGTH), bool), np.zeros((BATCH, LENGTH), int)),
        (some_padding(), some_segments),
    ):
        where = {"chunk_size": CHUNK, "causal": causal, "valid": valid, "segments": segments}
        out, *gradients = value_and_gradients(
            ours, qk, v, cotangent, valid=valid, segments=segments
        )
        want = oracle_lsh.lsh_attention(qk, v, buckets, options=fields, **where)
        np.testing.assert_allclose(out, want, atol=1e-12)
        times = counts_of(buckets, options, **where)
        times = np.minimum(times, 1) if options.union else times
        masked_cotangent = cotangent * valid[:, :, None, None]
        _, *wanted = value_and_gradients(
            PLAIN[options.key_norm], qk, v, masked_cotangent, times=times, scale=scale
        )
        for got, want in zip(gradients, wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-9)


@pytest.mark.parametrize("length", daily(range(1, 9), 1, 5))
def test_any_length_from_one_to_four_chunks(x64, length):
    qk, v, buckets = inputs(length=length)
    got = attend(qk, v, buckets, chunk_size=2)
    want = oracle_lsh.lsh_attention(qk, v, buckets, chunk_size=2, causal=True)
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_one_chunk_one_round_is_dense_attention(x64, causal):
    qk, v, buckets = inputs()
    options = Published(same_bucket=False, look_back=0)
    got = attend(qk, v, buckets[:, :1], chunk_size=LENGTH, causal=causal, options=options)
    others = np.ones((LENGTH, LENGTH)) - np.eye(LENGTH)
    times = np.tril(others) if causal else others
    np.testing.assert_allclose(got, dense(qk, v, times[None, None]), atol=1e-12)


@pytest.mark.slow
def test_large_chunks_attend_over_the_union_of_buckets(x64):
    qk, v, buckets = inputs()
    same = (buckets[:, :, :, None] == buckets[:, :, None, :]).any(1)  # [B, L, L, N]
    times = np.moveaxis(same, 3, 1) & ~np.eye(LENGTH, dtype=bool)
    got = attend(qk, v, buckets, chunk_size=LENGTH, causal=False, options=PAPER)
    want = dense(qk, v, times, scale=WIDTH**-0.5, key_norm="l2")
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.slow
def test_more_rounds_come_nearer_to_full_attention(x64):
    qk, v, _ = inputs()
    rng = np.random.default_rng(0)
    times = np.tril(np.ones((LENGTH, LENGTH)), -1)[None, None]
    full = dense(qk, v, times)
    errors = []
    for rounds in (1, 4, 40):
        buckets = rng.integers(0, BUCKETS, size=(BATCH, rounds, LENGTH, HEADS))
        got = attend(qk, v, buckets, chunk_size=8)
        errors.append(np.abs(got - full).mean())
    assert errors[0] > 2 * errors[1] and errors[1] > 100 * errors[2]
    multiset = attend(qk, v, buckets, chunk_size=8, options=LSHOptions(union=False))
    assert np.abs(multiset - full).mean() > 10 * errors[2]  # it is another function


def test_published_options_take_a_symbolic_batch(monkeypatch):
    """Of which no number of rows need be a part, but of its heads: of 3, not the 2 that fit."""
    monkeypatch.setattr(published, "_WEIGHTS_AT_ONCE", 2 * ROUNDS * 24 * 2 * CHUNK)
    batch = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((*batch, LENGTH, 3, WIDTH), jnp.float32)
    buckets = jax.ShapeDtypeStruct((*batch, ROUNDS, LENGTH, 3), jnp.int32)
    run = jax.jit(functools.partial(lsh_attention, chunk_size=CHUNK, options=TRAX))
    [context] = jax.export.export(run)(x, x, buckets).out_avals
    assert context.shape == x.shape


# Causality.


def perturbed_future(options, chunk, width, length, compiler_options=None):
    """The largest change of past outputs when everything from a cut on changes."""
    rng = np.random.default_rng(0)
    factors = (rng.normal(size=(HEADS, ROUNDS, length // chunk, width)).astype(np.float32),)
    rotations = hashing.Rotations(factors)

    @functools.partial(jax.jit, compiler_options=compiler_options)
    def run(qk, v):
        buckets = hashing.hash_buckets(qk, rotations)
        return lsh_attention(qk, v, buckets, chunk_size=chunk, options=options)

    qk, v = rng.normal(size=(2, 1, length, HEADS, width)).astype(np.float32)
    before, largest = np.asarray(run(qk, v)), 0.0
    for cut in rng.integers(1, length, size=6):
        other_qk, other_v = qk.copy(), v.copy()
        other_qk[:, cut:] = 3 * rng.normal(size=qk[:, cut:].shape) + 1
        other_v[:, cut:] = 5
        change = np.asarray(run(other_qk, other_v))[:, :cut] - before[:, :cut]
        largest = max(largest, np.abs(change).max())
    return largest


@pytest.mark.parametrize(
    ("chunk", "width", "length"),
    daily([(64, 64, 512), (16, 8, 200), (7, 11, 101), (1, 5, 50)]),
)
def test_the_future_changes_not_one_bit_of_the_past(chunk, width, length, as_users_compile):
    assert perturbed_future(STRICT, chunk, width, length, as_users_compile) <= LAST_BIT


@pytest.mark.parametrize("options", [TRAX, PAPER], ids=["trax", "paper"])
def test_published_causality_lets_the_future_change_the_past(options):
    assert perturbed_future(options, 16, 8, 200) > 0.1


def test_parallel_equals_token_by_token(x64):
    qk, v, buckets = inputs()
    together = attend(qk, v, buckets, chunk_size=CHUNK)

    @jax.jit
    def prefix(stop):
        return lsh_attention(
            qk, v, buckets, chunk_size=CHUNK, mask=masks.Padding(jnp.full(BATCH, stop))
        )

    for t in range(LENGTH):
        np.testing.assert_allclose(prefix(t + 1)[:, t], together[:, t], atol=1e-14)


# Masks.


def test_padding_anywhere_leaks_nowhere():
    qk, v, buckets = inputs(dtype=np.float32)
    valid = some_padding()

    @jax.jit
    def run(qk, v, buckets):
        def loss(qk, v):
            out = lsh_attention(qk, v, buckets, chunk_size=CHUNK, mask=key_mask(valid))
            return jnp.sum(jnp.cos(out) * valid[:, :, None, None]), out

        grads, out = jax.grad(loss, argnums=(0, 1), has_aux=True)(qk, v)
        return (out, *grads)

    want = [np.asarray(x) for x in run(qk, v, buckets)]
    for x in want:
        assert not x[~valid].any()
    for position in range(LENGTH):
        for value in (1e30, np.nan):
            masked = ~valid[:, position]
            other = [x.copy() for x in (qk, v, buckets)]
            other[0][masked, position] = other[1][masked, position] = value
            other[2][masked, :, position] = BUCKETS - 1 - other[2][masked, :, position]
            for x, y in zip(run(*other), want, strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("case", daily(["strict", "strict, both ways", "paper"], "paper"))
def test_a_longer_padding_changes_nothing(x64, case):
    options, causal = CASES[case]

    def run(length, lengths):
        qk, v, buckets = (
            np.pad(x, [(0, length - LENGTH if n == LENGTH else 0) for n in x.shape])
            for x in inputs()
        )
        mask = masks.Padding(lengths)
        return attend(qk, v, buckets, chunk_size=4, causal=causal, mask=mask, options=options)

    lengths = np.array([LENGTH, 11])
    short, long = run(LENGTH, lengths), run(37, lengths)
    np.testing.assert_allclose(long[:, :LENGTH], short, atol=1e-14)
    assert not long[:, LENGTH:].any() and not short[1, 11:].any()


@pytest.mark.slow
def test_segments_attend_as_if_each_were_alone(x64):
    qk, v, buckets = inputs()
    borders = [(0, 9), (9, 18), (18, LENGTH)]
    ids = np.concatenate([np.full(stop - start, -start) for start, stop in borders])
    mask = masks.Segments(np.broadcast_to(ids, (BATCH, LENGTH)))
    packed = attend(qk, v, buckets, chunk_size=CHUNK, mask=mask)
    for start, stop in borders:
        part = slice(start, stop)
        alone = attend(qk[:, part], v[:, part], buckets[:, :, part], chunk_size=CHUNK)
        np.testing.assert_allclose(packed[:, part], alone, atol=1e-14)


def test_a_mask_can_say_causal_and_have_query_lengths(x64):
    qk, v, buckets = inputs()
    lengths = np.array([LENGTH, 11])
    mask = masks.Causal() & masks.Padding(np.full(BATCH, LENGTH), q_lengths=lengths)
    got = attend(qk, v, buckets, chunk_size=CHUNK, causal=False, mask=mask)
    want = np.array(attend(qk, v, buckets, chunk_size=CHUNK, causal=True))
    want[1, 11:] = 0
    np.testing.assert_array_equal(got, want)


def test_a_mask_may_hide_whole_examples():
    qk, v, buckets = inputs()
    seen = np.array([True, False])[:, None, None, None]
    got = attend(qk, v, buckets, chunk_size=CHUNK, mask=seen)
    want = attend(qk, v, buckets, chunk_size=CHUNK, mask=np.broadcast_to(seen, (2, 1, 1, LENGTH)))
    np.testing.assert_array_equal(got, want)
    assert got[0].any() and not got[1].any()
    twice = masks.Explicit(seen) & masks.Padding(LENGTH)
    np.testing.assert_array_equal(attend(qk, v, buckets, chunk_size=CHUNK, mask=twice), want)


def test_the_cotangent_of_a_query_that_sees_nothing_reaches_nobody(x64):
    qk, v, buckets = inputs()
    lengths = np.array([LENGTH, 11])

    def gradients(cotangent, q_lengths):
        mask = masks.Padding(np.full(BATCH, LENGTH), q_lengths=q_lengths)

        def f(qk, v):
            return lsh_attention(qk, v, buckets, chunk_size=CHUNK, mask=mask)

        return value_and_gradients(f, qk, v, cotangent)[1:]

    cotangent = np.cos(v)
    visible = (np.arange(LENGTH) < lengths[:, None])[:, :, None, None]
    wanted = gradients(np.where(visible, cotangent, 0), None)
    for got, want in zip(
        gradients(np.where(visible, cotangent, np.inf), lengths), wanted, strict=True
    ):
        np.testing.assert_array_equal(got, want)
