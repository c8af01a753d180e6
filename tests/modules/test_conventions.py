"""What a Flax user expects of every module: one table of them all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import (
    AdditiveAttention,
    AdditiveScore,
    ConcatAttention,
    ConcatScore,
    CosineScore,
    GeneralScore,
    LocalAttention,
    LocationAttention,
    LSHSelfAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    RelativePositionBias,
    routes,
    scores,
)
from tests.modules.reference import apply, init
from tests.nnx.as_linen import AsLinen

B, T, D = 2, 7, 6
ROUTE = routes.LSH(num_hashes=2, num_buckets=2, chunk_size=4)


@pytest.mark.parametrize(
    "make", [MultiHeadAttention, LSHSelfAttention, LocalAttention, RelativePositionBias, routes.LSH]
)
def test_no_two_sizes_can_change_places(make):
    """`torch.nn.MultiheadAttention(64, 8)` has 8 heads; here that would be 64 of width 1."""
    with pytest.raises(TypeError, match="positional arguments? but 3 were given"):
        make(64, 8)


# module, and the name and shape of each of its parameters for an input [2, 7, 6]
TABLE = {
    "additive": (
        AdditiveAttention(5),
        {"query/kernel": (6, 5), "key/kernel": (6, 5), "score/kernel": (1, 5)},
    ),
    "additive_normalized": (
        AdditiveAttention(5, normalize=True),
        {
            "query/kernel": (6, 5),
            "key/kernel": (6, 5),
            "score/kernel": (1, 5),
            "score/gain": (1,),
            "score/bias": (1, 5),
        },
    ),
    "general": (MultiplicativeAttention(), {"score/kernel": (1, 6, 6)}),
    "dot": (MultiplicativeAttention(scores.Dot()), {}),
    "cosine": (MultiplicativeAttention(CosineScore()), {"score/scale": (1,)}),
    "britz": (
        MultiplicativeAttention(scores.Dot(), features=5),
        {"query/kernel": (6, 5), "key/kernel": (6, 5)},
    ),
    "concat": (
        ConcatAttention(5),
        {
            "score/kernel": (1, 5),
            "score/query_kernel": (1, 6, 5),
            "score/key_kernel": (1, 6, 5),
        },
    ),
    "location": (LocationAttention(11), {"score/kernel": (1, 6, 11)}),
    "local_m": (LocalAttention(predictive=False, half_width=2), {"score/kernel": (1, 6, 6)}),
    "local_p": (
        LocalAttention(half_width=2, features=5),
        {"score/kernel": (1, 6, 6), "center_hidden/kernel": (6, 5), "center/kernel": (5, 1)},
    ),
    "multi_head": (
        MultiHeadAttention(2, num_kv_heads=1, qkv_features=10, out_features=3, normalize_qk=True),
        {
            "query/kernel": (6, 2, 5),
            "query/bias": (2, 5),
            "key/kernel": (6, 1, 5),
            "key/bias": (1, 5),
            "value/kernel": (6, 1, 5),
            "value/bias": (1, 5),
            "query_norm/scale": (5,),
            "key_norm/scale": (5,),
            "out/kernel": (2, 5, 3),
            "out/bias": (3,),
        },
    ),
    "multi_head_additive": (
        MultiHeadAttention(2, score=AdditiveScore(), use_bias=False),
        {
            "query/kernel": (6, 2, 3),
            "key/kernel": (6, 2, 3),
            "value/kernel": (6, 2, 3),
            "score/kernel": (2, 3),
            "out/kernel": (2, 3, 6),
        },
    ),
    "multi_head_concat": (
        MultiHeadAttention(2, num_kv_heads=1, score=ConcatScore(5), use_bias=False),
        {
            "query/kernel": (6, 2, 3),
            "key/kernel": (6, 1, 3),
            "value/kernel": (6, 1, 3),
            "score/kernel": (2, 5),
            "score/query_kernel": (2, 3, 5),
            "score/key_kernel": (2, 3, 5),
            "out/kernel": (2, 3, 6),
        },
    ),
    "lsh": (
        LSHSelfAttention(2, route=ROUTE, normalize_qk=True),
        {
            "query_key/kernel": (6, 2, 3),
            "query_key_norm/scale": (3,),
            "value/kernel": (6, 2, 3),
            "out/kernel": (2, 3, 6),
        },
    ),
}
TABLE |= {f"nnx_{name}": (AsLinen(module), expected) for name, (module, expected) in TABLE.items()}
MODULES = {name: module for name, (module, _) in TABLE.items()}
EVERY = pytest.mark.parametrize("name", MODULES)
LINEN = [name for name in TABLE if not name.startswith("nnx_")]
DENSE = {name for name in TABLE if not name.endswith(("local_m", "local_p", "lsh"))}


def dense(name):
    """The module with the implementation that compiles fastest."""
    module = MODULES[name]
    if name not in DENSE:
        return module
    if "multi_head" in name:
        return module.clone(route=routes.AllPairs("dense"))
    return module.clone(implementation="dense")


def inputs(name, dtype=jnp.float32):
    """Once for self-attention; twice where the module wants keys."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), dtype)
    return (x, x) if "local_" in name else (x,)


def flat(tree):
    return {"/".join(key.key for key in path): x for path, x in jax.tree.leaves_with_path(tree)}


@EVERY
def test_parameter_names_and_shapes(name):
    module, expected = TABLE[name]
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs(name)))
    found = flat(shapes.get("params", {}))
    assert {path: x.shape for path, x in found.items()} == expected
    assert set(shapes) <= {"params"}
    assert all(x.dtype == jnp.float32 for x in found.values())


@EVERY
def test_dtype_computes_and_param_dtype_stores(name):
    """bfloat16 computation of float32 parameters and inputs, near that in float32."""
    module, x = dense(name), inputs(name)
    variables = init(module, *x)
    half = module.clone(dtype=jnp.bfloat16)
    assert jax.eval_shape(lambda: half.apply(variables, *x)).dtype == jnp.bfloat16
    if name in ("additive", "general", "local_p", "multi_head"):
        true, got = apply(module, variables, *x), apply(half, variables, *x)
        assert true.dtype == jnp.float32
        assert np.abs(true - got.astype(jnp.float32)).max() <= 0.05 * np.abs(true).max()
    narrow, x = module.clone(param_dtype=jnp.bfloat16), inputs(name, jnp.bfloat16)
    context, stored = jax.eval_shape(lambda: narrow.init_with_output(jax.random.key(0), *x))
    assert context.dtype == jnp.bfloat16
    score_is_given = getattr(module, "score", None) is not None  # with a dtype of its own
    for path, leaf in flat(stored.get("params", {})).items():
        own = score_is_given and path.startswith("score/")
        assert leaf.dtype == (jnp.float32 if own else jnp.bfloat16), path


@pytest.mark.parametrize("name", LINEN)
def test_every_method_that_flax_can_capture_returns_arrays(name):
    module, x = dense(name), inputs(name)
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), *x))
    whatever = {"capture_intermediates": lambda *_: True, "mutable": ["intermediates"]}
    _, found = jax.eval_shape(lambda v: module.apply(v, *x, **whatever), variables)
    assert found["intermediates"]["__call__"]


@EVERY
def test_half_precision_inputs_meet_float32_parameters(name):
    context, _ = jax.eval_shape(
        lambda x: dense(name).init_with_output(jax.random.key(0), *x),
        inputs(name, jnp.bfloat16),
    )
    assert context.dtype == jnp.float32


@EVERY
def test_precision_reaches_every_product(name):
    module, x = MODULES[name].clone(precision="highest"), inputs(name)
    variables = init(module, *x)
    text = str(jax.make_jaxpr(lambda v: module.apply(v, *x))(variables))
    products = text.count("dot_general[")
    assert products >= 1
    assert text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") == products


@pytest.mark.parametrize("name", ["additive", "britz", "local_p", "multi_head", "lsh"])
def test_kernel_init(name):
    module = MODULES[name].clone(kernel_init=jax.nn.initializers.constant(0.25))
    keys, x = jax.random.key(0), inputs(name)
    params = flat(jax.jit(lambda: module.init(keys, *x))()["params"])
    kernels = [path for path in params if "score" not in path and path.endswith("kernel")]
    assert kernels
    for path in kernels:
        np.testing.assert_array_equal(params[path], 0.25, err_msg=path)


def test_scores_begin_neither_flat_nor_saturated():
    """Each row of a matrix, and each vector, turns entries of unit variance into unit variance."""
    width, num_heads = 256, 5
    q = jnp.zeros((1, 1, num_heads, width))

    def params(score):
        return jax.jit(lambda: score.init(jax.random.key(0), q, q))()["params"]

    for score in (AdditiveScore(), ConcatScore(), GeneralScore()):
        for name, x in params(score).items():
            assert np.std(x) == pytest.approx(width**-0.5, rel=0.1), (score, name)
    normalized = params(AdditiveScore(normalize=True))
    np.testing.assert_allclose(normalized["gain"], width**-0.5, rtol=1e-6)
    np.testing.assert_array_equal(normalized["bias"], 0)
    np.testing.assert_array_equal(params(CosineScore(init_scale=3.0))["scale"], 3)


# Every parameter of every module is in one of these.
REPRESENTATIVE = (
    "additive_normalized",
    "cosine",
    "britz",
    "concat",
    "location",
    "local_p",
    "multi_head",
    "multi_head_concat",
    "lsh",
)
REPRESENTATIVE += tuple(f"nnx_{name}" for name in REPRESENTATIVE)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_gradients_are_finite_and_reach_every_parameter(name):
    module, x = dense(name), inputs(name)
    variables = init(module, *x)

    @jax.jit
    def gradients(variables, x):
        return jax.grad(lambda v, x: jnp.sum(jnp.sin(module.apply(v, *x))), (0, 1))(variables, x)

    for tree in gradients(variables, x):
        for path, grad in jax.tree.leaves_with_path(tree):
            assert np.isfinite(grad).all() and np.abs(grad).max() > 1e-7, path
