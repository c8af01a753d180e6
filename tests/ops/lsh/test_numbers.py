"""LSH attention: independence of rows, memory knobs, number types, extreme values, dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops import dropout
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.options import STRICT, LSHOptions
from attnlab.ops.lsh.quality import hash_quality
from tests.daily import daily
from tests.ops.lsh.plain import (
    BATCH,
    CHUNK,
    HEADS,
    LENGTH,
    PLAIN,
    WIDTH,
    attend,
    counts_of,
    dense,
    inputs,
    lsh_attention,
    value_and_gradients,
)

# Not causal, a query visits five chunks.
WIDE = LSHOptions(look_back=2)
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["sorted", "dense"])


def test_value_heads_may_be_shared(x64):
    qk, v, buckets = inputs()
    shared = attend(qk, v[:, :, :1], buckets, chunk_size=CHUNK)
    both = attend(qk, np.repeat(v[:, :, :1], HEADS, 2), buckets, chunk_size=CHUNK)
    np.testing.assert_array_equal(shared, both)
    qk, buckets = np.concatenate([qk, qk], 2), np.concatenate([buckets, buckets], 3)
    grouped = attend(qk, v, buckets, chunk_size=CHUNK)
    repeated = attend(qk, np.repeat(v, 2, 2), buckets, chunk_size=CHUNK)
    np.testing.assert_array_equal(grouped, repeated)
    alone = attend(qk[0], v[0], buckets[0], chunk_size=CHUNK)  # no batch axis
    np.testing.assert_allclose(alone, grouped[0], atol=1e-14)


@pytest.mark.slow
def test_gradients_survive_rows_at_once_remat_vmap_and_two_forwards(x64):
    (qk, v, buckets), other = inputs(), inputs(seed=5)[2]
    cotangent = np.cos(v)

    def plain(qk, v, buckets, rows_at_once=None):
        return lsh_attention(qk, v, buckets, chunk_size=CHUNK, rows_at_once=rows_at_once)

    def rows(qk, v, buckets):
        return plain(qk, v, buckets, rows_at_once=3)

    def densely(qk, v, buckets):
        sizes = {"chunk_size": CHUNK, "rows_at_once": 3}
        return lsh_attention(qk, v, buckets, implementation="dense", **sizes)

    def mapped(qk, v, buckets):
        return jax.vmap(plain)(qk, v, buckets)

    def twice(qk, v, buckets):
        return jax.checkpoint(plain)(qk, v, buckets) + plain(qk, v, other)

    first = value_and_gradients(plain, qk, v, cotangent, buckets=buckets)
    second = value_and_gradients(plain, qk, v, cotangent, buckets=other)
    for f, want in (
        (rows, first),
        (densely, first),
        (mapped, first),
        (twice, [x + y for x, y in zip(first, second, strict=True)]),
    ):
        got = value_and_gradients(f, qk, v, cotangent, buckets=buckets)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "span", "rows_at_once"),
    daily([(STRICT, 2, None), (STRICT, 2, 2), (WIDE, 5, None), (WIDE, 5, 2)], (STRICT, 2, 2)),
    ids=["strict", "strict, two rows", "wide", "wide, two rows"],
)
def test_tiles_may_be_smaller_than_a_round_and_overlap_at_its_end(
    x64, monkeypatch, options, span, rows_at_once
):
    """Of 12 chunks of 2 queries 5 in a tile, row by row or two rows together."""
    monkeypatch.setattr("attnlab.ops.lsh.rows._TILE_ON_CPU", 5 * span * 2 * 2)
    monkeypatch.setattr("attnlab.ops.lsh.rows._TILE_ELSEWHERE", 2 * 5 * span * 2 * 2)
    qk, v, buckets = inputs()
    given = {"chunk_size": 2, "causal": options is STRICT}
    times = counts_of(buckets, options, **given)
    times = np.minimum(times, 1) if options.union else times

    def by_tiles(qk, v):
        return lsh_attention(qk, v, buckets, options=options, rows_at_once=rows_at_once, **given)

    def densely(qk, v):
        return PLAIN[options.key_norm](qk, v, times, scale=options.logit_scale or WIDTH**-0.5)

    got, want = (value_and_gradients(f, qk, v, v) for f in (by_tiles, densely))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


def test_extreme_logits_and_zero_rows_are_finite():
    qk, v, buckets = inputs(dtype=np.float32)
    qk[:, 4:6] = 0

    def f(qk, v):
        return lsh_attention(qk, v, buckets, chunk_size=2)

    for size in (1e-30, 1e3, 1e15):
        out, *gradients = value_and_gradients(f, np.float32(size) * qk, v, v)
        assert np.abs(out).max() <= np.abs(v).max() * (1 + 1e-6)
        assert all(np.isfinite(x).all() for x in gradients)


@pytest.mark.slow
@IMPLEMENTATIONS
def test_a_value_in_the_future_reaches_no_gradient_however_large(implementation):
    qk, v, buckets = inputs(dtype=np.float32)
    past = np.ones_like(v)
    past[:, -1] = 0

    def f(qk, v):
        return lsh_attention(qk, v, buckets, chunk_size=CHUNK, implementation=implementation)

    want = value_and_gradients(f, qk, v, past)
    v[:, -1] = 3e38
    for x, y in zip(value_and_gradients(f, qk, v, past), want, strict=True):
        np.testing.assert_array_equal(x[:, :-1], y[:, :-1])


def test_bfloat16_is_as_near_as_plain_bfloat16():
    qk, v, buckets = inputs()
    # Logits of a size at which 8 bits of them would not do.
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in (8 * qk, v, np.cos(v))]
    times = np.minimum(counts_of(buckets, STRICT, chunk_size=CHUNK, causal=True), 1)

    def plain(qk, v):
        return dense(qk, v, times)

    def ours(qk, v):
        return lsh_attention(qk, v, buckets, chunk_size=CHUNK)

    exact = value_and_gradients(plain, *(x.astype(jnp.float32) for x in arrays))
    got, budget = (value_and_gradients(f, *arrays) for f in (ours, plain))
    for x, y, want in zip(got, budget, exact, strict=True):
        assert x.dtype == jnp.bfloat16
        error, allowed = (np.abs(np.asarray(z, np.float32) - want).max() for z in (x, y))
        assert error <= 2 * allowed + 2**-9 * np.abs(want).max()


@IMPLEMENTATIONS
def test_dropout_drops_the_weights_that_dense_attention_drops(x64, implementation):
    qk, v, buckets = inputs()
    key, rate = jax.random.key(5), 0.4
    options = {"dropout_rate": rate, "dropout_key": key, "implementation": implementation}
    positions = jnp.arange(LENGTH)
    keep = dropout.keep_mask(dropout.seeds(key, BATCH, HEADS, 1), rate, positions, positions)
    keep = keep[:, :, 0] / (1 - rate)
    times = np.minimum(counts_of(buckets, STRICT, chunk_size=CHUNK, causal=True), 1)

    def plain(qk, v):
        return dense(qk, v, times, keep=keep)

    def ours(qk, v):
        return lsh_attention(qk, v, buckets, chunk_size=CHUNK, **options)

    got, want = (value_and_gradients(f, qk, v, v) for f in (ours, plain))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-9)


@pytest.mark.slow
def test_memory_grows_with_the_length_and_no_faster():
    def temporaries(length):
        qk = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
        buckets = jax.ShapeDtypeStruct((1, 2, length, 2), jnp.int32)

        def loss(qk, v, buckets):
            return lsh_attention(qk, v, buckets, chunk_size=16).sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(qk, qk, buckets).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = temporaries(2**13), temporaries(2**15)
    assert 2 * short < long < 4.4 * short


@pytest.mark.slow
def test_no_copy_of_all_rows_is_made_beside_the_context():
    def temporaries(heads):
        x = jax.ShapeDtypeStruct((1, 4096, heads, 64), jnp.float32)
        buckets = jax.ShapeDtypeStruct((1, 1, 4096, heads), jnp.int32)

        def gradients(qk, v, buckets, g):
            mask = masks.Padding(jnp.full(1, 4000))
            return jax.vjp(lambda qk, v: lsh_attention(qk, v, buckets, mask=mask), qk, v)[1](g)

        compiled = jax.jit(gradients).lower(x, x, buckets, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # Of each head more: qk and v without what stands in the padding, the context, and the order.
    assert temporaries(16) - temporaries(8) < 3.5 * 8 * (4096 * 64 * 4)


@pytest.mark.slow
def test_chunks_longer_than_the_input_cost_nothing():
    """The window says who is seen, so a chunk as long as the input holds everyone: one program."""
    x = jax.ShapeDtypeStruct((1, 101, 2, 16), jnp.float32)
    buckets = jax.ShapeDtypeStruct((1, 2, 101, 2), jnp.int32)

    def gradients(qk, v, buckets, **sizes):
        return jax.grad(lambda qk, v: lsh_attention(qk, v, buckets, **sizes).sum(), (0, 1))(qk, v)

    def cross(q, buckets, **sizes):
        return lsh_cross_attention(q, q[:, 40:], q[:, 40:], buckets, buckets[:, :, 40:], **sizes)

    for call, *given in (
        (gradients, x, x, buckets),
        (cross, x, buckets),
        (hash_quality, x, x, buckets),
    ):
        lowered = [
            jax.jit(functools.partial(call, chunk_size=c)).lower(*given) for c in (101, 8192)
        ]
        assert lowered[0].as_text() == lowered[1].as_text()
        assert lowered[1].compile().memory_analysis().temp_size_in_bytes < 2**20
