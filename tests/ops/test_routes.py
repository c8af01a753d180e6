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
from tests.daily import daily

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


@pytest.mark.parametrize("window", daily([T, 2], 2))
@pytest.mark.parametrize("causal", daily([True, False], True))
def test_one_bucket_is_dense_attention_with_unit_keys_that_are_not_the_querys_own(causal, window):
    """With a chunk of all tokens; with a smaller one it is a window."""
    route = routes.LSH(num_hashes=1, num_buckets=1, chunk_size=window)
    (q, _, v), lengths = arrays(), jnp.array([T, 4])
    v = jnp.repeat(v, N // K, axis=2)
    mask = masks.combine(masks.Padding(lengths), masks.Causal() if causal else None)
    here, there = np.arange(T)[:, None], np.arange(T)[None, :]
    shown = (here != there) & (np.abs(here - there) <= window) & ((there < here) | (not causal))
    seen = shown[None] & (there[None] < np.array(lengths)[:, None, None])
    seen &= here[None] < np.array(lengths)[:, None, None]  # padding is no query either

    def dense(q, v):
        keys = q / jnp.sqrt(jnp.sum(q * q, axis=-1, keepdims=True) + 1e-6 * H)
        logits = jnp.einsum("btnh,bsnh->bnts", q, keys)
        weights = jax.nn.softmax(jnp.where(seen[:, None], logits, -1e30))
        alone = np.eye(T) * (np.arange(T) < np.array(lengths)[:, None])[:, None]
        weights = jnp.where(seen.any(-1)[:, None, :, None], weights, alone[:, None])
        return jnp.einsum("bnts,bsnd->btnd", weights, v)

    @jax.jit
    def both(q, v):
        outs = []
        for f in (lambda q, v: route(scores.Dot(), q, q, v, mask=mask), dense):
            out, pull = jax.vjp(f, q, v)
            outs.append((out, *pull(jnp.cos(out))))
        return outs

    for got, true in zip(*both(q, v), strict=True):
        np.testing.assert_allclose(got, true, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("shared_qk", daily([True, False], True))
def test_lsh_shows_the_weights_that_it_attends_with(shared_qk):
    route = routes.LSH(num_hashes=2, num_buckets=2, chunk_size=3, shared_qk=shared_qk)
    q, k, v = arrays()
    k = q if shared_qk else k
    shown = {
        "mask": masks.Causal() & masks.Padding(jnp.array([T, 4])),
        "hash_key": jax.random.key(1),
    }
    weights = np.asarray(jax.jit(route.weights)(scores.Dot(), q, k, **shown))
    context = np.einsum("bnts,bsnd->btnd", weights, np.repeat(v, N // K, axis=2))
    true = jax.jit(route)(scores.Dot(), q, k, v, **shown)
    np.testing.assert_allclose(context, true, rtol=1e-5, atol=1e-6)
    sums = weights.sum(-1)
    np.testing.assert_allclose(sums[(sums > 0.5)], 1, rtol=1e-5)
    assert not np.triu(weights[0], 1).any() and not weights[1, :, :, 4:].any()


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
