"""Routes as values: each is the function it names, and refuses what that function cannot do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import (
    attention,
    attention_weights,
    hash_buckets,
    lsh_attention,
    lsh_cross_attention,
    make_rotations,
    masks,
    routes,
    scores,
    window_attention,
)

B, T, N, K, H, D = 2, 7, 6, 3, 5, 11


def arrays(num_keys=T):
    rng = np.random.default_rng(0)
    shapes = (B, T, N, H), (B, num_keys, K, H), (B, num_keys, K, D)
    return tuple(rng.normal(size=shape).astype("f") for shape in shapes)


def options():
    return {
        "mask": masks.Padding(jnp.array([T, 4])),
        "bias": jnp.asarray(np.random.default_rng(1).normal(size=(1, N, T, T)), jnp.float32),
        "dropout_rate": 0.5,
        "dropout_key": jax.random.key(0),
        "precision": "highest",
    }


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_all_pairs_is_attention(implementation):
    score = scores.Cosine(3.0)

    @jax.jit
    def both():
        return (
            routes.AllPairs(implementation)(score, *arrays(), q_offset=5, **options()),
            attention(score, *arrays(), implementation=implementation, **options()),
        )

    got, true = both()
    np.testing.assert_array_equal(got, true)
    assert got.shape == (B, T, N, D)


class Inverted(routes.Exact):
    """A route of one's own that says its weights alone."""

    def weights(self, score, q, k, **options):
        return 1 - super().weights(score, q, k, **options)


def test_a_route_of_ones_own_may_say_its_weights_alone():
    score, (q, k, v) = scores.Cosine(3.0), arrays()
    dense = attention(score, q, k, v, implementation="dense", **options())
    np.testing.assert_array_equal(routes.Exact()(score, q, k, v, **options()), dense)
    visible = options()["mask"].as_array(T, T)  # beyond, the inverse of 0 is hidden
    weights = visible * (1 - attention_weights(score, q, k, mask=options()["mask"]))
    true = jnp.einsum("bnts,bsnd->btnd", weights, jnp.repeat(v, N // K, axis=2))
    got = Inverted()(score, q, k, v, mask=options()["mask"], q_offset=5)
    np.testing.assert_allclose(got, true, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("q_offset", [0, 2])
def test_window_is_window_attention(q_offset):
    score, (q, k, v) = scores.Dot(0.5), arrays()
    route = routes.Window(2, 1, "dense")
    window = {"window": (2, 1), "score": score, "implementation": "dense"}

    @jax.jit
    def contexts():
        return (
            route(score, q, k, v, q_offset=q_offset, **options()),
            window_attention(q, k, v, q_offset=q_offset, **window, **options()),
            route(score, q, k, v, q_offset=2 - q_offset, **options()),
        )

    got, true, elsewhere = jax.device_get(contexts())
    np.testing.assert_array_equal(got, true)
    assert np.abs(got - elsewhere).max() > 1e-3


def test_weights_are_those_of_the_route():
    score, (q, k, v) = scores.Dot(), arrays()
    shown = {"mask": masks.Causal(), "bias": options()["bias"], "precision": "highest"}

    @jax.jit
    def of_all_pairs():
        whole = routes.AllPairs("dense").weights(score, q, k, q_offset=3, **shown)
        return whole, attention_weights(score, q, k, **shown)

    np.testing.assert_array_equal(*of_all_pairs())
    route = routes.Window(2, 1, "dense")

    @jax.jit
    def of_window(mask):
        given = shown | {"mask": mask}
        return route.weights(score, q, k, **given), route(score, q, k, v, **given)

    for mask in (masks.Causal(), None, np.tri(T, dtype=bool)):
        weights, true = of_window(mask)
        context = np.einsum("bnts,bsnd->btnd", weights, np.repeat(v, N // K, axis=2))
        np.testing.assert_allclose(context, true, rtol=1e-5, atol=1e-6)
    weights = jax.jit(route.weights, static_argnames="q_offset")
    later = weights(score, q[:, 5:6], k, q_offset=5)
    np.testing.assert_allclose(later, weights(score, q, k)[:, :, 5:6], rtol=1e-6)


def test_lsh_is_lsh_attention():
    route = routes.LSH(num_hashes=2, num_buckets=2, chunk_size=3)
    mask = masks.Causal()

    @jax.jit  # one program: what is the same is compiled once
    def both(q, v, key):
        rotations = make_rotations(key, num_heads=N, head_dim=H, num_hashes=2, num_buckets=2)
        return (
            route(scores.Dot(), q, q, v, mask=mask, hash_key=key),
            lsh_attention(q, v, hash_buckets(q, rotations), chunk_size=3, causal=True),
        )

    q, _, v = arrays()
    got, true = both(q, v, jax.random.key(1))
    np.testing.assert_array_equal(got, true)


def test_lsh_of_separate_queries_and_keys_is_lsh_cross_attention():
    route = routes.LSH(num_hashes=2, num_buckets=2, chunk_size=3, shared_qk=False)
    q, k, v = arrays()
    lengths = jnp.full(q.shape[0], k.shape[1] - 2)

    @jax.jit
    def both(q, k, v, key):
        rotations = make_rotations(key, num_heads=K, head_dim=H, num_hashes=2, num_buckets=2)
        buckets = (hash_buckets(x, rotations) for x in (q, k))
        mask = masks.Padding(lengths)
        return (
            route(scores.Dot(), q, k, v, mask=mask, hash_key=key),
            lsh_cross_attention(q, k, v, *buckets, chunk_size=3, mask=mask),
        )

    got, true = both(q[:, :5], k, v, jax.random.key(1))
    np.testing.assert_array_equal(got, true)


def test_an_unknown_keyword_is_an_error():
    for route in (routes.AllPairs(), routes.Window(1, 1), routes.LSH(), routes.Hard()):
        with pytest.raises(TypeError, match="causal"):
            route(scores.Dot(), *arrays(), causal=True)


def test_routes_are_values():
    for make in (routes.AllPairs, lambda: routes.Window(2, 1), routes.LSH, routes.Hard):
        assert make() == make() and hash(make()) == hash(make())
        with pytest.raises(AttributeError):
            make().seed = 1
    assert routes.LSH(seed=1) != routes.LSH()
    every = (routes.AllPairs(), routes.Window(2, 1), routes.LSH(), routes.LSH(shared_qk=False))
    assert [route.shares_qk for route in every] == [False, False, True, False]
