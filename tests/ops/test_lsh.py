"""LSH attention against a float64 oracle, and the behaviours that published code lacks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops import dropout, hashing
from attnlab.ops.lsh import LUCIDRAINS, PAPER, STRICT, TRAX, LSHOptions, lsh_attention
from tests.ops import lsh_oracle

BATCH, LENGTH, HEADS, WIDTH, VALUE_WIDTH, ROUNDS, CHUNK, BUCKETS = 2, 23, 2, 5, 3, 3, 4, 3

STATIC = ("chunk_size", "causal", "options", "dropout_rate", "rows_at_once")
attend = jax.jit(lsh_attention, static_argnames=STATIC)

OPTIONS = {
    "strict": STRICT,
    "trax": TRAX,
    "lucidrains": LUCIDRAINS,
    "paper": PAPER,
    "strict multiset": LSHOptions(union=False),
    "strict, longer window": LSHOptions(look_back=2, window=5),
    "chunks on both sides": LSHOptions(strict=False, look_ahead=1),
    "union across buckets": LSHOptions(strict=False, same_bucket=False, look_ahead=2),
}


def inputs(seed=0, length=LENGTH, batch=BATCH, buckets=BUCKETS, dtype=np.float64):
    rng = np.random.default_rng(seed)
    qk = rng.normal(size=(batch, length, HEADS, WIDTH)).astype(dtype)
    v = rng.normal(size=(batch, length, HEADS, VALUE_WIDTH)).astype(dtype)
    return qk, v, rng.integers(0, buckets, size=(batch, ROUNDS, length, HEADS), dtype=np.int32)


def some_padding(seed=1, length=LENGTH, batch=BATCH):
    valid = np.random.default_rng(seed).random((batch, length)) < 0.7
    valid[:, :2] = False  # positions 0 and 1, where Trax leaks
    return valid


def key_mask(valid):
    return masks.Explicit(valid[:, None, None, :])


def counts_of(buckets, options, **where):
    """The oracle's counts for every example and head, [B, N, L, L]."""
    fields = dataclasses.asdict(options)
    place = {k: fields[k] for k in ("strict", "same_bucket", "wrap", "window")}
    place |= {k: fields[k] for k in ("look_back", "look_ahead")}
    rows = [
        [
            lsh_oracle.visible_counts(
                row[:, :, n],
                **place,
                **{k: (x[b] if k in ("valid", "segments") else x) for k, x in where.items()},
            )
            for n in range(row.shape[2])
        ]
        for b, row in enumerate(buckets)
    ]
    return np.array(rows)


def dense(qk, v, times, *, scale, key_norm, keep=None):
    """The same function as one dense softmax in plain JAX, for its automatic gradients.

    times [B, N, L, L]: how often each pair counts.
    """
    square = jnp.sum(qk * qk, -1, keepdims=True)
    norm = jnp.sqrt(square if key_norm == "l2" else square + 1e-6 * qk.shape[-1])
    logits = scale * jnp.einsum("bqnh,bknh->bnqk", qk, qk / norm)
    logits = jnp.where(times > 0, logits + np.log(np.maximum(times, 1)), -1e30)
    alone = times.sum(-1, keepdims=True) == 0
    weights = jnp.where(alone, np.eye(qk.shape[1])[None, None], jax.nn.softmax(logits))
    if keep is not None:
        weights = weights * keep
    return jnp.einsum("bnqk,bknd->bqnd", weights, v)


# The function itself.


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_oracle(x64, name, causal):
    options, (qk, v, buckets) = OPTIONS[name], inputs()
    valid = some_padding()
    segments = np.random.default_rng(2).integers(0, 3, size=valid.shape)
    for mask, where in (
        (None, {}),
        (key_mask(valid) & masks.Segments(segments), {"valid": valid, "segments": segments}),
    ):
        got = attend(qk, v, buckets, chunk_size=CHUNK, causal=causal, mask=mask, options=options)
        want = lsh_oracle.lsh_attention(
            qk,
            v,
            buckets,
            chunk_size=CHUNK,
            causal=causal,
            options=dataclasses.asdict(options),
            **where,
        )
        np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("length", range(1, 13))
def test_any_length_from_one_to_four_chunks(x64, length):
    qk, v, buckets = inputs(length=length)
    got = attend(qk, v, buckets, chunk_size=3)
    want = lsh_oracle.lsh_attention(qk, v, buckets, chunk_size=3, causal=True)
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_the_plain_dense_version(x64, name, causal):
    options, (qk, v, buckets), valid = OPTIONS[name], inputs(), some_padding()
    cotangent = np.random.default_rng(3).normal(size=v.shape)
    times = counts_of(buckets, options, chunk_size=CHUNK, causal=causal, valid=valid)
    times = np.minimum(times, 1) if options.union else times
    scale = WIDTH**-0.5 if options.logit_scale is None else options.logit_scale

    def ours(qk, v):
        out = lsh_attention(
            qk,
            v,
            buckets,
            chunk_size=CHUNK,
            causal=causal,
            mask=key_mask(valid),
            options=options,
        )
        return jnp.sum(out * cotangent)

    def plain(qk, v):
        out = dense(qk, v, times, scale=scale, key_norm=options.key_norm)
        return jnp.sum(jnp.where(valid[:, :, None, None], out * cotangent, 0))

    got, want = (jax.jit(jax.grad(f, argnums=(0, 1)))(qk, v) for f in (ours, plain))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-9)


def test_one_chunk_one_round_is_dense_attention(x64):
    qk, v, buckets = inputs()
    options = LSHOptions(strict=False, same_bucket=False, look_back=0)
    got = attend(qk, v, buckets[:, :1], chunk_size=LENGTH, causal=True, options=options)
    times = np.tril(np.ones((LENGTH, LENGTH)), -1)[None, None]
    np.testing.assert_allclose(got, dense(qk, v, times, scale=1, key_norm="rms"), atol=1e-12)


def test_large_chunks_attend_over_the_union_of_buckets(x64):
    qk, v, buckets = inputs()
    same = (buckets[:, :, :, None] == buckets[:, :, None, :]).any(1)  # [B, L, L, N]
    times = np.moveaxis(same, 3, 1) & ~np.eye(LENGTH, dtype=bool)
    got = attend(qk, v, buckets, chunk_size=LENGTH, causal=False, options=PAPER)
    want = dense(qk, v, times, scale=WIDTH**-0.5, key_norm="l2")
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_more_rounds_come_nearer_to_full_attention(x64):
    qk, v, _ = inputs()
    rng = np.random.default_rng(0)
    times = np.tril(np.ones((LENGTH, LENGTH)), -1)[None, None]
    full = dense(qk, v, times, scale=1, key_norm="rms")
    errors = []
    for rounds in (1, 4, 40):
        buckets = rng.integers(0, BUCKETS, size=(BATCH, rounds, LENGTH, HEADS))
        got = attend(qk, v, buckets, chunk_size=8)
        errors.append(np.abs(got - full).mean())
    assert errors[0] > 2 * errors[1] and errors[1] > 100 * errors[2]
    multiset = attend(qk, v, buckets, chunk_size=8, options=LSHOptions(union=False))
    assert np.abs(multiset - full).mean() > 10 * errors[2]  # it is another function


# Causality.


def perturbed_future(options, chunk, width, length):
    """The largest change of past outputs when everything from a cut on changes."""
    rng = np.random.default_rng(0)
    factors = (rng.normal(size=(HEADS, ROUNDS, length // chunk, width)).astype(np.float32),)
    rotations = hashing.Rotations(factors)

    @jax.jit
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
    ("chunk", "width", "length"), [(64, 64, 512), (16, 8, 200), (7, 11, 101), (1, 5, 50)]
)
def test_the_future_changes_not_one_bit_of_the_past(chunk, width, length):
    assert perturbed_future(STRICT, chunk, width, length) == 0.0


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
        assert (x[~valid] == 0).all() and (x[valid] != 0).all()
    for position in range(LENGTH):
        for value in (7.0, 1e30, np.nan):
            masked = ~valid[:, position]
            other = [x.copy() for x in (qk, v, buckets)]
            other[0][masked, position] = other[1][masked, position] = value
            other[2][masked, :, position] = BUCKETS - 1 - other[2][masked, :, position]
            for x, y in zip(run(*other), want, strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["strict", "paper"])
def test_a_longer_padding_changes_nothing(x64, name, causal):
    def run(length, lengths):
        qk, v, buckets = (
            np.pad(x, [(0, length - LENGTH if n == LENGTH else 0) for n in x.shape])
            for x in inputs()
        )
        mask = masks.Padding(lengths)
        options = OPTIONS[name]
        return attend(qk, v, buckets, chunk_size=4, causal=causal, mask=mask, options=options)

    lengths = np.array([LENGTH, 11])
    short, long = run(LENGTH, lengths), run(37, lengths)
    np.testing.assert_allclose(long[:, :LENGTH], short, atol=1e-14)
    assert not long[:, LENGTH:].any() and not short[1, 11:].any()


def test_segments_attend_as_if_each_were_alone(x64):
    qk, v, buckets = inputs()
    borders = [(0, 7), (7, 8), (8, 20), (20, LENGTH)]
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


# Independence, memory knobs, number types.


def test_examples_heads_and_their_grouping_are_independent(x64):
    qk, v, buckets = inputs()
    together = attend(qk, v, buckets, chunk_size=CHUNK)
    for b, n in np.ndindex(BATCH, HEADS):
        one = (slice(b, b + 1), slice(None), slice(n, n + 1))
        alone = attend(qk[one], v[one], buckets[b : b + 1, :, :, n : n + 1], chunk_size=CHUNK)
        np.testing.assert_allclose(alone[0, :, 0], together[b, :, n], atol=1e-14)
    for rows in (1, 3, 4):
        knob = attend(qk, v, buckets, chunk_size=CHUNK, rows_at_once=rows)
        np.testing.assert_allclose(knob, together, atol=1e-14)
    unbatched = attend(qk[0], v[0], buckets[0], chunk_size=CHUNK)
    np.testing.assert_allclose(unbatched, together[0], atol=1e-14)
    shared = attend(qk, v[:, :, :1], buckets, chunk_size=CHUNK)
    both = attend(qk, np.repeat(v[:, :, :1], HEADS, 2), buckets, chunk_size=CHUNK)
    np.testing.assert_array_equal(shared, both)


def test_gradients_survive_rows_at_once_remat_vmap_and_two_forwards(x64):
    qk, v, buckets = inputs()
    other_buckets = inputs(seed=5)[2]

    def loss(qk, v, buckets, **knobs):
        return jnp.sum(jnp.sin(lsh_attention(qk, v, buckets, chunk_size=CHUNK, **knobs)))

    grad = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnames="rows_at_once")
    first, second = grad(qk, v, buckets), grad(qk, v, other_buckets)

    def two_forwards(qk, v):
        return jax.checkpoint(loss)(qk, v, buckets) + loss(qk, v, other_buckets)

    for got, want in (
        (
            jax.jit(jax.grad(two_forwards, argnums=(0, 1)))(qk, v),
            jax.tree.map(np.add, first, second),
        ),
        (grad(qk, v, buckets, rows_at_once=3), first),
        (
            [
                jnp.moveaxis(x, 0, 1).reshape(y.shape) if y.ndim < 4 else x.reshape(y.shape)
                for x, y in zip(
                    jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1))))(
                        qk[:, None], v[:, None], buckets[:, None]
                    ),
                    first,
                    strict=True,
                )
            ],
            first,
        ),
    ):
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-12)


def test_several_tiles_a_round_and_a_last_one_that_overlaps(x64, monkeypatch):
    qk, v, buckets = inputs()
    want = attend(qk, v, buckets, chunk_size=2, options=TRAX)
    # 12 chunks of 2, visiting 2: tiles of 5 chunks.
    monkeypatch.setattr("attnlab.ops.lsh_rows._TILE_ON_CPU", 5 * 2 * 2 * 2)

    def loss(qk, v, options):
        return jnp.sum(
            jnp.sin(lsh_attention(qk, v, buckets, chunk_size=2, options=options)),
        )

    tiled = jax.jit(lambda: lsh_attention(qk, v, buckets, chunk_size=2, options=TRAX))()
    np.testing.assert_allclose(tiled, want, atol=1e-14)
    for options in (STRICT, TRAX):
        grad = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)
        monkeypatch.setattr("attnlab.ops.lsh_rows._TILE_ON_CPU", 5 * 2 * 2 * 2)
        tiled = grad(qk, v, options)
        monkeypatch.undo()
        jax.clear_caches()
        for x, y in zip(tiled, grad(qk, v, options), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-12)


def test_lonely_and_zero_rows():
    qk, v, buckets = inputs(dtype=np.float32)
    buckets[:, :, 9] = BUCKETS  # a bucket of its own in every round
    qk[:, 4:6] = 0
    for options in (STRICT, LUCIDRAINS):
        out, pull = jax.vjp(
            jax.jit(
                lambda qk, v, o=options: lsh_attention(qk, v, buckets, chunk_size=2, options=o)
            ),
            qk,
            v,
        )
        assert np.isfinite(out).all()
        assert all(np.isfinite(x).all() for x in pull(jnp.ones_like(out)))
    own = attend(qk, v, buckets, chunk_size=2)
    np.testing.assert_array_equal(own[:, 9], v[:, 9])
    np.testing.assert_array_equal(own[:, 0], v[:, 0])  # nobody is before the first


@pytest.mark.parametrize("size", [1e-30, 1e3, 1e15])
def test_extreme_logits_are_finite(size):
    qk, v, buckets = inputs(dtype=np.float32)
    run = jax.jit(
        lambda qk, v: jax.vjp(lambda *x: lsh_attention(*x, buckets, chunk_size=2), qk, v)[1](v)
    )
    out = attend(qk * size, v, buckets, chunk_size=2)
    assert np.isfinite(out).all() and np.abs(out).max() <= np.abs(v).max() * (1 + 1e-6)
    assert all(np.isfinite(x).all() for x in run((qk * size).astype(np.float32), v))


def test_bfloat16_is_as_near_as_plain_bfloat16():
    qk, v, buckets = inputs()
    qk, v, cotangent = (jnp.asarray(x, jnp.bfloat16) for x in (qk, v, inputs(seed=8)[1]))
    times = np.minimum(counts_of(buckets, STRICT, chunk_size=CHUNK, causal=True), 1)

    def plain(qk, v):
        return dense(qk, v, times, scale=1, key_norm="rms").astype(qk.dtype)

    def ours(qk, v):
        return lsh_attention(qk, v, buckets, chunk_size=CHUNK)

    def everything(f, dtype):
        out, pull = jax.vjp(f, qk.astype(dtype), v.astype(dtype))
        return [out, *pull(cotangent.astype(dtype))]

    exact = jax.jit(lambda: everything(plain, jnp.float32))()
    for x, y, want in zip(
        jax.jit(lambda: everything(ours, jnp.bfloat16))(),
        jax.jit(lambda: everything(plain, jnp.bfloat16))(),
        exact,
        strict=True,
    ):
        assert x.dtype == jnp.bfloat16
        error, allowed = (np.abs(np.asarray(z, np.float32) - want).max() for z in (x, y))
        assert error <= 2 * allowed + 2**-9 * np.abs(want).max()


def test_dropout_drops_the_weights_that_dense_attention_drops(x64):
    qk, v, buckets = inputs()
    key, rate = jax.random.key(5), 0.4
    seeds = dropout.seeds(key, BATCH, HEADS, 1)
    keep = dropout.keep_mask(seeds, rate, jnp.arange(LENGTH), jnp.arange(LENGTH))[:, :, 0]
    times = np.minimum(counts_of(buckets, STRICT, chunk_size=CHUNK, causal=True), 1)

    def plain(qk, v):
        return dense(qk, v, times, scale=1, key_norm="rms", keep=keep / (1 - rate))

    def ours(qk, v):
        return lsh_attention(qk, v, buckets, chunk_size=CHUNK, dropout_rate=rate, dropout_key=key)

    def everything(f):
        out, pull = jax.vjp(f, qk, v)
        return [out, *pull(jnp.cos(out))]

    for x, y in zip(
        *(jax.jit(everything, static_argnums=0)(f) for f in (ours, plain)), strict=True
    ):
        np.testing.assert_allclose(x, y, atol=1e-9)


def test_memory_grows_with_the_length_and_not_faster():
    def temporaries(length):
        spec = jax.ShapeDtypeStruct
        qk = spec((1, length, 2, 16), jnp.float32)
        buckets = spec((1, 2, length, 2), jnp.int32)

        def loss(qk, v, buckets):
            return lsh_attention(qk, v, buckets, chunk_size=16).sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(qk, qk, buckets).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = temporaries(2**13), temporaries(2**15)
    assert 3 * short < long < 4.4 * short


# Refusals.


def refused(qk=None, v=None, buckets=None, **options):
    given = inputs(dtype=np.float32)
    arrays = [x if y is None else y for x, y in zip(given, (qk, v, buckets), strict=True)]
    return lsh_attention(*map(jnp.asarray, arrays), **options)


QK, V, IDS = inputs(dtype=np.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"v": V[:, 1:]}, "equal batch axes and length.*got qk .2, 23.*and v .2, 22"),
        ({"v": V[:, :, [0, 1, 0]]}, "heads be a multiple of v's"),
        ({"v": V.astype(np.float16)}, "one floating dtype; got float32 and float16"),
        ({"qk": QK[0, 0]}, "qk must be .*at least|qk must be .*heads, width"),
        ({"buckets": IDS.astype(np.float32)}, "buckets must be integers; got float32"),
        ({"buckets": np.moveaxis(IDS, 1, 3)}, "buckets must be .*rounds, length, heads.*got"),
        ({"buckets": IDS - 1}, r"in \[0, 67108862\).*got -1 … 1 .use fewer"),
        ({"buckets": IDS + 2**28}, "bucket ids must be in"),
        ({"chunk_size": 0}, "chunk_size must be an int ≥ 1; got 0"),
        ({"chunk_size": 2.5}, "chunk_size must be an int ≥ 1; got 2.5"),
        ({"rows_at_once": 0}, "rows_at_once must be an int ≥ 1; got 0"),
        ({"dropout_rate": 0.5}, "needs dropout_key"),
        ({"dropout_rate": 1.0}, r"in \[0, 1\); got 1.0"),
        ({"mask": masks.Segments(np.zeros((2, 5), int))}, "Segments.q_ids must be .*23"),
        ({"mask": np.zeros((2, 1, 1, 23))}, "mask must be boolean"),
        (
            {"chunk_size": 4, "options": LSHOptions(window=5)},
            "window must be at most .* = 4; got 5",
        ),
        ({"options": LSHOptions(look_ahead=1)}, "causal=True visits look_ahead=0 chunks; got 1"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        refused(**options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key_norm": "max"}, "key_norm must be one of 'rms', 'l2'; got 'max'"),
        ({"same_bucket": False}, "strict=True needs same_bucket=True"),
        ({"strict": False, "wrap": True, "union": False}, "needs same_bucket=False"),
        ({"look_back": -1}, "look_back counts chunks, an int ≥ 0; got -1"),
        ({"look_back": 0}, "strict=True needs look_back ≥ 1; got 0"),
        ({"window": 0}, "window counts slots, an int ≥ 1"),
        ({"strict": False, "window": 3}, "needs strict=True; got window=3, strict=False"),
    ],
)
def test_options_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LSHOptions(**fields)


@pytest.mark.parametrize(
    "mask",
    [
        masks.Window(3, 0),
        masks.Explicit(np.ones((1, 1, 23, 23), bool)),
        masks.Segments(np.zeros((2, 23), int), np.zeros((2, 23), int)),
        masks.Segments(np.zeros((2, 23), int)) & masks.Segments(np.zeros((2, 23), int)),
        masks.Causal(q_offset=3),
    ],
)
def test_masks_that_are_not_of_keys_alone_are_refused(mask):
    with pytest.raises(NotImplementedError, match="LSH attention .*got"):
        refused(mask=mask)


def test_union_of_a_ring_is_refused():
    with pytest.raises(NotImplementedError, match="union=True with wrap=True"):
        LSHOptions(strict=False, same_bucket=False, wrap=True)


def test_what_only_the_run_can_show_gives_nan():
    assert np.isfinite(attend(QK, V, IDS, chunk_size=CHUNK)).all()
    assert np.isnan(attend(QK, V, IDS - 1, chunk_size=CHUNK)[:, -1]).all()
    mask = masks.Causal(q_offset=jnp.array(3))
    assert np.isnan(attend(QK, V, IDS, chunk_size=CHUNK, mask=mask)[:, -1]).all()
