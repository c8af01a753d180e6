"""The single-head modules against the oracle, in float64, so that only the equations count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import (
    AdditiveAttention,
    ConcatAttention,
    CosineScore,
    LocationAttention,
    MultiplicativeAttention,
    masks,
    routes,
    scores,
)
from tests import oracle
from tests.modules.reference import apply, float64, init
from tests.trees import assert_close

pytestmark = pytest.mark.usefixtures("x64")

B, T, S, DQ, DK, DV = 2, 5, 7, 3, 11, 13
F64 = {"param_dtype": jnp.float64}
DENSE = {"implementation": "dense"} | F64  # compiles fastest


def projected(p, q, k):
    return q @ p["query"]["kernel"], k @ p["key"]["kernel"]


def unprojected(p, q, k):
    return q, k


# name: (module, width of the keys, queries and keys that the score meets, score, its parameters)
CASES = {
    "additive": (AdditiveAttention(17, **DENSE), DK, projected, oracle.additive, ("kernel",)),
    "normalized": (
        AdditiveAttention(17, normalize=True, **DENSE),
        DK,
        projected,
        oracle.normalized_additive,
        ("kernel", "gain", "bias"),
    ),
    "general": (MultiplicativeAttention(**DENSE), DK, unprojected, oracle.general, ("kernel",)),
    "dot": (MultiplicativeAttention(scores.Dot(1.0), **DENSE), DQ, unprojected, oracle.dot, ()),
    "scaled_dot": (
        MultiplicativeAttention(scores.Dot(), **DENSE),
        DQ,
        unprojected,
        oracle.scaled_dot,
        (),
    ),
    "cosine": (
        MultiplicativeAttention(CosineScore(**F64)),
        DQ,
        unprojected,
        oracle.cosine,
        ("scale",),
    ),
    "britz": (
        MultiplicativeAttention(scores.Dot(1.0), features=17, **DENSE),
        DK,
        projected,
        oracle.dot,
        (),
    ),
    "concat": (
        ConcatAttention(17, **DENSE),
        DK,
        unprojected,
        oracle.concat,
        ("kernel", "query_kernel", "key_kernel"),
    ),
    "location": (
        LocationAttention(max_length=S + 2, **DENSE),
        DK,
        unprojected,
        oracle.location,
        ("kernel",),
    ),
}
EVERY = pytest.mark.parametrize("name", CASES)


def arrays(key_width=DK, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (B, T, DQ), (B, S, key_width), (B, S, DV)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


def expected(name, params, query, key, value, **options):
    _, _, meet, score, parameter_names = CASES[name]
    params, query, key, value = float64((params, query, key, value))
    q, k = meet(params, query, key)
    parameters = [params["score"][parameter] for parameter in parameter_names]
    found = oracle.attention(
        score, q[:, :, None], k[:, :, None], value[:, :, None], parameters, **options
    )
    return found.context[:, :, 0], found.weights[:, 0]


@EVERY
def test_context_and_weights_are_the_papers(name):
    module, key_width, *_ = CASES[name]
    inputs = arrays(key_width)
    lengths = np.array([S, 3])
    bias = np.random.default_rng(1).normal(size=(1, 1, T, S))
    variables = init(module, *inputs)
    options = {"mask": masks.Padding(jnp.asarray(lengths)), "bias": jnp.asarray(bias)}
    got = apply(module, variables, *inputs, return_weights=True, **options)
    mask = np.stack([oracle.padding(T, S, length) for length in lengths])[:, None]
    true = expected(name, variables.get("params", {}), *inputs, mask=mask, bias=bias)
    assert_close(got, true, rtol=1e-11, atol=1e-13)


def test_key_and_value_default_as_in_the_papers():
    module = AdditiveAttention(5, **DENSE)
    x, key = arrays(DQ)[:2]
    variables = init(module, x)
    of_self = apply(module, variables, x)
    np.testing.assert_array_equal(of_self, apply(module, variables, x, x, x))
    of_keys = apply(module, variables, x, key)
    np.testing.assert_array_equal(of_keys, apply(module, variables, x, key, key))
    assert np.abs(of_self - of_keys).max() > 1e-3


@pytest.mark.parametrize("batch", [(), (3, 2)])
def test_any_batch_axes(batch):
    module = AdditiveAttention(5, **DENSE)
    rng = np.random.default_rng(3)
    query, key = rng.normal(size=(*batch, T, DQ)), rng.normal(size=(*batch, S, DK))
    variables = init(module, query, key)
    context, weights = apply(module, variables, query, key, return_weights=True)
    assert context.shape == (*batch, T, DK) and weights.shape == (*batch, T, S)
    flat = (query.reshape(-1, T, DQ), key.reshape(-1, S, DK))
    np.testing.assert_allclose(context.reshape(-1, T, DK), apply(module, variables, *flat))


def test_weights_that_a_route_does_not_sow_are_not_computed():
    calls = []

    def mean(q, k, v, **options):
        calls.append(v.shape[-1])
        return jnp.broadcast_to(v.mean(-3, keepdims=True), (*q.shape[:-1], v.shape[-1]))

    module = MultiplicativeAttention(scores.Dot(), features=17, route=routes.Function(mean))
    variables = module.init(jax.random.key(0), *arrays())
    calls.clear()
    _, sown = module.apply(variables, *arrays(), mutable=["intermediates"])
    assert calls == [DV] and not sown.get("intermediates")


def test_the_implementation_is_used():
    def largest_array(implementation):
        module = MultiplicativeAttention(scores.Dot(), implementation=implementation)
        long = jnp.ones((1, 1031, DQ))
        jaxpr = jax.make_jaxpr(lambda x: module.apply({}, x))(long)
        return "1031,1031" in str(jaxpr)

    assert largest_array("dense") and not largest_array("blockwise")
