"""Scores against the papers' equations, through the plain implementation, in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import masks, scores
from attnlab.ops.attention import attention, attention_weights
from attnlab.testing import Sizes
from tests import oracle
from tests.mechanism_cases import SCORES
from tests.trees import assert_close

EVERY = pytest.mark.parametrize("case", SCORES, ids=lambda case: case.name)
SIZES = Sizes(batch=2)
BY_NAME = {case.name: case for case in SCORES}


@jax.jit
def prepared(score, q, k):
    return score.prepare(q, k)


@jax.jit
def logits_of(score, q, k):
    made, q, k = score.prepare(q, k)
    return made.logits(q, k)


@EVERY
@pytest.mark.parametrize("per_head", [True, False], ids=["per_head", "shared"])
def test_context_weights_and_gradients(case, per_head, x64):
    rng = np.random.default_rng(0)
    q, k, v = case.qkv(rng, SIZES)
    parameters = case.parameters(rng, SIZES, per_head=per_head)
    dcontext = rng.normal(size=(2, 17, 6, 11))

    @jax.jit
    def run(q, k, v, parameters):
        context, pull_back = jax.vjp(
            lambda q, k, v, p: attention(case.build(*p), q, k, v, implementation="dense"),
            *(q, k, v, parameters),
        )
        weights = attention_weights(case.build(*parameters), q, k)
        return context, weights, pull_back(jnp.asarray(dcontext))

    context, weights, grads = run(q, k, v, parameters)
    true = oracle.attention(case.equation, q, k, v, parameters)
    true_grads = true.pull_back(dcontext)
    np.testing.assert_allclose(context, true.context, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(weights, true.weights, rtol=1e-12, atol=1e-14)
    assert_close(grads[:3], true_grads[:3], rtol=1e-10, atol=1e-12)
    assert_close(grads[3], true_grads.parameters, rtol=1e-10, atol=1e-12)


@EVERY
def test_prepare_leaves_one_of_two_meetings(case):
    rng = np.random.default_rng(2)
    arrays = (rng.normal(size=(n, w)) for n, w in ((5, 7), (3, case.key_width or 7)))
    score = case.build(*case.parameters(rng, SIZES, per_head=False))
    once, q, k = prepared(score, *(x.astype("f") for x in arrays))
    assert isinstance(once, scores.Dot | scores.Additive)
    again, q_again, k_again = once.prepare(q, k)
    assert again == once and q_again.shape == q.shape and k_again.shape == k.shape
    np.testing.assert_array_equal(q_again, q)
    assert jax.eval_shape(once.logits, q, k).shape == (5, 3)


@EVERY
def test_low_precision_logits_are_float32(case):
    rng = np.random.default_rng(3)
    q, k, _ = (jnp.asarray(x, jnp.bfloat16) for x in case.qkv(rng, SIZES))
    score = case.build(*(jnp.asarray(p, jnp.bfloat16) for p in case.parameters(rng, SIZES)))
    assert jax.eval_shape(attention_weights, score, q, k).dtype == jnp.float32


def test_scores_are_pytrees_of_their_parameters():
    for case in SCORES:
        parameters = case.parameters(np.random.default_rng(0), SIZES)
        leaves = jax.tree.leaves(case.build(*parameters))
        assert len(leaves) == len(parameters), case.name
    assert jax.tree.structure(scores.Dot(1.0)) != jax.tree.structure(scores.Dot())
    assert type(scores.Dot(jnp.float32(0.5)).scale) is float  # static, so it must have a hash


def test_cosine_of_a_zero_vector_is_zero_with_gradient_zero():
    q = np.array([0, 1], "f").reshape(1, 2, 1, 1).repeat(3, -1)
    k = jnp.asarray(np.random.default_rng(6).normal(size=(1, 5, 1, 3)), jnp.float32)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def loss(q, k):
        weights = attention_weights(scores.Cosine(), q, k)
        return (weights * jnp.arange(5.0).reshape(1, 1, 1, 5)).sum(), weights

    (_, weights), (dq, dk) = loss(q, k)
    np.testing.assert_allclose(weights[0, 0, 0], 1 / 5, rtol=1e-6)
    np.testing.assert_array_equal(dq[0, 0], 0)
    assert np.isfinite(dq).all() and np.isfinite(dk).all() and np.abs(dq[0, 1]).max() > 0


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("offset", [None, -3])
def test_location_ignores_keys_beyond_its_last(implementation, offset, x64):
    """As Luong et al. 2015, §3.1; with offset −3 the first queries see nothing at all."""
    rng = np.random.default_rng(8)
    q, k, v = BY_NAME["location"].qkv(rng, SIZES)
    w, dcontext = rng.normal(size=(6, 7, 19)), rng.normal(size=(2, 17, 6, 11))
    mask = None if offset is None else masks.Causal(offset)
    seen = np.ones((17, 23), bool) if offset is None else oracle.causal(17, 23, offset)
    true = oracle.attention(
        oracle.location,
        q,
        k,
        v,
        (np.pad(w, ((0, 0), (0, 0), (0, 4))),),
        mask=seen & (np.arange(23) < 19),
    )
    dq, _, dv, (dw,), _ = true.pull_back(dcontext)[:5]

    @jax.jit
    def run(q, v, w):
        context, pull_back = jax.vjp(
            lambda q, v, w: attention(
                scores.Location(w), q, v, v, mask=mask, implementation=implementation
            ),
            *(q, v, w),
        )
        weights = attention_weights(scores.Location(w), q, v, mask=mask)
        return (context, weights, *pull_back(jnp.asarray(dcontext)))

    wanted = true.context, true.weights, dq, dv, dw[..., :19]
    assert_close(run(q, v, w), wanted, rtol=1e-10, atol=1e-12)


def test_every_score_of_the_library_is_tested():
    classes = {type(case.build(*([jnp.ones(())] * len(case.shapes(SIZES))))) for case in SCORES}
    named = [getattr(scores, name) for name in scores.__all__]
    public = {x for x in named if isinstance(x, type)} - {scores.Score}
    assert classes == public
    assert all(dataclasses.is_dataclass(cls) for cls in classes)


def test_cosine_of_short_vectors_is_that_of_long_ones():
    q, k = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("f")
    want = np.asarray(logits_of(scores.Cosine(3.0), q, k))
    assert abs(want).max() > 1
    small = np.float32(1e-15) * q
    np.testing.assert_allclose(logits_of(scores.Cosine(3.0), small, k), want, rtol=1e-5)


def test_dot_rounds_no_query_of_half_precision():
    """1/√24 is no power of 2: to scale q in bfloat16 would round it once more."""
    q, k = np.random.default_rng(0).normal(size=(2, 5, 24)).astype(jnp.bfloat16)
    want = np.asarray(q, np.float64) @ np.asarray(k, np.float64).T / np.sqrt(24)
    np.testing.assert_allclose(logits_of(scores.Dot(), q, k), want, rtol=1e-5, atol=1e-6)


def test_dot_of_float16_takes_a_large_scale():
    """q · 512 would be more than float16 holds, q·k · 512 is not."""
    q, k = np.full((2, 5, 24), 200, np.float16), np.full((2, 5, 24), 1e-3, np.float16)
    score, *prepared = scores.Dot(512.0).prepare(*map(jnp.asarray, (q, k)))
    want = 512 * np.einsum("bth,bsh->bts", q.astype(float), k.astype(float))
    np.testing.assert_allclose(score.logits(*prepared), want, rtol=1e-3)


def test_cosine_rounds_vectors_of_half_precision_once():
    x = np.random.default_rng(0).normal(size=(5, 600)).astype(jnp.bfloat16)
    _, unit, _ = prepared(scores.Cosine(), x, x)
    want = np.asarray(x, np.float64)
    want /= np.linalg.norm(want, axis=-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(unit, np.float64), want, rtol=1.001 * 2**-8)
