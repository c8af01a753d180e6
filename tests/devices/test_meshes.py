"""Meshes, beside what the contract (`test_contract.py`) holds every mechanism to on them."""

from collections.abc import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import masks, routes
from attnlab.devices import meshes
from attnlab.ops.attention import attention_weights
from attnlab.ops.blockwise import engine
from attnlab.ops.local import local_attention
from attnlab.ops.lsh.hashing import hash_buckets, make_rotations
from attnlab.ops.lsh.quality import hash_quality
from attnlab.scores import Dot
from tests.daily import daily
from tests.mechanism_cases import BY_NAME
from tests.test_contract import assert_as_on_one_device, context_and_grads, over_two_devices
from tests.trees import assert_close

Q, K, V = np.random.default_rng(0).normal(size=(3, 4, 11, 2, 4)).astype(np.float32)
P = jax.P


def mesh_of(kind: str) -> jax.sharding.Mesh:
    axis_type = getattr(jax.sharding.AxisType, kind)
    return jax.make_mesh((2,), ("data",), axis_types=(axis_type,))


def on_explicit_mesh(x, spec=P("data")):  # noqa: B008, a spec is immutable
    return jax.device_put(x, jax.NamedSharding(mesh_of("Explicit"), spec))


@pytest.fixture
def as_on_an_accelerator() -> Iterator[None]:
    """Takes the branch that is not for the CPU, in several small blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "default_block", lambda mask: 8)
        patch.setattr(jax.lax, "platform_dependent", lambda *x, default, **_: default(*x))
        jax.clear_caches()
        yield
    jax.clear_caches()


def test_constants_vary_like_what_they_meet():
    def count(x, steps):
        start = meshes.vary_like({"sum": jnp.zeros(x.shape)}, x)
        assert meshes.vary_like(start, steps) == start  # nothing is cast twice
        return jax.lax.fori_loop(0, 3, lambda i, y: {"sum": y["sum"] + x}, start)["sum"]

    function = jax.shard_map(
        count, mesh=mesh_of("Auto"), in_specs=(P("data"), P()), out_specs=P("data")
    )
    np.testing.assert_array_equal(jax.jit(function)(jnp.arange(4.0), 3), 3 * np.arange(4.0))
    x = jnp.arange(4.0)
    assert meshes.vary_like(x, Q) is x


@pytest.mark.slow
@pytest.mark.parametrize("name", ["additive-blockwise", "lsh-sorted", "lsh_cross-sorted"])
def test_accelerators_branch_in_shard_map(name, as_on_an_accelerator):
    mechanism = BY_NAME[name]
    operands, specs = over_two_devices(mechanism)
    function = jax.shard_map(
        context_and_grads.__wrapped__(mechanism).__wrapped__,
        mesh=mesh_of("Auto"),
        in_specs=specs,
        out_specs=(P("data"), specs[0]),
    )
    assert_as_on_one_device(mechanism, jax.jit(function)(*operands), operands)


@pytest.mark.parametrize(
    "route",
    [
        routes.AllPairs("blockwise"),
        pytest.param(
            routes.LSH(num_hashes=2, num_buckets=4, chunk_size=4, implementation="sorted"),
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize("dropout_rate", daily([0.0, 0.5], 0.5))
def test_routes_in_an_eager_shard_map(route, dropout_rate):
    key = jax.random.key(0)

    def attend(q, v, key):
        options = {"dropout_rate": dropout_rate, "dropout_key": key}
        return route(Dot(), q, q, v, mask=masks.Causal(), **options)

    specs = (P("data"), P("data"), P())
    mapped = jax.shard_map(attend, mesh=mesh_of("Auto"), in_specs=specs, out_specs=P("data"))
    whole = [attend(Q[half], V[half], key) for half in (slice(2), slice(2, None))]
    np.testing.assert_allclose(mapped(Q, V, key), np.concatenate(whole), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_hashing_and_what_looks_at_it_on_explicit_axes():
    rotations = make_rotations(
        jax.random.key(0), num_heads=2, head_dim=4, num_hashes=2, num_buckets=4
    )
    placed, v = on_explicit_mesh(Q), on_explicit_mesh(V)
    buckets = hash_buckets(placed, rotations)
    assert jax.typeof(buckets).sharding.spec == P("data", None, None, None)
    plain = hash_buckets(Q, rotations)
    np.testing.assert_array_equal(buckets, plain)
    found = hash_quality(placed, v, buckets, chunk_size=4, top_k=2)
    expected = hash_quality(Q, V, plain, chunk_size=4, top_k=2)
    assert_close(found, expected, rtol=1e-5)
    assert hash_buckets(Q[:0], rotations).shape == (0, 2, 11, 2)
    with pytest.raises(ValueError, match=r"at least one example; got qk \(0, 11, 2, 4\)"):
        hash_quality(Q[:0], V[:0], plain[:0], chunk_size=4, top_k=2)


@pytest.mark.slow
def test_weights_on_explicit_axes_keep_the_split_of_heads_and_queries():
    q, k, v = (on_explicit_mesh(x, P(None, None, "data")) for x in (Q, K, V))
    weights = attention_weights(Dot(), q, k)
    assert jax.typeof(weights).sharding.spec == P(None, "data", None, None)
    np.testing.assert_allclose(weights, attention_weights(Dot(), Q, K), rtol=1e-5)
    centers = np.broadcast_to(np.arange(11.0, dtype=np.float32), (4, 11))
    found = local_attention(q, k, v, jnp.asarray(centers), half_width=2, return_weights=True)
    expected = local_attention(Q, K, V, centers, half_width=2, return_weights=True)
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "module",
    [
        attnlab.MultiHeadAttention(num_heads=2, score=attnlab.AdditiveScore()),
        pytest.param(
            attnlab.LSHSelfAttention(2, route=routes.LSH(num_hashes=2, chunk_size=4)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["multi_head", "lsh"],
)
def test_modules_on_explicit_axes_and_of_nothing(module: nn.Module):
    x = Q.reshape(4, 11, 8)
    variables = module.init(jax.random.key(0), x)

    def loss(variables, x):
        return (module.apply(variables, x, mask=masks.Padding(jnp.array([11, 7, 1, 0]))) ** 2).sum()

    wanted = jax.jit(jax.value_and_grad(loss))(variables, x)
    found = jax.jit(jax.value_and_grad(loss))(
        jax.tree.map(lambda x: on_explicit_mesh(x, P()), variables), on_explicit_mesh(x)
    )
    assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert jax.jit(module.apply)(variables, x[:0]).shape == (0, 11, 8)


@pytest.mark.parametrize("spec", daily([P("data"), P(None, None, "data")]), ids=["batch", "heads"])
def test_decoding_by_hash_on_explicit_axes(spec):
    """A prompt and a token, from a cache that is split as the queries are."""
    route = routes.LSH(2, num_buckets=2, chunk_size=4, centering="running")
    step = jax.jit(lambda k, v, state, q, at: route.decode(Dot(), q, k, v, state, q_offset=at))

    def decode(place):
        k, v, state, contexts = place(Q), place(V), route.empty_state(place(Q)), []
        for first, stop in ((0, 9), (9, 10)):
            context, state = step(k, v, state, place(Q[:, first:stop]), first)
            contexts.append(context)
        return contexts, state

    found, expected = decode(lambda x: on_explicit_mesh(x, spec)), decode(jnp.asarray)
    assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for x in jax.tree.leaves(found):
        assert jax.typeof(x).sharding.spec[0] == spec[0]


@pytest.mark.parametrize("what", ["attend", "decode"])
def test_hashing_in_a_shard_map_over_a_part_of_the_mesh(what):
    """`jnp.searchsorted` fails there."""
    route = routes.LSH(2, num_buckets=2, chunk_size=4, shared_qk=what == "decode")

    def attend(q, k, v):
        if what == "attend":
            return route(Dot(), q, k, v)
        state = meshes.vary_like(route.empty_state(k), k)
        return route.decode(Dot(), q, k, v, state, q_offset=0)[0]

    mesh = jax.make_mesh((2, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    mapped = jax.shard_map(
        attend, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    np.testing.assert_allclose(jax.jit(mapped)(Q, K, V), attend(Q, K, V), rtol=1e-5, atol=1e-6)
