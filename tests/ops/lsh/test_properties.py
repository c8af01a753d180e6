"""LSH attention over lengths, chunks, rounds, options, masks and dtypes that hypothesis draws.

What is drawn statically compiles, so few of these are drawn; each is run on several inputs.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab import masks
from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.options import STRICT, LSHOptions
from attnlab.ops.lsh.published import LUCIDRAINS, PAPER, TRAX, Published
from tests import oracle_lsh
from tests.ops.lsh.plain import fields_of

HEADS, WIDTH = 2, 3
OPTIONS = [STRICT, TRAX, LUCIDRAINS, PAPER, LSHOptions(union=False, window=1)]
FEW = settings(max_examples=12, derandomize=True, database=None)
pytestmark = pytest.mark.slow


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


@FEW
@given(
    case=static(),
    dtype=st.sampled_from([np.float32, jnp.bfloat16]),
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2),
)
def test_whatever_is_finite_stays_finite(case, dtype, seeds):
    @jax.jit
    def value_and_gradients(qk, v, *rest):
        out, pull = jax.vjp(lambda qk, v: forward(case)(qk, v, *rest), qk, v)
        return (out, *pull(jnp.ones_like(out)))

    for seed in seeds:
        for scale in (1e-30, 1.0, 1e4, 1e15):
            qk, v, buckets, valid, segments = arrays(case, seed, dtype, scale)
            out, *gradients = value_and_gradients(qk, v, buckets, valid, segments)
            for x in (out, *gradients):
                assert x.dtype == dtype and np.isfinite(x.astype(np.float32)).all()
                assert not x[~valid].any()
            bound = np.abs(np.where(valid[:, :, None, None], v, 0)).max().astype(np.float32)
            assert np.abs(out.astype(np.float32)).max() <= bound * (1 + 2**-7)


@FEW
@given(case=static(), seed=st.integers(0, 2**32 - 1))
def test_the_future_never_reaches_the_past(case, seed):
    case |= {"causal": True, "options": dataclasses.replace(STRICT, union=seed % 2 == 0)}
    run = jax.jit(functools.partial(forward(case)))
    qk, v, buckets, valid, segments = arrays(case, seed, np.float32)
    before, rng = np.asarray(run(qk, v, buckets, valid, segments)), np.random.default_rng(seed)
    for cut in range(1, case["length"]):
        others = [x.copy() for x in (qk, v, buckets, valid, segments)]
        for x, axis in zip(others, (1, 1, 2, 1, 1), strict=True):
            future = (slice(None),) * axis + (slice(cut, None),)
            x[future] = rng.permutation(x[future].ravel()).reshape(x[future].shape)
        np.testing.assert_array_equal(np.asarray(run(*others))[:, :cut], before[:, :cut])
