"""Biases by distance: what they are, and that attention computes with them as with an array."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import subjaxprs

from attnlab import (
    MultiHeadAttention,
    RelativePositionBias,
    attention,
    biases,
    hard_attention,
    masks,
    routes,
    scores,
)
from attnlab.ops import blockwise
from attnlab.ops.layout import merge_output, prepare
from tests.daily import daily
from tests.trees import assert_close

B, T, S, N, K, H = 2, 17, 23, 6, 3, 5
RNG = np.random.default_rng(0)
Q, KEYS, V = (RNG.normal(size=(B, *shape)) for shape in ((T, N, H), (S, K, H), (S, K, 4)))
AT = np.arange(S) - np.arange(T)[:, None] + T - 1  # where an array has what a distance has
SHAPES = [(), (N,), (1,), (B, N), (B, 1), (1, N)]


def by_distance(shape=(B, N), *, queries=T, keys=S):
    return np.random.default_rng(1).normal(size=(*shape, queries + keys - 1))


def in_blocks(q, k, v, mask, bias, *, block=8):
    prepared = prepare(scores.Dot(), q, k, v, masks.as_mask(mask), bias)
    return merge_output(blockwise.attend(prepared, block_q=block, block_k=block), q.shape[:-3])


def at_once(q, k, v, mask, bias):
    return attention(scores.Dot(), q, k, v, mask=mask, bias=bias, implementation="dense")


def as_default(q, k, v, mask, bias):
    return attention(scores.Dot(), q, k, v, mask=mask, bias=bias)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_array_of_it(shape):
    x = by_distance(shape).astype("f")
    np.testing.assert_array_equal(biases.Relative(x).as_array(T, S), x[..., AT])


@pytest.mark.parametrize(
    ("shape", "attend"),
    daily(
        [*((shape, in_blocks) for shape in SHAPES), ((B, N), at_once), ((N,), as_default)],
        *((shape, in_blocks) for shape in ((), (B, N), (B, 1), (1, N))),
        ((B, N), at_once),
    ),
)
def test_attention_is_that_of_the_array(x64, shape, attend):
    """Its gradient too; in blocks of 8, with padding in the last ones."""
    x = by_distance(shape)
    value, (d_q, d_k, d_bias) = value_and_grads(attend, Q, KEYS, biases.Relative(x))
    array = np.broadcast_to(x[..., AT], (B, N, T, S))
    true, (true_d_q, true_d_k, d_array) = value_and_grads(attend, Q, KEYS, array)
    d_x = np.zeros((B, N, T + S - 1))
    np.add.at(d_x, (slice(None), slice(None), AT), d_array)
    lead = (1,) * (2 - len(shape)) + shape
    d_x = d_x.sum(tuple(axis for axis in (0, 1) if lead[axis] == 1), keepdims=True)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-10)
    close(value, true)
    close(d_q, true_d_q)
    close(d_k, true_d_k)
    close(d_bias.by_distance, d_x.reshape(x.shape), atol=1e-13)


@functools.partial(jax.jit, static_argnums=0)
def value_and_grads(attend, q, k, bias):
    """A number made of the context, and its gradients in q, k and the bias."""
    mask = masks.Causal(9) & masks.Padding(jnp.array([S, 11]))

    def value(q, k, bias):
        return jnp.sin(attend(q, k, jnp.asarray(V), mask, bias)).sum()

    return jax.value_and_grad(value, (0, 1, 2))(q, k, bias)


def test_under_vmap_scan_and_remat(x64):
    x = by_distance((3, N))
    dense = jax.jit(functools.partial(at_once, mask=None))
    each = [dense(Q, KEYS, V, bias=row[..., AT]) for row in x]

    def of_row(row):
        return in_blocks(*map(jnp.asarray, (Q, KEYS, V)), None, biases.Relative(row))

    np.testing.assert_allclose(jax.jit(jax.vmap(jax.remat(of_row)))(x), each, rtol=1e-10)
    scanned = jax.lax.scan(lambda _, row: (None, of_row(row)), None, x)[1]
    np.testing.assert_allclose(scanned, each, rtol=1e-10)


@pytest.mark.parametrize("attend", [functools.partial(in_blocks, block=256), at_once])
def test_half_precision_sums_its_gradient_in_float32(attend):
    """256 rows meet a distance: bfloat16 alone would lose a part of them."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 1, 256, 1, 8)).astype("f")
    x = by_distance((), queries=256, keys=256).astype("f")

    def gradient(dtype):
        def loss(x):
            arrays = (jnp.asarray(y, dtype) for y in (q, k, v))
            context = attend(*arrays, None, biases.Relative(x))
            return (context.astype(jnp.float32) * v).sum()

        return np.asarray(jax.jit(jax.grad(loss))(jnp.asarray(x, dtype)), np.float32)

    true = gradient(jnp.float32)
    error = np.linalg.norm(gradient(jnp.bfloat16) - true) / np.linalg.norm(true)
    assert error < 0.005


def test_hard_attention_takes_it(x64):
    x, key = by_distance((N,)), jax.random.key(2)
    attend = jax.jit(hard_attention)
    found, true = (
        attend(Q, KEYS, V, bias=bias, sample_key=key) for bias in (biases.Relative(x), x[..., AT])
    )
    assert_close(found, true, rtol=1e-10)


def sizes(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (x.aval.size for x in eqn.outvars)
    for inner in subjaxprs(jaxpr):
        yield from sizes(inner)


@pytest.mark.parametrize("attend", [in_blocks, as_default])
def test_nothing_of_queries_by_keys_is_made(attend):
    queries, keys = 4096, 4099
    q, k, v = jnp.ones((queries, 1, 2)), jnp.ones((keys, 1, 2)), jnp.ones((keys, 1, 2))

    def loss(x):
        return attend(q, k, v, masks.Causal(), biases.Relative(x)).sum()

    x = jnp.ones(queries + keys - 1)
    assert max(sizes(jax.make_jaxpr(jax.grad(loss))(x).jaxpr)) < queries * keys / 8


def test_buckets_are_as_wide_as_t5_s():
    """Half for each direction: one distance each up to 8, then wider ones up to 128 and beyond."""
    first = [*range(9), 12, 16, 23, 32, 46, 64, 91]  # the first distance of each bucket
    distances = np.arange(-200, 201)
    found = biases.buckets_of_distances(distances, num_buckets=32, max_distance=128)
    own = np.searchsorted(first, np.abs(distances), side="right") - 1
    np.testing.assert_array_equal(found, own + 16 * (distances > 0))
    ahead = biases.buckets_of_distances(
        distances, num_buckets=16, max_distance=128, bidirectional=False
    )
    np.testing.assert_array_equal(ahead, np.where(distances > 0, 0, own))


@pytest.mark.slow  # importing them takes longer than all of the above
def test_buckets_are_those_of_the_released_t5():
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5", reason="extra compat")
    torch = pytest.importorskip("torch")
    distances = biases.distances(700, 900)
    for both, (buckets, largest) in itertools.product(
        (True, False), ((32, 128), (8, 20), (64, 500), (32, 17), (36, 32))
    ):
        bucket = modeling.T5Attention._relative_position_bucket
        true = bucket(torch.tensor(distances), both, buckets, largest).numpy()
        found = biases.buckets_of_distances(
            distances, num_buckets=buckets, max_distance=largest, bidirectional=both
        )
        np.testing.assert_array_equal(found, true)
        assert found.max() == buckets - 1, "the last bucket is used"


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [
        (8, [2.0**-n for n in range(1, 9)]),
        (1, [2.0**-8]),
        (3, [2.0**-4, 2.0**-8, 2.0**-2]),
        (12, [2.0**-n for n in range(1, 9)] + [2.0 ** -(n + 0.5) for n in range(4)]),
    ],
)
def test_alibi(num_heads, slopes):
    """8 heads are the example of the paper; 12 that of its released code."""
    found = biases.alibi(num_heads, 3, 5).as_array(3, 5)
    distance = np.abs(np.arange(5) - np.arange(3)[:, None])
    want = -np.array(slopes)[:, None, None] * distance
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_a_module_learns_a_number_for_each_bucket(x64):
    """It is the same wherever the pair stands, and of the sizes of T5's table."""
    module = RelativePositionBias(num_buckets=8, max_distance=20, param_dtype=jnp.float64)
    key = jax.random.key(0)
    bias, variables = jax.jit(lambda: module.init_with_output(key, N, T, S))()
    table = np.asarray(variables["params"]["embedding"])
    assert table.shape == (8, N)
    buckets = biases.buckets_of_distances(
        np.arange(S) - np.arange(T)[:, None], num_buckets=8, max_distance=20
    )
    np.testing.assert_array_equal(bias.as_array(T, S), np.moveaxis(table[buckets], -1, 0))
    x = jnp.asarray(RNG.normal(size=(B, T, 2 * N)))
    host = MultiHeadAttention(N, param_dtype=jnp.float64)
    params = jax.jit(host.init)(jax.random.key(1), x)

    @jax.jit
    def attend(variables):
        bias = module.apply(variables, N, T, T)
        return [host.apply(params, x, bias=each) for each in (bias, bias.as_array(T, T))]

    np.testing.assert_allclose(*attend(variables), rtol=1e-10)


def test_a_host_calls_it_with_parameters_of_its_own():
    x = jnp.asarray(RNG.normal(size=(B, T, 2 * N)), jnp.float32)
    memory = jnp.asarray(RNG.normal(size=(B, S, 2 * N)), jnp.float32)
    made = MultiHeadAttention(N, position_bias=RelativePositionBias(num_buckets=8))

    @jax.jit
    def attend(x, key):
        found, variables = made.init_with_output(jax.random.key(0), x, key)
        own = {"params": dict(variables["params"])}
        table = {"params": own["params"].pop("position_bias")}
        length = T if key is None else S
        bias = RelativePositionBias(num_buckets=8).apply(table, N, T, length)
        of_host = functools.partial(MultiHeadAttention(N).apply, own, x, key)
        return found, of_host(bias=bias), of_host()

    for key in (None, memory):
        found, true, without = jax.device_get(attend(x, key))
        np.testing.assert_array_equal(found, true)
        assert np.abs(found - without).max() > 0.01


@pytest.mark.parametrize("kind", ["array", "distance"])
def test_rows_that_it_does_not_have_are_nan_or_refused(kind):
    """A slice that begins too late would begin where it still fits, without a word."""
    x = jnp.asarray(by_distance((), queries=5, keys=7), jnp.float32)
    whole = biases.Relative(x)
    bias = whole if kind == "distance" else biases.Explicit(whole.as_array(5, 7))
    for offset in range(4):
        rows = bias.for_queries(offset, 2, 7).as_array(2, 7)
        np.testing.assert_array_equal(rows, whole.as_array(5, 7)[offset : offset + 2])
    assert jnp.isnan(bias.for_queries(4, 2, 7).as_array(2, 7)).all()
    with pytest.raises(ValueError, match="whose next 6 queries are decoded; got one of 5"):
        bias.for_queries(0, 6, 7)


def test_integers_of_any_type_are_distances():
    for dtype in (np.int8, np.int16, np.uint8):
        row = np.array([0, 3, 127], dtype)
        found = biases.buckets_of_distances(row, bidirectional=False)
        np.testing.assert_array_equal(found, 0)
    assert biases.buckets_of_distances(np.array([-128], np.int8)) == 15


EVERY = routes.AllPairs()


def learned(route=EVERY, **options):
    """Which rows of a table get a gradient, with more keys than `max_distance`."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 40, 4)), jnp.float32)
    made = RelativePositionBias(num_buckets=8, max_distance=20)
    host = MultiHeadAttention(2, route=route, position_bias=made)

    @jax.jit
    @jax.grad
    def gradient(variables):
        return jnp.sin(host.apply(variables, x, **options)).sum()

    shapes = jax.eval_shape(host.init, jax.random.key(0), x)
    draw = np.random.default_rng(1)
    grads = gradient(jax.tree.map(lambda y: draw.normal(size=y.shape).astype(y.dtype), shapes))
    return (np.asarray(grads["params"]["position_bias"]["embedding"]) != 0).any(-1).tolist()


def test_the_mask_says_whether_keys_after_the_query_have_buckets():
    """Bucket 4 would be of the distance 0 of keys after the query; else all are learned."""
    assert learned() == [True] * 4 + [False] + [True] * 3
    for mask in (masks.Causal(), masks.Window(30, 0) & masks.Padding(39)):
        assert learned(mask=mask) == [True] * 8


def test_the_route_says_it_as_well_and_an_array_cannot():
    """With either the forward has the same buckets as decoding, which is causal."""
    assert learned(routes.Window(30, 0)) == [True] * 8
    assert learned(routes.Window(30, 1))[4:6] == [False, True]
    real = masks.from_padding(jnp.arange(40) < 39)
    assert learned(mask=real)[4:6] == [False, True]
    array = jnp.asarray(np.tri(40, dtype=bool))
    assert learned(mask=masks.Causal() & array) == [True] * 8
    rule = r"this mask does not say; .*masks.Causal\(\) & mask"
    for mask in (array, masks.Padding(39) & array):
        with pytest.raises(ValueError, match=rule):
            learned(mask=mask)


def test_one_module_in_several_hosts_is_one_table():
    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = RelativePositionBias(num_buckets=8)
            for _ in range(2):
                x = MultiHeadAttention(2, position_bias=shared)(x)
            return x

    variables = jax.eval_shape(Layers().init, jax.random.key(0), jnp.ones((1, 5, 4)))
    tables = [x for x in jax.tree.leaves(variables) if x.shape == (8, 2)]
    assert len(tables) == 1
