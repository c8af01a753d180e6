"""LSH attention against a float64 oracle; causality and masks."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab import masks
from attnlab.ops.lsh import hashing, published
from attnlab.ops.lsh.inputs import STRICT, LSHOptions
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
    fields_of,
    inputs,
    key_mask,
    lsh_attention,
    some_padding,
    value_and_gradients,
)
from tests.trees import assert_close

CASES = {  # options, causal
    "strict": (STRICT, True),
    "strict, both ways": (STRICT, False),
    "strict, multiset": (LSHOptions(union=False), True),
    "strict, longer window": (LSHOptions(look_back=2, window=5), False),
    "strict, other keys": (LSHOptions(logit_scale=None, key_norm="l2"), True),
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


ENGINES = [(case, "sorted") for case in CASES] + [
    (case, "dense") for case, (options, _) in CASES.items() if isinstance(options, LSHOptions)
]


@pytest.mark.parametrize(
    ("case", "implementation"),
    daily(
        ENGINES,
        ("strict", "sorted"),
        ("strict, both ways", "dense"),
        ("chunks on both sides", "sorted"),
    ),
)
def test_equals_the_oracle_and_its_gradients_those_of_a_dense_softmax(x64, case, implementation):
    (options, causal), (qk, v, buckets) = CASES[case], inputs()
    fields = fields_of(options)
    scale = options.logit_scale or WIDTH**-0.5
    cotangent = np.random.default_rng(3).normal(size=v.shape)

    def ours(qk, v, valid, segments):
        mask = key_mask(valid) & masks.Segments(segments)
        given = {"chunk_size": CHUNK, "causal": causal, "options": options}
        return lsh_attention(qk, v, buckets, mask=mask, implementation=implementation, **given)

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
        assert_close(gradients, wanted, atol=1e-9)


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


@pytest.mark.parametrize(
    ("options", "size", "leaks"),
    daily([(STRICT, 64, False), (TRAX, 8, True)], (TRAX, 8, True)),
    ids=["strict", "trax"],
)
def test_the_future_changes_the_past_as_published_alone(options, size, leaks, as_users_compile):
    """Of strict options not one bit with AVX-512; `testing.causal` holds other sizes in float64."""
    rng, length = np.random.default_rng(0), 8 * size
    rotations = hashing.Rotations((rng.normal(size=(HEADS, ROUNDS, 4, size)).astype(np.float32),))

    @functools.partial(jax.jit, compiler_options=as_users_compile)
    def run(qk, v):
        buckets = hashing.hash_buckets(qk, rotations)
        return lsh_attention(qk, v, buckets, chunk_size=size, options=options)

    qk, v = rng.normal(size=(2, 1, length, HEADS, size)).astype(np.float32)
    before, largest = np.asarray(run(qk, v)), 0.0
    for cut in rng.integers(1, length, size=6):
        other_qk, other_v = qk.copy(), v.copy()
        other_qk[:, cut:] = 3 * rng.normal(size=qk[:, cut:].shape) + 1
        other_v[:, cut:] = 5
        change = np.asarray(run(other_qk, other_v))[:, :cut] - before[:, :cut]
        largest = max(largest, np.abs(change).max())
    assert largest > 0.1 if leaks else largest <= LAST_BIT


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

    want = jax.device_get(run(qk, v, buckets))
    for x in want:
        assert not x[~valid].any()
    for position in range(LENGTH):
        for value in (1e30, np.nan):
            masked = ~valid[:, position]
            other = [x.copy() for x in (qk, v, buckets)]
            other[0][masked, position] = other[1][masked, position] = value
            other[2][masked, :, position] = BUCKETS - 1 - other[2][masked, :, position]
            jax.tree.map(np.testing.assert_array_equal, run(*other), want)


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
    got = gradients(np.where(visible, cotangent, np.inf), lengths)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


# Whatever hypothesis draws. What is drawn statically compiles, so few of these are drawn; each is
# run on several inputs.

OPTIONS = [STRICT, TRAX, LUCIDRAINS, PAPER, LSHOptions(union=False, window=1)]
FEW = settings(max_examples=12, derandomize=True, database=None)


@st.composite
def static(draw):
    """What a call is compiled for."""
    chunk, options = draw(st.sampled_from([1, 2, 3, 5])), draw(st.sampled_from(OPTIONS))
    ways = ["sorted"] if isinstance(options, Published) else ["sorted", "sorted", "dense"]
    return {
        "length": draw(st.integers(1, 4 * chunk)),
        "rounds": draw(st.sampled_from([1, 2, 4])),
        "chunk_size": chunk,
        "causal": draw(st.booleans()),
        "options": options,
        "implementation": draw(st.sampled_from(ways)),
    }


def arrays(case, seed, dtype, scale=1.0):
    """Of one example: qk, v, buckets, valid, segments."""
    rng, length = np.random.default_rng(seed), case["length"]
    qk = (scale * rng.normal(size=(1, length, HEADS, WIDTH))).astype(dtype)
    qk[:, rng.random(length) < 0.2] = 0
    v = rng.normal(size=(1, length, HEADS, WIDTH)).astype(dtype)
    buckets = rng.integers(0, rng.integers(1, 5), (1, case["rounds"], length, HEADS), np.int32)
    valid = rng.random((1, length)) < rng.choice([0.0, 0.6, 1.0])
    return qk, v, buckets, valid, rng.integers(0, 3, (1, length))


def forward(case):
    names = ("chunk_size", "causal", "options", "implementation")
    knobs = {name: case[name] for name in names}

    def run(qk, v, buckets, valid, segments):
        mask = masks.Explicit(valid[:, None, None, :]) & masks.Segments(segments)
        return lsh_attention(qk, v, buckets, mask=mask, **knobs)

    return run


@pytest.mark.slow
@FEW
@given(case=static(), seeds=st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4))
def test_equals_the_oracle(case, seeds):
    with jax.enable_x64(True):
        run = jax.jit(forward(case))
        for seed in seeds:
            qk, v, buckets, valid, segments = arrays(case, seed, np.float64)
            # Of zero rows "l2" has no unit vector, so the oracle cannot be asked.
            qk = np.where(np.abs(qk).sum(-1, keepdims=True) == 0, 1e-3, qk)
            want = oracle_lsh.lsh_attention(
                qk,
                v,
                buckets,
                valid=valid,
                segments=segments,
                options=fields_of(case["options"]),
                chunk_size=case["chunk_size"],
                causal=case["causal"],
            )
            np.testing.assert_allclose(run(qk, v, buckets, valid, segments), want, atol=1e-11)
