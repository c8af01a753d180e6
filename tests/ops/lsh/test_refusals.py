"""What LSH attention refuses, and how it says so."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.options import LSHOptions
from attnlab.ops.lsh.published import TRAX, Published
from tests.ops.lsh.plain import CHUNK, attend, inputs


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
        ({"buckets": IDS - 1}, r"in \[0, 186737707\).*got -1 … 1 .use fewer"),
        ({"buckets": IDS + 2**28}, "bucket ids must be in"),
        ({"chunk_size": 0}, "chunk_size must be an int ≥ 1; got 0"),
        ({"chunk_size": 2.5}, "chunk_size must be an int ≥ 1; got 2.5"),
        ({"rows_at_once": 0}, "rows_at_once must be an int ≥ 1; got 0"),
        ({"dropout_rate": 0.5}, "needs dropout_key"),
        ({"dropout_rate": 0.5, "dropout_key": 3}, "dropout_key must be one PRNG key; got 3"),
        ({"dropout_rate": 1.0}, r"in \[0, 1\); got 1.0"),
        ({"mask": masks.Segments(np.zeros((2, 5), int))}, "Segments.q_ids must be .*23"),
        ({"mask": np.zeros((2, 1, 1, 23))}, "mask must be boolean"),
        ({"mask": masks.Padding(np.ones(5, int))}, r"Padding.kv_lengths must be .*; got \(5, 23\)"),
        (
            {"chunk_size": 4, "options": LSHOptions(window=5)},
            "window must be at most .* = 4; got 5",
        ),
        ({"options": "trax"}, r"the class LSHOptions or Published; got 'trax' \(presets"),
        ({"options": LSHOptions}, "options must be .*got the class LSHOptions"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        refused(**options)


def test_a_logit_scale_may_be_an_array():
    assert LSHOptions(logit_scale=np.array(0.5)) == LSHOptions(logit_scale=jnp.float32(0.5))
    assert hash(LSHOptions(logit_scale=np.array(0.5))) == hash(LSHOptions(logit_scale=0.5))


def test_what_is_no_array_is_refused_by_its_name():
    qk, v, ids = map(jnp.asarray, (QK, V, IDS))
    for arrays, name in (((None, v, ids), "qk"), ((qk, "v", ids), "v"), ((qk, v, None), "buckets")):
        with pytest.raises(ValueError, match=f"^{name} must be an array of numbers; got"):
            lsh_attention(*arrays)
    for arrays, name in (((qk, None, v, ids, ids), "k"), ((qk, qk, v, ids, {}), "k_buckets")):
        with pytest.raises(ValueError, match=f"^{name} must be an array of numbers; got"):
            lsh_cross_attention(*arrays)


def test_a_dropout_rate_may_be_an_array():
    key = jax.random.key(0)
    got, true = (refused(dropout_rate=rate, dropout_key=key) for rate in (jnp.float32(0.5), 0.5))
    np.testing.assert_array_equal(got, true)


@pytest.mark.parametrize(
    ("keyword", "place"),
    [
        ({"is_causal": True}, "lsh_attention has no keyword is_causal; use causal=True"),
        ({"num_hashes": 4}, "no keyword num_hashes; it belongs to make_rotations"),
        ({"scale": 0.1}, r"no keyword scale; use options=LSHOptions\(logit_scale="),
    ],
)
def test_keywords_that_belong_elsewhere_are_told_where(keyword, place):
    with pytest.raises(TypeError, match=place):
        refused(**keyword)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_scale": "a"}, "logit_scale must be one finite number; got 'a'"),
        ({"key_norm": "max"}, "key_norm must be one of 'rms', 'l2', None; got 'max'"),
        ({"look_back": -1}, "look_back counts chunks, an int ≥ 0; got -1"),
        ({"look_back": 0}, "look_back must be at least 1; got 0"),
        ({"window": 0}, "window counts slots, an int ≥ 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LSHOptions(**fields)


@pytest.mark.parametrize("mask", [masks.Causal(q_offset=3), masks.Window(3, 0, q_offset=3)])
def test_queries_that_stand_elsewhere_than_keys_are_refused(mask):
    with pytest.raises(NotImplementedError, match="LSH attention .*got"):
        refused(mask=mask)


def test_an_offset_that_is_known_is_refused_under_jit_too():
    attends = functools.partial(lsh_attention, v=V, chunk_size=CHUNK)
    with pytest.raises(NotImplementedError, match="got Causal with q_offset=3"):
        jax.eval_shape(lambda qk: attends(qk, buckets=IDS, mask=masks.Causal(q_offset=3)), QK)


def test_a_ring_knows_neither_buckets_nor_a_union():
    for fields in ({"same_bucket": False}, {"union": False}):
        with pytest.raises(ValueError, match="same_bucket=False and union=False; got"):
            Published(wrap=True, **fields)


def test_published_options_have_one_implementation():
    with pytest.raises(NotImplementedError, match='got implementation="?.dense'):
        refused(options=TRAX, implementation="dense")


@pytest.mark.slow
def test_what_only_the_run_can_show_gives_nan():
    assert np.isfinite(attend(QK, V, IDS, chunk_size=CHUNK)).all()
    # All of it: a token that sees only itself, and what padding makes zero.
    valid = masks.Padding(jnp.array([5, 23]))
    assert np.isnan(attend(QK, V, IDS - 1, chunk_size=CHUNK, mask=valid)).all()
    mask = masks.Causal(q_offset=jnp.array(3))
    assert np.isnan(attend(QK, V, IDS, chunk_size=CHUNK, mask=mask)).all()
    assert np.isnan(jax.grad(lambda v: attend(QK, v, IDS - 1, chunk_size=CHUNK).sum())(V)).all()


@pytest.mark.parametrize("which", ["q", "k"])
def test_between_two_sequences_too(which):
    ids = (IDS - 1, IDS) if which == "q" else (IDS, IDS - 1)
    valid = masks.Padding(jnp.array([5, 23]), jnp.array([23, 7]))
    run = jax.jit(functools.partial(lsh_cross_attention, chunk_size=CHUNK))
    assert np.isnan(run(QK, QK, V, *ids, mask=valid)).all()
    with pytest.raises(ValueError, match=r"bucket ids must be in .*got -1 … 1 \(use fewer"):
        lsh_cross_attention(QK, QK, V, *ids)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32])
def test_bucket_ids_may_be_of_any_integer_type(dtype):
    want = attend(QK, V, IDS, chunk_size=CHUNK)
    ids = IDS.astype(dtype)
    np.testing.assert_array_equal(attend(QK, V, ids, chunk_size=CHUNK), want)
    jax.eval_shape(lambda qk: lsh_attention(qk, V, ids, chunk_size=CHUNK), QK)  # ids are known here
    cross = lsh_cross_attention(QK, QK, V, ids, IDS.astype(np.int16), chunk_size=CHUNK)
    assert np.isfinite(cross).all()
