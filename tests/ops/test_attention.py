"""The public functions: names, choices, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.extend.core import subjaxprs

from attnlab import masks, routes, scores
from attnlab.devices.platforms import Platform, compiling_for
from attnlab.ops import blockwise, dense, one_query
from attnlab.ops.attention import attention, attention_weights
from attnlab.ops.blockwise import few_queries
from attnlab.ops.hard import hard_attention
from attnlab.ops.local import local_attention
from attnlab.ops.named import (
    additive_attention,
    concat_attention,
    cosine_attention,
    dot_product_attention,
    general_attention,
    location_attention,
)
from attnlab.testing import Sizes
from tests import oracle
from tests.mechanism_cases import SCORES

SIZES = Sizes(batch=2, queries=5, keys=7)
CASES = {case.name: case for case in SCORES}
NAMED = {
    "dot": lambda q, k, v, **rest: dot_product_attention(q, k, v, scale=1.0, **rest),
    "scaled_dot": dot_product_attention,
    "general": general_attention,
    "cosine": lambda q, k, v, scale, **rest: cosine_attention(q, k, v, scale=scale, **rest),
    "additive": additive_attention,
    "concat": concat_attention,
    "location": lambda q, k, v, w, **rest: location_attention(q, v, w, **rest),
}


def arrays(name):
    rng = np.random.default_rng(0)
    case = CASES[name]
    made = (*case.qkv(rng, SIZES), *case.parameters(rng, SIZES))
    return tuple(jnp.asarray(x, jnp.float32) for x in made)


@pytest.mark.parametrize("name", NAMED)
def test_named_functions(name):
    """Each is `attention` with its score, and passes every keyword on."""
    q, k, v, *parameters = arrays(name)
    mask = np.random.default_rng(1).uniform(size=(2, 1, 5, 7)) < 0.6
    bias = np.random.default_rng(2).normal(size=(6, 5, 7))
    attend = jax.jit(functools.partial(NAMED[name], implementation="dense"))
    context = attend(q, k, v, *parameters, mask=mask, bias=bias.astype("float32"))
    true = oracle.attention(CASES[name].equation, q, k, v, parameters, mask=mask, bias=bias).context
    np.testing.assert_allclose(context, true, rtol=1e-4, atol=1e-5)


def test_unknown_keywords_are_refused():
    q, k, v = arrays("dot")
    with pytest.raises(TypeError, match="dropout"):
        dot_product_attention(q, k, v, dropout=0.1)


def test_no_batch_axis_and_two():
    q, k, v = map(np.asarray, arrays("scaled_dot"))
    attend = jax.jit(functools.partial(dot_product_attention, implementation="dense"))
    whole, one = attend(q, k, v), attend(q[0], k[0], v[0])
    np.testing.assert_allclose(one, whole[0], rtol=1e-5, atol=1e-6)
    mask = masks.Padding(np.array([[7], [3]]))
    two = attend(*(x[:, None] for x in (q, k, v)), mask=mask)
    assert two.shape == (2, 1, 5, 6, 11)
    np.testing.assert_allclose(two[0, 0], whole[0], rtol=1e-5, atol=1e-6)
    weights = jax.jit(attention_weights)(scores.Dot(), q[:, None], k[:, None], mask=mask)
    assert weights.shape == (2, 1, 6, 5, 7)
    np.testing.assert_array_equal(weights[1, ..., 3:], 0)


@pytest.mark.parametrize(
    ("implementation", "num_queries", "num_keys", "used"),
    [
        (None, 33, 33, "blockwise"),
        (None, 32, 2048, "dense"),
        (None, 2048, 1, "dense"),
        (None, 1, 2048, "one_query"),
        (None, 1, 2049, "few_queries"),
        (None, 9, 2049, "blockwise"),
        ("blockwise", 1, 2049, "blockwise"),
        ("dense", 3000, 3000, "dense"),
    ],
)
def test_the_named_implementation_is_used(implementation, num_queries, num_keys, used, monkeypatch):
    seen = []
    for engine in (dense, blockwise, few_queries, one_query):

        def spy(*args, original=engine.attend, name=engine.__name__, **kwargs):
            seen.append(name.rpartition(".")[2])
            return original(*args, **kwargs)

        monkeypatch.setattr(engine, "attend", spy)
    q, k = (jnp.zeros((length, 2, 2)) for length in (num_queries, num_keys))
    jax.eval_shape(functools.partial(dot_product_attention, implementation=implementation), q, k, k)
    assert seen == [used]


def dot_generals(jaxpr):
    """All matrix products in a program, those in loops and branches too."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield eqn
    for inner in subjaxprs(jaxpr):
        yield from dot_generals(inner)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("name", ["scaled_dot", "general", "cosine", "concat", "location"])
def test_precision_is_of_every_product(name, implementation):
    def loss(*args, precision="highest"):
        case = CASES[name]
        q, k, v, *parameters = args
        context = attention(
            case.build(*parameters),
            *(q, k, v),
            implementation=implementation,
            precision=precision,
        )
        return context.sum()

    args = arrays(name)
    products = list(dot_generals(jax.make_jaxpr(jax.grad(loss, range(len(args))))(*args).jaxpr))
    assert len(products) >= 4
    for eqn in products:
        assert eqn.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2, eqn


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_products_of_low_precision_are_summed_in_float32(implementation):
    q, k, v = (x.astype(jnp.bfloat16) for x in arrays("scaled_dot"))
    call = functools.partial(dot_product_attention, implementation=implementation)
    products = list(dot_generals(jax.make_jaxpr(call)(q, k, v).jaxpr))
    assert len(products) >= 2
    for eqn in products:
        assert [x.aval.dtype for x in eqn.invars + eqn.outvars] == ["bfloat16"] * 2 + ["float32"]


@pytest.mark.parametrize(
    "call",
    [
        functools.partial(attention, scores.Dot()),
        lambda q, k, v: attention_weights(scores.Dot(), q, k),
        hard_attention,
        lambda q, k, v: local_attention(q, k, v, np.zeros(3), half_width=np.int64(1)),
    ],
    ids=["attention", "weights", "hard", "local"],
)
def test_arrays_of_numpy_have_the_dtype_that_jax_gives_them(call):
    q, k, v = np.random.default_rng(0).normal(size=(3, 3, 1, 2))  # float64
    in_jax = [jnp.asarray(x) for x in (q, k, v)]
    given = (in_jax, (q, k, v), (q, *in_jax[1:]))
    want, of_numpy, of_both = jax.jit(lambda: [call(*arrays) for arrays in given])()
    jax.tree.map(np.testing.assert_array_equal, of_numpy, want)
    jax.tree.map(np.testing.assert_array_equal, of_both, want)


def test_sizes_may_be_symbols_of_an_exported_program():
    """A batch and a length that are known when the program is called; of LSH the batch alone."""
    batch, length = export.symbolic_shape("b, t")

    def exact(q, k, v):
        lengths = jnp.minimum(3 + jnp.arange(q.shape[0]), q.shape[1])
        mask = masks.Padding(lengths) & (q[:, None, None, :, 0, 0] > 0) & masks.Window(3, 1)
        return [
            attention(score, q, k, v, mask=mask & masks.Causal(), implementation=way)
            for way in (None, "dense")
            for score in (scores.Dot(), scores.Additive(jnp.ones(4)))
        ]

    def lsh(q, k, v):
        return [routes.LSH(num_buckets=4, chunk_size=8)(scores.Dot(), q, q, v)]

    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 23, 2, 4)), jnp.float32)
    for function, shape in ((exact, (batch, length)), (lsh, (batch, 23))):
        operands = [jax.ShapeDtypeStruct((*shape, 2, 4), jnp.float32)] * 3
        got = export.export(jax.jit(function))(*operands).call(*x)
        np.testing.assert_allclose(got, jax.jit(function)(*x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="sorts a length that is known .*one program a length"):
        export.export(jax.jit(lsh))(*[jax.ShapeDtypeStruct((2, length, 2, 4), "float32")] * 3)


@pytest.mark.parametrize("route", [routes.Window(3, 2), routes.LSH(num_buckets=4, chunk_size=8)])
def test_a_symbolic_batch_is_exported_for_hopper_too(route, monkeypatch):
    """Where a kernel, which needs its number of rows, is chosen for a batch that is known."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    x = jax.ShapeDtypeStruct((*export.symbolic_shape("b"), 640, 2, 64), jnp.bfloat16)
    program = jax.jit(lambda x: route(scores.Dot(), x, x, x))
    with compiling_for(Platform("cuda", "", (9, 0))):
        [context] = export.export(program, platforms=["cuda"])(x).out_avals
    assert context.shape == x.shape
