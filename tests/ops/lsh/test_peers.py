"""LSH attention against Hugging Face's and reformer-pytorch's, in float64, buckets given.

And the faults of theirs that ours has not: where it is cheap, the test shows the peer failing.
"""

import dataclasses
import importlib

import jax
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops.lsh import hashing
from attnlab.ops.lsh.published import LUCIDRAINS, TRAX
from tests.ops.lsh.plain import CHUNK, lsh_attention

pytestmark = pytest.mark.slow
BATCH, LENGTH, HEADS, WIDTH = 2, 40, 3, 6
attend = jax.jit(lsh_attention, static_argnames=("chunk_size", "causal", "options"))


@pytest.fixture(scope="module")
def peers():
    """`peers.py`, not imported until a test runs: torch and transformers take seconds."""
    for name in ("torch", "transformers", "reformer_pytorch"):
        pytest.importorskip(name, reason="the peers are oracles; they come with the extra `compat`")
    return importlib.import_module("tests.ops.lsh.peers")


def inputs(rounds, num_buckets, seed=0):
    rng = np.random.default_rng(seed)
    qk, v = rng.normal(size=(2, BATCH, LENGTH, HEADS, WIDTH))
    return qk, v, rng.integers(0, num_buckets, size=(BATCH, rounds, LENGTH, HEADS), dtype=np.int32)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_trax_preset_is_hugging_face(peers, x64, rounds, causal):
    qk, v, buckets = inputs(rounds, 8)
    got = attend(qk, v, buckets, chunk_size=CHUNK, causal=causal, options=TRAX)
    np.testing.assert_allclose(got, peers.hugging_face(qk, v, buckets, causal=causal), atol=1e-11)


@pytest.mark.parametrize("causal", [True, False])
def test_trax_preset_is_hugging_face_with_padding(peers, x64, causal):
    qk, v, buckets = inputs(2, 8)
    valid = np.ones((BATCH, LENGTH), bool)
    valid[0, 29:] = valid[1, :3] = valid[1, 17] = False
    got = attend(
        qk,
        v,
        buckets,
        chunk_size=CHUNK,
        causal=causal,
        options=TRAX,
        mask=masks.Explicit(valid[:, None, None, :]),
    )
    want = peers.hugging_face(qk, v, buckets, causal=causal, valid=valid)
    np.testing.assert_allclose(np.asarray(got)[valid], want[valid], atol=1e-11)


def test_short_inputs_are_hugging_faces_dense_fallback(peers, x64):
    qk, v, buckets = (
        x[:, :CHUNK] if x.shape[1] == LENGTH else x[:, :, :CHUNK] for x in inputs(2, 8)
    )
    module = peers.hugging_face_module(qk, v, rounds=2, causal=True)
    want = module(module.value.x).hidden_states.numpy().reshape(v.shape)
    got = attend(qk, v, buckets, chunk_size=CHUNK, options=TRAX)
    np.testing.assert_allclose(got, want, atol=1e-11)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("across", [True, False])
def test_lucidrains_preset_is_reformer_pytorch(peers, x64, across, causal):
    qk, v, buckets = inputs(3, LENGTH // CHUNK)
    options = LUCIDRAINS
    if not across:
        options = dataclasses.replace(LUCIDRAINS, same_bucket=True, wrap=False)
    got = attend(qk, v, buckets, chunk_size=CHUNK, causal=causal, options=options)
    want = peers.lucidrains(qk, v, buckets, causal=causal, across=across)
    np.testing.assert_allclose(got, want, atol=1e-11)


def test_what_separates_the_peers_is_the_scale(peers, x64):
    qk, v, buckets = inputs(2, LENGTH // CHUNK)
    scaled = peers.lucidrains(qk * WIDTH**0.5, v, buckets, causal=True)
    # Up to Hugging Face's 1e-6 in the norm of a key.
    np.testing.assert_allclose(peers.hugging_face(qk, v, buckets, causal=True), scaled, atol=1e-4)
    assert np.abs(scaled - peers.lucidrains(qk, v, buckets, causal=True)).max() > 0.1


@pytest.mark.parametrize("num_buckets", [8, (4, 6)])
def test_hash_is_hugging_faces(peers, x64, num_buckets):
    qk, v, _ = inputs(2, 8)
    factors = hashing.factorize(num_buckets) if isinstance(num_buckets, int) else num_buckets
    total = int(np.prod(factors))
    wanted = list(num_buckets) if isinstance(num_buckets, tuple) else num_buckets
    module = peers.hugging_face_module(qk, v, rounds=2, causal=True, num_buckets=wanted)
    vectors = peers.torch.from_numpy(np.moveaxis(qk, 2, 1))
    flat = module._hash_vectors(vectors, 2, None).numpy().reshape(BATCH, HEADS, 2, LENGTH)
    want = np.moveaxis(flat - np.arange(2)[:, None] * total, 1, 3)

    peers.torch.manual_seed(0)  # as the module does, which is how to draw its rotations again
    drawn = peers.torch.randn(
        (HEADS, WIDTH, 2, sum(factors) // 2), dtype=peers.torch.float64
    ).numpy()
    drawn = np.split(np.moveaxis(drawn, 1, 3), np.cumsum(factors)[:-1] // 2, axis=2)
    got = hashing.hash_buckets(qk, hashing.Rotations(tuple(drawn)))
    np.testing.assert_array_equal(got, want)


# Faults of theirs.


def test_their_hash_seed_resets_the_global_generator_and_ours_has_none(peers, x64):
    qk, v, _ = inputs(2, 8)
    module = peers.hugging_face_module(qk, v, rounds=2, causal=True)
    peers.torch.manual_seed(1)
    module(module.value.x)
    after = peers.torch.randn(3)
    peers.torch.manual_seed(2)
    module(module.value.x)
    assert peers.torch.equal(after, peers.torch.randn(3))  # whatever the seed was


def test_a_length_that_no_chunk_divides_stops_them_and_not_us(peers, x64):
    qk, v, buckets = inputs(1, 8)
    short = LENGTH - 1
    module = peers.hugging_face_module(qk[:, :short], v[:, :short], rounds=1, causal=True)
    with pytest.raises((RuntimeError, AssertionError)):
        module(module.value.x)
    with pytest.raises(AssertionError):
        peers.reformer_pytorch.LSHAttention(bucket_size=CHUNK)(
            *(peers.torch.ones(1, short, WIDTH),) * 2
        )
    out = attend(qk[:, :short], v[:, :short], buckets[:, :, :short], chunk_size=CHUNK)
    assert np.isfinite(out).all()


def test_two_forwards_before_a_backward_break_theirs(peers):
    # reformer-pytorch keeps the buckets of the last training forward, and reuses them in reverse.
    module = peers.reformer_pytorch.LSHAttention(bucket_size=CHUNK, n_hashes=1)
    x, y = peers.torch.randn(2, 1, LENGTH, WIDTH)
    first = module(x, x, _depth=0)[2]
    second = module(y, y, _depth=0)[2]
    again = module(x, x, _depth=0, _reverse=True)[2]
    assert peers.torch.equal(again, second) and not peers.torch.equal(again, first)
