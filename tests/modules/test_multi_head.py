"""Multi-head attention against the reference, in float64, so that only the equations count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import (
    AdditiveScore,
    ConcatScore,
    CosineScore,
    GeneralScore,
    LocationScore,
    MultiHeadAttention,
    masks,
    routes,
    scores,
)
from tests import oracle
from tests.modules.reference import apply, init, multi_head

pytestmark = pytest.mark.usefixtures("x64")

B, T, S, D = 2, 5, 7, 12
F64 = {"param_dtype": jnp.float64}
# Rotary turns in float32, whatever the inputs.
EXACT, FLOAT32 = {"rtol": 1e-11, "atol": 1e-13}, {"rtol": 1e-5, "atol": 1e-5}
DENSE = routes.AllPairs("dense")  # compiles fastest


def arrays(seed=0):
    """Query, key and value of different widths."""
    rng = np.random.default_rng(seed)
    shapes = (B, T, D), (B, S, 11), (B, S, 13)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


def mha(num_heads=3, route=DENSE, **options):
    return MultiHeadAttention(num_heads, route=route, **(F64 | options))


def check(module, inputs, *, tolerance=EXACT, options=None, **reference):
    """Result and weights are the reference's."""
    variables = init(module, *inputs)
    got = apply(module, variables, *inputs, return_weights=True, **(options or {}))
    query, key, value = (*inputs, *inputs[-1:] * 2)[:3]
    true = multi_head(variables["params"], query, key, value, **reference)
    for a, b in zip(got, true, strict=True):
        assert a.dtype == jnp.float64
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("inputs", [arrays()[:1], arrays()[:2], arrays()], ids=["x", "qk", "qkv"])
def test_self_and_cross_attention(inputs):
    check(mha(), inputs)


@pytest.mark.parametrize(
    ("value", "module", "learned"),
    [
        (scores.Cosine(3.0), CosineScore(), {"score": {"scale": np.full(3, 3.0)}}),
        (scores.Cosine(jnp.arange(3.0)), CosineScore(), {"score": {"scale": jnp.arange(3.0)}}),
    ],
    ids=["cosine", "array"],
)
def test_a_value_is_a_score_where_a_module_is(value, module, learned):
    inputs = arrays()
    variables = init(mha(score=value), *inputs)
    assert "score" not in variables["params"]
    true = apply(mha(score=module), {"params": variables["params"] | learned}, *inputs)
    np.testing.assert_allclose(apply(mha(score=value), variables, *inputs), true, **EXACT)


@pytest.mark.parametrize("implementation", ["dense", None])
def test_causal_padded_and_biased(implementation):
    query, key, value = arrays()
    lengths = np.array([S, 3])
    bias = np.random.default_rng(1).normal(size=(1, 3, T, S))
    mask = np.stack([oracle.padding(T, S, length) for length in lengths])
    check(
        mha(route=routes.AllPairs(implementation)),
        (query, key, value),
        options={
            "mask": masks.Causal() & masks.Padding(jnp.asarray(lengths)),
            "bias": jnp.asarray(bias),
        },
        mask=(mask & oracle.causal(T, S))[:, None],
        bias=bias,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 6, "num_kv_heads": 2},
        {"num_heads": 6, "num_kv_heads": 1},
        {"qkv_features": 15},
        {"out_features": 17},
        {"use_bias": False},
    ],
    ids=str,
)
def test_sizes(options):
    check(mha(**options), arrays())


def test_rotary_positions():
    check(mha(rotary=True), arrays(), turn=True, tolerance=FLOAT32)
    (query, *_), variables = arrays(), init(mha(rotary=True), arrays()[0])
    true, same, slower = (
        apply(mha(rotary=rotary), variables, query) for rotary in (True, 10_000.0, 500_000.0)
    )
    np.testing.assert_array_equal(same, true)
    assert np.abs(slower - true).max() > 1e-3
    at = [apply(mha(rotary=True), variables, query, mask=masks.Causal(x)) for x in ([1], 1)]
    np.testing.assert_allclose(*at, **EXACT)


def test_normalized_then_turned():
    check(
        mha(num_heads=6, num_kv_heads=2, normalize_qk=True, rotary=True),
        arrays()[:1],
        normalize_qk=True,
        turn=True,
        tolerance=FLOAT32,
    )


# name: (score, equation, its parameters)
SCORES = {
    "dot": (scores.Dot(1.0), oracle.dot, ()),
    "general": (GeneralScore(**F64), oracle.general, ("kernel",)),
    "cosine": (CosineScore(**F64), oracle.cosine, ("scale",)),
    "additive": (AdditiveScore(**F64), oracle.additive, ("kernel",)),
    "normalized": (
        AdditiveScore(normalize=True, **F64),
        oracle.normalized_additive,
        ("kernel", "gain", "bias"),
    ),
    "concat": (
        ConcatScore(5, **F64),
        oracle.concat,
        ("kernel", "query_kernel", "key_kernel"),
    ),
    "location": (LocationScore(S + 2, **F64), oracle.location, ("kernel",)),
}


@pytest.mark.parametrize("name", SCORES)
def test_every_score_with_grouped_heads(name):
    score, equation, parameters = SCORES[name]
    module = mha(num_heads=6, num_kv_heads=2, score=score)
    check(module, arrays(), score=equation, score_parameters=parameters)


@pytest.mark.parametrize("implementation", ["dense", None])
def test_window_route(implementation):
    check(
        mha(route=routes.Window(2, 1, implementation)),
        arrays()[:1],
        options={"mask": masks.Padding(jnp.array([T, 3]))},
        mask=oracle.window(T, T, 2, 1)
        & np.stack([oracle.padding(T, T, n) for n in (T, 3)])[:, None],
    )


def test_the_dropout_rate_may_be_an_array():
    x, rngs = jnp.ones((B, T, D)), {"dropout": jax.random.key(0)}
    variables, rates = init(mha(), x), (0.5, jnp.float32(0.5), np.float64(0.5))

    @jax.jit
    def run(variables):
        return [
            mha(dropout_rate=rate).apply(variables, x, deterministic=False, rngs=rngs)
            for rate in rates
        ]

    number, *arrays = run(variables)
    for got in arrays:
        np.testing.assert_array_equal(got, number)
