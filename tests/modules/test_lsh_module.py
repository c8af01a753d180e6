"""LSH self-attention as a module: its parts put together by hand, and what it promises."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import (
    LSHSelfAttention,
    MultiHeadAttention,
    hash_buckets,
    make_rotations,
    masks,
    routes,
)
from tests import oracle_lsh
from tests.daily import daily
from tests.modules.reference import apply, float64, init, merge, project, rms_norm, rotary
from tests.nnx.as_linen import AsLinen

B, L, D, N, H = 2, 29, 12, 6, 2
ROUTE = routes.LSH(num_hashes=3, num_buckets=4, chunk_size=5)


def lsh(**options):
    return LSHSelfAttention(N, **({"route": ROUTE} | options))


def sequence(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, L, D)), jnp.float32)


@functools.cache
def compiled(module):
    """(variables, x, lengths or None) -> result; LSH takes seconds to compile, so once a module."""

    def run(variables, x, lengths=None):
        mask = None if lengths is None else masks.Padding(lengths)
        return module.apply(variables, x, mask=mask)

    return jax.jit(run)


def by_hand(
    params,
    x,
    *,
    key=None,
    num_hashes=3,
    num_buckets=4,
    causal=True,
    turn=False,
    hash_turned=True,
    shared=False,
    center=None,
    **lengths,
):
    """Projections, the oracle's LSH attention on the library's buckets, the output projection."""
    p, x = float64((params, x))
    qk, v = project(p, "query_key", x), project(p, "value", x)
    if "query_key_norm" in p:
        qk = rms_norm(p, "query_key_norm", qk)
    turned = rotary(qk, np.arange(L)) if turn else qk
    hashed = turned if hash_turned else qk
    if isinstance(center, str):
        assert center == "running"
        center = np.cumsum(hashed, axis=1) / np.arange(1, L + 1)[:, None, None]
    hashed = hashed - (0 if center is None else center)
    rotations = make_rotations(
        jax.random.key(0) if key is None else key,
        num_heads=N,
        head_dim=H,
        num_hashes=num_hashes,
        num_buckets=num_buckets,
        shared=shared,
    )
    buckets = np.asarray(hash_buckets(jnp.asarray(hashed, jnp.float32), rotations))
    v = np.repeat(v, N // v.shape[2], axis=2)
    context = oracle_lsh.lsh_attention(turned, v, buckets, chunk_size=5, causal=causal, **lengths)
    return merge(p, context)


OPTIONS = {"num_kv_heads": 2, "normalize_qk": True, "rotary": True, "use_bias": True}
CASES = {
    "causal": ({}, {}),
    "both_ways": ({"causal": False}, {"causal": False}),
    "options": (OPTIONS, {"turn": True}),
    "default_buckets": (
        {"route": routes.LSH(chunk_size=5, seed=7)},
        {"num_hashes": 4, "num_buckets": 12, "key": jax.random.key(7)},
    ),
    "hashed_before_rotary": (
        {"rotary": True, "route": dataclasses.replace(ROUTE, hash_before_rotary=True)},
        {"turn": True, "hash_turned": False},
    ),
    "shared_and_centered": (
        {"route": dataclasses.replace(ROUTE, shared_rotations=True, centering="running")},
        {"shared": True, "center": "running"},
    ),
}


@pytest.mark.parametrize("name", daily(CASES, "causal", "shared_and_centered"))
def test_is_projections_hashing_and_neighbors(name):
    options, reference = CASES[name]
    module, x = lsh(**options), sequence()
    variables = init(module, x)
    got = compiled(module)(variables, x)
    np.testing.assert_allclose(
        got, by_hand(variables["params"], x, **reference), rtol=1e-4, atol=2e-5
    )


def test_hash_stream_turns_the_rotations_and_evaluation_needs_none():
    module, x = lsh(), sequence()
    variables = init(module, x)
    run = jax.jit(lambda seed: module.apply(variables, x, rngs={"hash": jax.random.key(seed)}))
    plain = compiled(module)(variables, x)
    np.testing.assert_array_equal(plain, compiled(module)(variables, x))
    np.testing.assert_array_equal(run(1), run(1))
    assert np.abs(run(1) - run(2)).max() > 1e-3
    assert np.abs(run(1) - plain).max() > 1e-3


def test_is_multi_head_attention_with_the_lsh_route():
    """The same parameters, names included, whether or not one imports the short cut."""
    x = sequence()
    short = lsh(value_features=18)
    long = MultiHeadAttention(N, route=ROUTE, use_bias=False, value_features=18)
    variables = init(short, x)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, init(long, x))
    np.testing.assert_array_equal(
        compiled(short)(variables, x), apply(long, variables, x, mask=masks.Causal())
    )
    whole = apply(lsh(value_features=18, causal=False), variables, x)
    np.testing.assert_array_equal(whole, apply(long, variables, x))


LEARNED = lsh(route=dataclasses.replace(ROUTE, centering="learned"))


def test_the_learned_center_is_subtracted_before_hashing():
    x = sequence()
    variables = init(LEARNED, x)
    assert variables["hash_stats"]["center"].shape == (N, H)
    assert jax.tree.map(jnp.shape, variables["params"]) == jax.tree.map(
        jnp.shape, init(lsh(), x)["params"]
    )
    for center in (np.zeros((N, H)), np.random.default_rng(1).normal(size=(N, H))):
        stats = {"center": jnp.asarray(center, jnp.float32)}
        got = compiled(LEARNED)({**variables, "hash_stats": stats}, x)
        true = by_hand(variables["params"], x, center=center)
        np.testing.assert_allclose(got, true, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("module", [LEARNED, AsLinen(LEARNED)], ids=["linen", "nnx"])
def test_the_learned_center_moves_to_the_mean_of_valid_tokens_in_training_alone(module):
    x, lengths = sequence() + 1, jnp.array([L, 17])
    variables = init(module, x)
    before = jnp.asarray(np.random.default_rng(1).normal(size=(N, H)), jnp.float32)
    variables["hash_stats"] = {"center": before}
    valid = np.arange(L) < np.asarray(lengths)[:, None]
    garbage = jnp.where(valid[..., None], x, jnp.nan)

    def after(x, lengths, **options):
        def run(variables, x, lengths):
            mask = masks.Padding(lengths)
            y, updated = module.apply(variables, x, mask=mask, mutable=["hash_stats"], **options)
            return y, updated["hash_stats"]["center"]

        return jax.jit(run)(variables, x, lengths)

    y, center = after(garbage, lengths)
    qk = project(float64(variables["params"]), "query_key", float64(x))
    mean = np.concatenate([qk[0], qk[1, :17]]).mean(0)
    np.testing.assert_allclose(center, 0.99 * before + 0.01 * mean, rtol=1e-5, atol=1e-6)
    # This step still hashed around the center as it was.
    np.testing.assert_array_equal(y[0], compiled(LEARNED)(variables, x, lengths)[0])
    np.testing.assert_array_equal(after(x, 0 * lengths)[1], before)
    np.testing.assert_array_equal(after(x, lengths, deterministic=True)[1], before)


def test_weights_on_demand_are_of_the_same_hashing():
    route = dataclasses.replace(ROUTE, centering="running", hash_before_rotary=True)
    host, x = lsh(route=route, rotary=True, use_bias=True), sequence()
    variables = init(host, x)
    show = jax.jit(functools.partial(host.apply, return_weights=True))
    key = jax.random.key(3)
    out, weights = show(variables, x, rngs={"hash": key})
    assert not np.triu(weights, 1).any()
    p = float64(variables["params"])
    context = np.einsum("bnts,bsnd->btnd", weights, project(p, "value", float64(x)))
    np.testing.assert_allclose(out, merge(p, context), rtol=1e-4, atol=1e-5)
    other = show(variables, x, rngs={"hash": jax.random.key(4)})[1]
    assert np.abs(other - weights).max() > 0.1


def test_looking_at_a_whole_model_skips_it():
    """`mutable=["intermediates"]` is for all layers; the one that has no weights sows none."""
    module, x = lsh(), sequence()
    variables = init(module, x)
    _, found = jax.eval_shape(lambda: module.apply(variables, x, mutable=["intermediates"]))
    assert not found
