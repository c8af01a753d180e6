"""LSH attention: rows, memory, the choice of an engine, number types, extreme values, dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops import dropout, lsh
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.dense import softmax_times
from attnlab.ops.lsh.inputs import STRICT, LSHOptions
from attnlab.ops.lsh.order import sort_rounds
from attnlab.ops.lsh.quality import hash_quality
from attnlab.ops.lsh.rounds import attend_some_rounds
from attnlab.ops.lsh.rows import CallSettings, unit_keys
from tests.daily import daily
from tests.ops.lsh.plain import (
    BATCH,
    CHUNK,
    HEADS,
    LENGTH,
    PLAIN,
    ROUNDS,
    WIDTH,
    attend,
    counts_of,
    dense,
    inputs,
    lsh_attention,
    value_and_gradients,
)
from tests.trees import assert_close

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
        (twice, jax.tree.map(np.add, first, second)),
    ):
        got = value_and_gradients(f, qk, v, cotangent, buckets=buckets)
        assert_close(got, want, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "span", "rows_at_once"),
    daily([(STRICT, 2, None), (STRICT, 2, 2), (WIDE, 5, None), (WIDE, 5, 2)], (STRICT, 2, 2)),
    ids=["strict", "strict, two rows", "wide", "wide, two rows"],
)
def test_tiles_may_be_smaller_than_a_round_and_overlap_at_its_end(
    x64, monkeypatch, options, span, rows_at_once
):
    """Of 11 chunks of 2 queries 4 in a tile, two rows together; row by row 2 in each of 8 tiles.

    The sixth of these 8 repeats one chunk, the two behind it repeat both of theirs.
    """
    monkeypatch.setattr("attnlab.ops.lsh.rows._TILE_ON_CPU", 2 * span * 2 * 2)
    monkeypatch.setattr("attnlab.ops.lsh.rows._TILE_ELSEWHERE", 2 * 5 * span * 2 * 2)
    qk, v, buckets = inputs(length=22)
    given = {"chunk_size": 2, "causal": options is STRICT}
    times = counts_of(buckets, options, **given)
    times = np.minimum(times, 1) if options.union else times

    def by_tiles(qk, v):
        return lsh_attention(qk, v, buckets, options=options, rows_at_once=rows_at_once, **given)

    def densely(qk, v):
        return PLAIN[options.key_norm](qk, v, times, scale=options.logit_scale or WIDTH**-0.5)

    got, want = (value_and_gradients(f, qk, v, v) for f in (by_tiles, densely))
    assert_close(got, want, atol=1e-12)


def test_extreme_logits_and_zero_rows_are_finite():
    qk, v, buckets = inputs(dtype=np.float32)
    qk[:, 4:6] = 0

    def f(qk, v):
        return lsh_attention(qk, v, buckets, chunk_size=2)

    for size in (1e-30, 1e3, 1e15):
        out, *gradients = value_and_gradients(f, np.float32(size) * qk, v, v)
        assert np.abs(out).max() <= np.abs(v).max() * (1 + 1e-6)
        assert all(np.isfinite(x).all() for x in gradients)


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
    assert_close(got, want, atol=1e-9)


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


def test_a_pair_that_counts_twice_weighs_as_two_keys():
    got = jax.jit(softmax_times)(np.array([[0.3, -1.0, 2.0]], "f"), np.array([[2, 1, 0]]))
    weights = np.exp([0.3, 0.3, -1.0])
    one, two, other = weights / weights.sum()
    np.testing.assert_allclose(got, [[one + two, other, 0]], rtol=1e-6)


def test_the_log_sum_exp_of_the_rounds_has_its_gradient(x64):
    """By it devices that share the rounds of a head merge what each found."""
    qk, v, buckets = inputs(length=CHUNK * 3)
    times = np.minimum(counts_of(buckets, STRICT, chunk_size=CHUNK, causal=True), 1)
    alone = ~times.any(-1)  # [B, N, L]
    settings = CallSettings(
        STRICT.geometry(CHUNK, True, 3 * CHUNK), STRICT.key_norm, 0.0, None, None
    )
    cotangent = np.cos(np.arange(alone.size)).reshape(alone.shape)
    seeds = np.zeros((BATCH * HEADS, 2), np.uint32)

    def by_rounds(qk):
        # [B, R, L, N] to [B, N, R, L]
        order = sort_rounds(buckets.transpose(0, 3, 1, 2), None, None, settings.geometry)
        given = qk, None, v, jnp.asarray(0.7), order, seeds, jnp.int32(0)
        return attend_some_rounds(settings, ROUNDS, *given)[1].reshape(alone.shape)

    def densely(qk):
        logits = jnp.einsum("bqnh,bknh->bnqk", qk, unit_keys(qk, 0.7, settings.key_norm))
        shown = jnp.where(times > 0, logits, -jnp.inf)
        return jax.nn.logsumexp(jnp.where(alone[..., None], 0, shown), axis=-1)

    def value_and_gradient(lse):
        def weighed(qk):
            return jnp.vdot(jnp.where(alone, 0, lse(qk)), cotangent)

        return jax.jit(jax.value_and_grad(weighed))(qk)

    assert_close(*map(value_and_gradient, (by_rounds, densely)), atol=1e-10)


@pytest.mark.slow
def test_is_taken_for_short_inputs_and_sorting_for_long_ones():
    """By what is compiled: sorted attention loops over its rounds, dense attention does not."""

    def way(length, chunk_size, **options):
        qk = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        buckets = jax.ShapeDtypeStruct((1, 2, length, 1), jnp.int32)
        attend = functools.partial(lsh.lsh_attention, chunk_size=chunk_size, **options)
        text = str(jax.make_jaxpr(attend)(qk, qk, buckets))
        return "dense" if f"{length},{length}" in text else "sorted"

    assert way(32, 8) == "dense"  # 32 · 32 pairs, as many as 2 rounds of 2 chunks of 8 a query
    assert way(40, 8) == "sorted"
    assert way(40, 8, implementation="dense") == "dense"
    assert way(32, 8, implementation="sorted") == "sorted"
    assert way(32, 8, rows_at_once=1) == "sorted"
    assert way(512, 256) == "dense"
    assert way(520, 260) == "sorted"


def test_numbers_may_be_arrays():
    """They are static all the same, and so are hashed."""
    assert LSHOptions(logit_scale=np.array(0.5)) == LSHOptions(logit_scale=jnp.float32(0.5))
    assert hash(LSHOptions(logit_scale=np.array(0.5))) == hash(LSHOptions(logit_scale=0.5))
    given, key = inputs(dtype=np.float32), jax.random.key(0)
    for rate in (jnp.float32(0.5), 0.5):
        got = lsh_attention(*given, chunk_size=CHUNK, dropout_rate=rate, dropout_key=key)
        assert np.isfinite(got).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32])
def test_bucket_ids_may_be_of_any_integer_type(dtype):
    qk, v, buckets = inputs(dtype=np.float32)
    ids = buckets.astype(dtype)
    want = attend(qk, v, buckets, chunk_size=CHUNK)
    np.testing.assert_array_equal(attend(qk, v, ids, chunk_size=CHUNK), want)
    # Under jit, ids that are known.
    jax.eval_shape(lambda qk: lsh_attention(qk, v, ids, chunk_size=CHUNK), qk)


@pytest.mark.slow
def test_what_only_the_run_can_show_gives_nan():
    qk, v, buckets = inputs(dtype=np.float32)
    assert np.isfinite(attend(qk, v, buckets, chunk_size=CHUNK)).all()
    # All of it: a token that sees only itself, and what padding makes zero.
    valid = masks.Padding(jnp.array([5, 23]))
    assert np.isnan(attend(qk, v, buckets - 1, chunk_size=CHUNK, mask=valid)).all()
    mask = masks.Causal(q_offset=jnp.array(3))
    assert np.isnan(attend(qk, v, buckets, chunk_size=CHUNK, mask=mask)).all()
    gradient = jax.grad(lambda v: attend(qk, v, buckets - 1, chunk_size=CHUNK).sum())(v)
    assert np.isnan(gradient).all()
