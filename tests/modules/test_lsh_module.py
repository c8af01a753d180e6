"""LSH self-attention as a module: its parts put together by hand, and what it promises."""

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
from tests.modules.reference import apply, float64, init, merge, project, rms_norm, rotary
from tests.ops import lsh_oracle

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
    params, x, *, key=None, num_hashes=3, num_buckets=4, causal=True, turn=False, **lengths
):
    """Projections, the oracle's LSH attention on the library's buckets, the output projection."""
    p, x = float64((params, x))
    qk, v = project(p, "query_key", x), project(p, "value", x)
    if "query_key_norm" in p:
        qk = rms_norm(p, "query_key_norm", qk)
    if turn:
        qk = rotary(qk, np.arange(L))
    rotations = make_rotations(
        jax.random.key(0) if key is None else key,
        num_heads=N,
        head_dim=H,
        num_hashes=num_hashes,
        num_buckets=num_buckets,
    )
    buckets = np.asarray(hash_buckets(jnp.asarray(qk, jnp.float32), rotations))
    v = np.repeat(v, N // v.shape[2], axis=2)
    context = lsh_oracle.lsh_attention(qk, v, buckets, chunk_size=5, causal=causal, **lengths)
    return merge(p, context)


OPTIONS = {"num_kv_heads": 2, "normalize_qk": True, "rotary": True, "use_bias": True}
CASES = {
    "causal": ({}, {}),
    "both_ways": ({"causal": False}, {"causal": False, "look_ahead": 1}),
    "options": (OPTIONS, {"turn": True}),
    "default_buckets": (
        {"route": routes.LSH(chunk_size=5, seed=7)},
        {"num_hashes": 4, "num_buckets": 12, "key": jax.random.key(7)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_is_projections_hashing_and_neighbours(name):
    options, reference = CASES[name]
    module, x = lsh(**options), sequence()
    variables = init(module, x)
    got = compiled(module)(variables, x)
    np.testing.assert_allclose(
        got, by_hand(variables["params"], x, **reference), rtol=1e-4, atol=2e-5
    )


def test_padding_is_seen_by_nobody():
    module, x = lsh(), sequence()
    variables = init(module, x)
    lengths = jnp.array([L, 17])
    got = compiled(module)(variables, x, lengths)
    valid = np.arange(L) < np.asarray(lengths)[:, None]
    true = by_hand(variables["params"], x, valid=valid)
    np.testing.assert_allclose(got, true, rtol=1e-4, atol=2e-5)
    garbage = jnp.where(valid[..., None], x, jnp.nan)
    after = compiled(module)(variables, garbage, lengths)
    np.testing.assert_array_equal(np.asarray(after)[valid], np.asarray(got)[valid])


def test_causal_by_gradient_and_gradients_reach_every_parameter():
    module, x = lsh(**OPTIONS), sequence()
    variables = init(module, x)

    @jax.jit
    def gradient(t):
        def output(variables, x):
            return jnp.sum(jnp.sin(jnp.take(module.apply(variables, x), t, 1)))

        return jax.grad(output, argnums=(0, 1))(variables, x)

    for t in (0, 1, 12, L - 1):
        of_variables, of_x = gradient(t)
        np.testing.assert_array_equal(of_x[:, t + 1 :], 0)
        assert (np.abs(of_x[:, t]) > 0).any()
        for path, grad in jax.tree.leaves_with_path(of_variables):
            assert np.isfinite(grad).all(), path
    assert (np.abs(of_x[:, : L - 1]) > 0).any(), "nobody looks back"
    for path, grad in jax.tree.leaves_with_path(of_variables):
        assert np.abs(grad).max() > 1e-3, path


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
    short, long = lsh(), MultiHeadAttention(N, route=ROUTE, use_bias=False)
    variables = init(short, x)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, init(long, x))
    np.testing.assert_array_equal(
        compiled(short)(variables, x), apply(long, variables, x, mask=masks.Causal())
    )


def test_pmap_is_the_batch_axis():
    module, x = lsh(), sequence()
    variables = init(module, x)
    mapped = jax.pmap(module.apply, in_axes=(None, 0))(variables, x[:, None])
    assert len(mapped.sharding.device_set) == 2
    np.testing.assert_allclose(mapped[:, 0], compiled(module)(variables, x), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_is_refused():
    x = sequence()
    with pytest.raises(NotImplementedError, match="LSH attention takes .*; got Window"):
        init(lsh(), x, mask=masks.Window(1, 1))
    host = MultiHeadAttention(N, route=ROUTE)
    variables = init(host, x)
    with pytest.raises(NotImplementedError, match="LSH takes no bias"):
        host.apply(variables, x, bias=jnp.zeros((1, 1, 1, L)))
    with pytest.raises(NotImplementedError, match="LSH never makes the T × S weights"):
        jax.eval_shape(lambda: host.apply(variables, x, return_weights=True))


def test_looking_at_a_whole_model_skips_it():
    """`mutable=["intermediates"]` is for all layers; the one that has no weights sows none."""
    module, x = lsh(), sequence()
    variables = init(module, x)
    _, found = jax.eval_shape(lambda: module.apply(variables, x, mutable=["intermediates"]))
    assert not found
