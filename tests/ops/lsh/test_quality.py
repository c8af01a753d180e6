"""Diagnostics of hashing, against NumPy loops over every pair."""

import jax
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops.lsh import quality
from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.inputs import STRICT, LSHOptions
from attnlab.ops.lsh.quality import hash_quality
from tests import oracle_lsh
from tests.daily import daily
from tests.ops.lsh.plain import CHUNK, counts_of, inputs, key_mask, some_padding

quality_of = jax.jit(hash_quality, static_argnames=("chunk_size", "causal", "options", "top_k"))
attend = jax.jit(lsh_attention, static_argnames="chunk_size")
CASES = {  # options, causal
    "strict": (STRICT, True),
    "strict, both ways": (LSHOptions(window=3, union=False), False),
    "other keys": (LSHOptions(logit_scale=None, key_norm="l2"), True),
}
TOP_K = 3


def softmax(logits, times):
    weights = times * np.exp(logits - logits.max())
    return weights / max(weights.sum(), 1e-300)


def expected(qk, v, buckets, options, causal, valid, segments):
    """One example's head: everything but `visible_same_bucket`, query by query."""
    counts = oracle_lsh.visible_counts(
        buckets,
        chunk_size=CHUNK,
        causal=causal,
        valid=valid,
        segments=segments,
        window=options.window,
        look_back=options.look_back,
    )
    times = np.minimum(counts, 1) if options.union else counts
    scale = options.logit_scale or qk.shape[1] ** -0.5
    logits = scale * qk @ oracle_lsh.unit_keys(qk, options.key_norm).T
    mass, recall, wrong, right, seen, pairs, lonely = [], [], 0.0, 0.0, 0, 0, []
    for i in range(len(qk)):
        keys = [
            j
            for j in range(len(qk))
            if valid[i] and valid[j] and segments[i] == segments[j] and (j < i or not causal)
            if j != i
        ]
        if not keys:
            continue
        full = softmax(logits[i, keys], np.ones(len(keys)))
        near = times[i, keys]
        best = np.argsort(-logits[i, keys])[:TOP_K]
        mass.append(full[near > 0].sum())
        recall.append((near[best] > 0).mean())
        exact = full @ v[keys]
        context = softmax(logits[i, keys], near) @ v[keys] if near.any() else v[i]
        wrong, right = wrong + ((context - exact) ** 2).sum(), right + (exact**2).sum()
        seen, pairs = seen + (near > 0).sum(), pairs + len(keys)
        lonely.append(not near.any())
    sizes = [np.unique(row[valid], return_counts=True)[1] for row in buckets]
    return {
        "captured_mass": np.mean(mass),
        "top_k_recall": np.mean(recall),
        "relative_error": (wrong / right) ** 0.5,
        "visible_pairs": seen / pairs,
        "lonely": np.mean(lonely),
        "largest_bucket": np.mean([max(s) for s in sizes]) / valid.sum(),
        "used_buckets": np.mean([len(s) for s in sizes]),
    }


@pytest.mark.parametrize(
    ("case", "block"), daily([*((case, None) for case in CASES), ("strict", 5)], ("strict", None))
)
def test_equals_a_loop_over_the_pairs(x64, monkeypatch, case, block):
    options, causal = CASES[case]
    qk, v, buckets = inputs()
    valid = some_padding()
    segments = np.random.default_rng(2).integers(0, 2, size=valid.shape)
    if block is not None:  # several blocks, the last one moved back over the one before
        monkeypatch.setattr(quality, "_WEIGHTS_AT_ONCE", block * 24)
        jax.clear_caches()
    found = quality_of(
        qk,
        v,
        buckets,
        chunk_size=CHUNK,
        causal=causal,
        mask=key_mask(valid) & masks.Segments(segments),
        options=options,
        top_k=TOP_K,
    )
    found = jax.device_get(found)
    for b, n in np.ndindex(found.captured_mass.shape):
        given = (qk[b, :, n], v[b, :, n], buckets[b, :, :, n])
        for name, want in expected(*given, options, causal, valid[b], segments[b]).items():
            np.testing.assert_allclose(
                getattr(found, name)[b, n], want, rtol=1e-6, err_msg=f"{name} of {b}, {n}"
            )


@pytest.mark.parametrize(
    "options",
    daily([LSHOptions(window=1), STRICT], STRICT),
    ids=["window 1", "window 4"],
)
def test_share_of_same_bucket_pairs_that_the_window_shows(options):
    qk, v, buckets = inputs(dtype=np.float32)
    found = jax.device_get(quality_of(qk, v, buckets, chunk_size=CHUNK, options=options))
    for b, n in np.ndindex(found.captured_mass.shape):
        shown = shared = 0
        for r, ids in enumerate(buckets[b, :, :, n]):
            same = np.tril(ids[:, None] == ids[None, :], -1)
            alone = buckets[b : b + 1, r : r + 1, :, n : n + 1]
            times = counts_of(alone, options, causal=True, chunk_size=CHUNK)[0, 0]
            shared, shown = shared + same.sum(), shown + (same & (times > 0)).sum()
        np.testing.assert_allclose(found.visible_same_bucket[b, n], shown / shared, rtol=1e-6)


def test_one_bucket_and_a_long_window_is_full_attention():
    qk, v, buckets = inputs(dtype=np.float32)
    found = quality_of(qk, v, 0 * buckets, chunk_size=24).means()
    assert float(found.relative_error) < 1e-6
    for name in ("captured_mass", "top_k_recall", "visible_pairs", "visible_same_bucket"):
        np.testing.assert_allclose(getattr(found, name), 1, rtol=1e-6)
    assert found.largest_bucket == found.used_buckets == 1 and found.lonely == 0
    padded = quality_of(qk, v, 0 * buckets, chunk_size=20).means()  # to 40
    assert padded.largest_bucket == padded.used_buckets == 1


def test_the_error_is_that_of_the_attention_itself(x64):
    qk, v, buckets = inputs()
    found = quality_of(qk, v, buckets, chunk_size=CHUNK)
    near = np.asarray(attend(qk, v, buckets, chunk_size=CHUNK))
    full = np.asarray(attend(qk, v, 0 * buckets[:, :1], chunk_size=24))
    difference, size = (
        np.square(x[:, 1:]).sum((1, 3)) for x in (near - full, full)
    )  # the first token has no key
    np.testing.assert_allclose(found.relative_error, np.sqrt(difference / size), rtol=1e-6)


@pytest.mark.slow
def test_grouped_values_unbatched_inputs_and_nothing_to_see():
    qk, v, buckets = inputs(dtype=np.float32)
    found = hash_quality(qk[0], v[0, :, :1], buckets[0], chunk_size=CHUNK)
    both = hash_quality(qk, np.repeat(v[:, :, :1], 2, axis=2), buckets, chunk_size=CHUNK)
    for x, y in zip(found, both, strict=True):
        assert x.shape == y.shape[1:]
        np.testing.assert_allclose(x, y[0], rtol=1e-5)
    alone = hash_quality(qk[:, :1], v[:, :1], buckets[:, :, :1])
    assert all(np.all(np.isfinite(x)) for x in alone)
    assert not alone.captured_mass.any()


def test_bucket_ids_that_cannot_be_sorted_are_nan_under_jit():
    qk, v, buckets = inputs(dtype=np.float32)
    found = jax.jit(hash_quality)(qk, v, buckets - 1)
    assert all(np.all(np.isnan(x)) for x in found)


@pytest.mark.slow
def test_memory_grows_with_the_length_and_not_its_square():
    def temporaries(length):
        x = jax.ShapeDtypeStruct((1, length, 1, 8), np.float32)
        buckets = jax.ShapeDtypeStruct((1, 2, length, 1), np.int32)
        compiled = jax.jit(hash_quality).lower(x, x, buckets).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(16384) < 1.5 * temporaries(4096)
