"""LSH attention against Hugging Face's, in float64, buckets given.

reformer-pytorch's is on its page of docs/coming_from.
"""

import importlib

import jax
import numpy as np
import pytest

from attnlab import masks
from attnlab.ops.lsh import hashing
from attnlab.ops.lsh.published import TRAX
from tests.ops.lsh.plain import CHUNK, lsh_attention

pytestmark = pytest.mark.slow
BATCH, LENGTH, HEADS, WIDTH = 2, 40, 3, 6
attend = jax.jit(lsh_attention, static_argnames=("chunk_size", "causal", "options"))


@pytest.fixture(scope="module")
def peers():
    """`peers.py`, not imported until a test runs: torch and transformers take seconds."""
    for name in ("torch", "transformers"):
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
