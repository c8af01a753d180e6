"""Luong's local attention as a module against the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import CosineScore, LocalAttention, masks, scores
from tests import oracle
from tests.modules.reference import apply, float64, init
from tests.trees import assert_close

pytestmark = pytest.mark.usefixtures("x64")

B, T, S, DQ, DK, DV = 2, 13, 17, 3, 5, 7
LENGTHS = np.array([S, 11])
F64 = {"param_dtype": jnp.float64}
EXACT = {"rtol": 1e-11, "atol": 1e-13}


def arrays(key_width=DK, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (B, T, DQ), (B, S, key_width), (B, S, DV)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


def expected(
    params, inputs, centers, *, gaussian, lengths, score=oracle.general, names=("kernel",)
):
    q, k, v = (x[:, :, None] for x in float64(inputs))
    parameters = [np.asarray(params["score"][name]) for name in names]
    found, _ = oracle.local_attention(
        score, q, k, v, centers, 2, parameters, gaussian=gaussian, lengths=lengths
    )
    return found.context[:, :, 0], found.weights[:, 0]


def predicted_centers(params, query, lengths):
    """Luong et al. 2015, eq. 9: p_t = S·sigmoid(v_pᵀ tanh(W_p h_t))."""
    p, query = float64((params, query))
    logit = np.tanh(query @ p["center_hidden"]["kernel"]) @ p["center"]["kernel"]
    return np.asarray(lengths)[:, None] / (1 + np.exp(-logit[..., 0]))


@pytest.mark.parametrize("padded", [False, True])
def test_local_p(padded):
    module, inputs = LocalAttention(half_width=2, features=11, **F64), arrays()
    variables = init(module, *inputs)
    lengths = LENGTHS if padded else np.full(B, S)
    mask = masks.Padding(jnp.asarray(LENGTHS)) if padded else None
    got = apply(module, variables, *inputs, mask=mask, return_weights=True)
    centers = predicted_centers(variables["params"], inputs[0], lengths)
    assert np.ptp(centers) > 2
    true = expected(variables["params"], inputs, centers, gaussian=True, lengths=lengths)
    assert_close(got, true, **EXACT)
    assert (got[1].sum(-1) < 0.999).any(), "local-p is not renormalized"


@pytest.mark.parametrize("padded", [False, True])
def test_local_m(padded):
    module, inputs = LocalAttention(predictive=False, half_width=2, **F64), arrays()
    variables = init(module, *inputs)
    assert set(variables["params"]) == {"score"}
    lengths = LENGTHS if padded else np.full(B, S)
    mask = masks.Padding(jnp.asarray(LENGTHS)) if padded else None
    got = apply(module, variables, *inputs, mask=mask, return_weights=True)
    centers = np.broadcast_to(np.arange(T), (B, T))
    true = expected(variables["params"], inputs, centers, gaussian=False, lengths=lengths)
    assert_close(got, true, **EXACT)


@pytest.mark.parametrize(
    ("score", "equation", "names"),
    [(scores.Dot(1.0), oracle.dot, ()), (CosineScore(**F64), oracle.cosine, ("scale",))],
    ids=["dot", "cosine"],
)
def test_other_scores(score, equation, names):
    module, inputs = LocalAttention(predictive=False, half_width=2, score=score), arrays(DQ)
    variables = init(module, *inputs)
    got = apply(module, variables, *inputs, return_weights=True)
    centers = np.broadcast_to(np.arange(T), (B, T))
    options = {"lengths": np.full(B, S), "score": equation, "names": names}
    true = expected(variables.get("params"), inputs, centers, gaussian=False, **options)
    assert_close(got, true, **EXACT)


@pytest.mark.parametrize("predictive", [False, True])
def test_a_decoder_that_takes_one_step_at_a_time(predictive):
    module = LocalAttention(predictive=predictive, half_width=2, **F64)
    query, key, value = arrays()
    variables = init(module, query, key, value)
    whole = apply(module, variables, query, key, value)
    step = jax.jit(lambda x, t: module.apply(variables, x, key, value, steps=t))
    for t in range(T):
        one = step(query[:, t : t + 1], jnp.array([t]))
        np.testing.assert_allclose(one[:, 0], whole[:, t], rtol=1e-6, atol=1e-7)


def test_steps_of_each_example():
    """Steps [*B, T], and [T] for all examples alike."""
    module, inputs = LocalAttention(predictive=False, half_width=2, **F64), arrays()
    variables = init(module, *inputs)
    steps = np.stack([np.arange(T), np.arange(T) + 3])
    got = apply(module, variables, *inputs, steps=jnp.asarray(steps), return_weights=True)
    true = expected(variables["params"], inputs, steps, gaussian=False, lengths=np.full(B, S))
    assert_close(got, true, **EXACT)
    behind = masks.Causal(jnp.array([0, 3]))  # says where the queries stand, as for other windows
    got = apply(module, variables, *inputs, mask=behind)
    there = apply(module, variables, *inputs, mask=behind, steps=jnp.asarray(steps))
    np.testing.assert_array_equal(got, there)


@pytest.mark.parametrize("first", [True, False])
def test_local_p_knows_the_keys_of_any_padding(first):
    """Real keys at the front, as `Padding` says them too, and after padding."""
    module, (query, key, value) = LocalAttention(half_width=2, **F64), arrays()
    variables = init(module, query, key, value)
    lengths = np.asarray(LENGTHS)[:, None]
    real = np.arange(S) < lengths if first else np.arange(S) >= S - lengths
    got = apply(module, variables, query, key, value, mask=masks.from_padding(jnp.asarray(real)))
    same = masks.Padding(jnp.asarray(LENGTHS if first else np.full(B, S)))
    if not first:
        same &= masks.from_padding(jnp.asarray(real))
    np.testing.assert_array_equal(got, apply(module, variables, query, key, value, mask=same))


def test_masks_of_one_query_and_one_key():
    module, (query, key, value) = LocalAttention(predictive=False, half_width=2, **F64), arrays()
    variables = init(module, query, key, value)
    whole = apply(module, variables, query, key, value)
    one_example = np.arange(B)[:, None, None, None] == 0
    got = apply(module, variables, query, key, value, mask=jnp.asarray(one_example))
    np.testing.assert_array_equal(got, np.where(one_example[:, :, 0], whole, 0))
    x = query[:, :1], key[:, :1], value[:, :1]
    alone = apply(module, variables, *x)
    seen = apply(module, variables, *x, mask=masks.from_padding(jnp.ones((B, 1), bool)))
    np.testing.assert_array_equal(seen, alone)


def test_the_time_of_one_query_may_be_a_scalar():
    query, *_ = arrays()
    given = LocalAttention(predictive=False, half_width=2, score=scores.Dot(1.0), **F64)
    one = query[:, :1]
    at = [given.apply({}, one, query, steps=steps) for steps in (jnp.int32(2), jnp.array([2]))]
    np.testing.assert_array_equal(*at)
