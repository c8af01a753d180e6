"""Flax's multi-head attention with one import changed: its keywords, by their names."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnlab.nnx
from attnlab import MultiHeadAttention, masks
from tests.modules.reference import apply, init
from tests.nnx.as_linen import AsLinen

B, T, D, N = 2, 5, 12, 3
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
BOTH = pytest.mark.parametrize("kind", [lambda module: module, AsLinen], ids=["linen", "nnx"])


def sequence():
    return jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), jnp.float32)


WORDS = {  # of a model of Flax's, as it stands
    "num_heads": N,
    "qkv_features": 6,
    "out_features": 7,
    "kernel_init": nn.initializers.normal(0.3),
    "bias_init": nn.initializers.constant(0.5),
    "out_kernel_init": nn.initializers.constant(0.25),
    "out_bias_init": nn.initializers.constant(2.0),
    "dropout_rate": 0.0,
    "broadcast_dropout": True,
    "deterministic": True,
    "normalize_qk": False,
    "decode": False,
    "precision": None,
}


def test_a_model_of_linen_has_the_same_parameters_and_numbers_to_begin_with():
    x, words = sequence(), {**WORDS, "force_fp32_for_softmax": True}
    inputs = {"inputs_q": x, "inputs_k": x[:, ::-1], "inputs_v": 2 * x}
    mask = nn.make_causal_mask(x[..., 0])
    theirs, ours = nn.MultiHeadDotProductAttention(**words), MultiHeadAttention(**words)
    (true, at_first), (got, variables) = (
        module.init_with_output(jax.random.key(0), **inputs, mask=mask) for module in (theirs, ours)
    )
    jax.tree.map(np.testing.assert_array_equal, at_first, variables)
    np.testing.assert_allclose(got, true, **CLOSE)


def test_a_model_of_nnx_has_the_same_parameters_and_numbers_to_begin_with():
    x, mask = sequence(), nn.make_causal_mask(jnp.ones((B, T)))
    theirs = nnx.MultiHeadAttention(in_features=D, rngs=nnx.Rngs(0), **WORDS)
    ours = attnlab.nnx.MultiHeadAttention(in_features=D, rngs=nnx.Rngs(0), **WORDS)
    for name in ("query", "key", "value", "out"):
        for leaf in ("kernel", "bias"):
            of_both = (getattr(getattr(module, name), leaf)[...] for module in (theirs, ours))
            np.testing.assert_array_equal(*of_both, err_msg=name)
    np.testing.assert_allclose(ours(x, mask=mask), theirs(x, mask=mask), **CLOSE)
    np.testing.assert_allclose(ours(inputs_q=x, is_causal=True), theirs(x, mask=mask), **CLOSE)
    with pytest.raises(TypeError, match="multiple values"):
        ours(x, inputs_q=x)
    theirs.init_cache((B, T, D))
    ours.init_cache((B, T, D))
    for module in (theirs, ours):
        module.set_attributes(decode=True)
    for t in range(T):
        token = x[:, t : t + 1]
        np.testing.assert_allclose(ours(token, token, token), theirs(token), **CLOSE)


@BOTH
def test_masks_of_0_and_1(kind):
    module, x = kind(MultiHeadAttention(N)), sequence()
    variables = init(module, x)
    causal = nn.make_causal_mask(x[..., 0])
    added = jnp.where(causal == 1, 0.0, -1e9)
    true = apply(module, variables, x, mask=masks.Causal())
    run = jax.jit(lambda mask: module.apply(variables, x, mask=mask))
    for dtype in (jnp.float32, jnp.int32):
        np.testing.assert_allclose(run(causal.astype(dtype)), true, **CLOSE)
        np.testing.assert_allclose(module.apply(variables, x, mask=causal), true, **CLOSE)
    for other in (added, 0.5 * causal):
        assert np.isnan(run(other)).all(), "what is added would be read as its contrary"
    with pytest.raises(ValueError, match="must be of 0 and 1.*additive terms go to bias="):
        module.apply(variables, x, mask=added)


@BOTH
def test_a_field_says_that_calls_decode(kind):
    """The query as its own key is self-attention, as in Flax, and so goes into the cache."""
    module, x = kind(MultiHeadAttention(N, decode=True)), sequence()
    variables = init(module, x, decode=True)
    true = apply(module, {"params": variables["params"]}, x, mask=masks.Causal(), decode=False)
    for t in range(T):
        token = x[:, t : t + 1]
        y, cache = module.apply(variables, token, token, token, mutable=["cache"])
        variables |= cache
        np.testing.assert_allclose(y[:, 0], true[:, t], **CLOSE)


@BOTH
def test_one_pattern_of_dropout_and_weights_of_fewer_bits(kind):
    """Examples and heads that are alike are dropped alike, or are not."""
    x = jnp.broadcast_to(sequence()[:1], (B, T, D))
    module = kind(MultiHeadAttention(N, dropout_rate=0.5, out_features=D))
    variables = init(module, x, deterministic=True)
    for broadcast in (True, False):
        drops = module.clone(broadcast_dropout=broadcast)
        rngs = {"dropout": jax.random.key(0)}
        one, two = apply(drops, variables, x, deterministic=False, rngs=rngs)
        assert (one == two).all() == broadcast
    half = module.clone(dtype=jnp.bfloat16)
    for forced, dtype in ((True, jnp.float32), (False, jnp.bfloat16)):
        _, weights = half.clone(force_fp32_for_softmax=forced).apply(
            variables, x, deterministic=True, return_weights=True
        )
        assert weights.dtype == dtype


def test_what_a_call_of_linen_says_of_sowing_and_dropout():
    module, x = MultiHeadAttention(N, dropout_rate=0.5, deterministic=False), sequence()
    variables = init(module, x)
    key, other = jax.random.split(jax.random.key(0))
    calls = [module.apply(variables, x, dropout_rng=given) for given in (key, key, other)]
    np.testing.assert_array_equal(*calls[:2])
    assert (calls[0] != calls[2]).any()
    for sows in (None, True, False):
        _, sown = module.apply(
            variables, x, dropout_rng=key, sow_weights=sows, mutable=["intermediates"]
        )
        assert ("intermediates" in sown) == (sows is not False)
