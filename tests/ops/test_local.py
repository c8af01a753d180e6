"""Window attention, and Luong's local attention against his equations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks
from attnlab.devices.platforms import Platform, compiling_for
from attnlab.ops.kernels import cudnn
from attnlab.ops.local import local_attention, window_attention
from attnlab.testing import Sizes
from tests import oracle
from tests.mechanism_cases import SCORES
from tests.trees import assert_close

SIZES = Sizes(batch=2)
LENGTHS = np.array([23, 9])
in_window = jax.jit(
    window_attention, static_argnames=("window", "score", "q_offset", "implementation")
)
around = jax.jit(local_attention, static_argnames=("half_width", "gaussian"))
CASES = {case.name: case for case in SCORES}


def close(got, want):
    assert_close(got, want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "gaussian"),
    [(name, False) for name in CASES if name != "location"] + [("dot", True), ("additive", True)],
)
def test_local_attention_is_luong_3_2(name, gaussian, x64):
    """Context, weights and gradients, with centers between keys, at both ends and outside."""
    rng = np.random.default_rng(0)
    case = CASES[name]
    q, k, v = case.qkv(rng, SIZES)
    parameters = case.parameters(rng, SIZES)
    centers = rng.uniform(-4, 27, (2, 17))
    centers[0, :4] = [0, 22, 5, -9]  # the last sees nothing
    dcontext = rng.normal(size=(2, 17, 6, 11))

    @jax.jit
    def run(q, k, v, centers, parameters):
        def call(q, k, v, centers, parameters):
            return local_attention(
                *(q, k, v, centers),
                half_width=3,
                score=case.build(*parameters),
                gaussian=gaussian,
                mask=masks.Padding(jnp.asarray(LENGTHS)),
                return_weights=True,
            )

        context, pull_back, weights = jax.vjp(call, q, k, v, centers, parameters, has_aux=True)
        return context, weights, pull_back(jnp.asarray(dcontext))

    context, weights, grads = run(q, k, v, centers, parameters)
    true, of_centers = oracle.local_attention(
        case.equation, q, k, v, centers, 3, parameters, gaussian=gaussian, lengths=LENGTHS
    )
    true_grads = true.pull_back(dcontext)
    close(context, true.context)
    close(weights, true.weights)
    np.testing.assert_array_equal(np.asarray(context)[0, 3], 0)
    close(grads[:3], true_grads[:3])
    close(grads[4], true_grads.parameters)
    if gaussian:
        close(grads[3], of_centers(true_grads.factor))
        assert (weights.sum(-1) < 0.99).mean() > 0.5  # not renormalized
    else:
        np.testing.assert_array_equal(grads[3], 0)


@functools.cache
def small():
    q, k, v = (x.astype("f") for x in CASES["dot"].qkv(np.random.default_rng(1), SIZES))
    return q, k, v, np.broadcast_to(np.arange(17), (2, 17))


@pytest.mark.parametrize(
    ("mask", "kv_lengths", "q_lengths"),
    [
        (masks.Padding(5), [5, 5], [17, 17]),
        (masks.Padding(5, 4), [5, 5], [4, 4]),
        (masks.Padding(jnp.array([9, 4]), jnp.array([0, 6])), [9, 4], [0, 6]),
    ],
)
def test_local_padding_of_keys_and_queries(mask, kv_lengths, q_lengths):
    q, k, v, centers = small()
    context = np.asarray(around(q, k, v, centers, half_width=3, mask=mask))
    for b in range(2):
        true, _ = oracle.local_attention(
            *(oracle.dot, q[b : b + 1], k[b : b + 1], v[b : b + 1], centers[b : b + 1], 3),
            gaussian=False,
            lengths=kv_lengths[b : b + 1],
        )
        real = q_lengths[b]
        np.testing.assert_allclose(context[b, :real], true.context[0, :real], atol=1e-5)
        np.testing.assert_array_equal(context[b, real:], 0)


def test_a_mask_may_depend_on_no_position():
    class All(masks.Mask):
        def visible(self, i, j):
            return jnp.ones((1,) * jnp.ndim(i), bool)

    operands = small()
    np.testing.assert_array_equal(
        around(*operands, half_width=3, mask=All()), around(*operands, half_width=3)
    )


def test_local_half_width_zero_is_the_nearest_key():
    q, k, v, centers = small()
    context = around(q, k, v, np.float32(centers), half_width=0, gaussian=True)
    np.testing.assert_allclose(context, np.repeat(v, 2, axis=2)[:, :17], rtol=1e-6)


def test_local_dropout():
    q, k, v, centers = small()
    identity = np.broadcast_to(np.eye(23, dtype="f")[None, :, None], (2, 23, 3, 23))

    def call(**options):
        attend = functools.partial(local_attention, return_weights=True, half_width=5, **options)
        return jax.jit(attend)(q, k, identity, centers)

    context, weights = call(dropout_rate=0.3, dropout_key=jax.random.key(0))
    _, whole = call()
    np.testing.assert_allclose(weights, whole, rtol=1e-6)  # shown as they were before
    dropped = np.moveaxis(np.asarray(context), 2, 1)
    visible = np.asarray(whole) > 0
    kept = dropped[visible] != 0
    assert abs(kept.mean() - 0.7) < 4 * np.sqrt(0.3 * 0.7 / kept.size)
    np.testing.assert_allclose(
        dropped[visible][kept], np.asarray(whole)[visible][kept] / 0.7, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("make", "picture"),
    [
        (lambda: {}, oracle.window(17, 23, 4, 2)),
        (lambda: {"mask": masks.Causal()}, oracle.window(17, 23, 4, 0)),
        (lambda: {"q_offset": 3}, oracle.window(17, 23, 4, 2, 3)),
        (
            lambda: {"q_offset": 3, "mask": masks.Causal(3)},
            oracle.window(17, 23, 4, 2, 3) & oracle.causal(17, 23, 3),
        ),
        (
            lambda: {"q_offset": 0, "mask": masks.Causal(1)},
            oracle.window(17, 23, 4, 2) & oracle.causal(17, 23, 1),
        ),
        (lambda: {"mask": masks.Causal(1)}, oracle.window(17, 23, 4, 0, 1)),
        (
            lambda: {"mask": np.arange(23) % 3 > 0},
            oracle.window(17, 23, 4, 2) & (np.arange(23) % 3 > 0)[None],
        ),
    ],
    ids=["alone", "causal", "offset", "causal_offset", "other_causal", "causal_alone", "array"],
)
def test_window_attention(make, picture):
    q, k, v, _ = small()
    context = in_window(q, k, v, window=(4, 2), **make(), implementation="dense")
    true = oracle.attention(oracle.scaled_dot, q, k, v, mask=picture)
    np.testing.assert_allclose(context, true.context, rtol=1e-5, atol=1e-5)


def test_a_causal_window_is_one_mask(monkeypatch):
    """So that `"tokamax"`, which takes no combination of masks, may serve it."""
    seen = []
    q, k, v, _ = small()
    refusal = cudnn.refusal

    def spy(call):
        seen.append(call.mask)
        return refusal(call)

    monkeypatch.setattr(cudnn, "refusal", spy)
    with compiling_for(Platform("cuda", "NVIDIA H100", (9, 0))):
        jax.eval_shape(lambda: window_attention(q, k, v, window=(4, 2), mask=masks.Causal()))
    assert seen == [masks.Window(4, 0)]


def test_a_window_may_be_any_pair():
    q, k, v, _ = small()
    want = window_attention(q, k, v, window=(2, 1))
    for window in ([2, 1], np.array([2, 1]), jnp.array([2, 1])):
        np.testing.assert_array_equal(window_attention(q, k, v, window=window), want)


def test_a_center_that_is_nan_is_not_hidden():
    q, k, v, centers = small()
    centers = centers.astype("f")
    centers[0, 1] = np.nan
    context = np.array(around(q, k, v, centers, gaussian=True))
    assert np.isnan(context[0, 1]).all()
    context[0, 1] = 0
    assert np.isfinite(context).all()


def test_half_precision_sums_over_queries_in_float32():
    """Of 512 queries that look at one place: bfloat16 would stop at 256."""
    q, x = jnp.ones((1, 512, 1, 2), jnp.bfloat16), jnp.ones((1, 3, 1, 2), jnp.bfloat16)

    def total(v):
        found = local_attention(q, 0 * x, v, centers=jnp.ones((1, 512)), half_width=0)
        return found.astype(jnp.float32).sum()

    assert jax.grad(total)(x)[0, :, 0, 0].tolist() == [0, 512, 0]
