"""Weights to look at, and dropout on them, as a Flax user expects both."""

import dataclasses

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import MultiHeadAttention, masks, routes
from tests.daily import daily
from tests.modules.reference import apply, init
from tests.modules.test_conventions import MODULES, B, D, T, dense, inputs
from tests.trees import assert_close

SINGLE_HEAD = ("additive", "general", "concat", "location", "local_m", "local_p", "nnx_additive")
SINGLE_HEAD += ("nnx_local_p",)
RATE = 0.25


def with_values(name):
    """Query, key and the values that turn a context into its weights."""
    query = inputs(name)[0]
    return query, query, jnp.broadcast_to(jnp.eye(T), (B, T, T))


@pytest.mark.parametrize("name", SINGLE_HEAD)
def test_weights_are_those_of_the_context_and_are_sown(name):
    module, x = dense(name), with_values(name)
    variables = init(module, *x)
    mask = masks.Padding(jnp.array([T, 4]))
    (context, weights), state = apply(
        module, variables, *x, mask=mask, return_weights=True, mutable=["intermediates"]
    )
    np.testing.assert_allclose(context, weights, rtol=1e-6, atol=1e-7)
    assert (weights >= 0).all() and (weights.sum(-1) <= 1 + 1e-6).all()
    np.testing.assert_array_equal(weights[1, :, 4:], 0)
    (sown,) = state["intermediates"]["attention_weights"]
    np.testing.assert_array_equal(sown, weights)


@pytest.mark.parametrize("name", ["multi_head", "nnx_multi_head"])
def test_heads_weights_are_sown_too(name):
    module, x = dense(name), inputs(name)
    variables = init(module, *x)
    (_, weights), state = apply(
        module, variables, *x, return_weights=True, mutable=["intermediates"]
    )
    assert weights.shape == (B, 2, T, T)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    (sown,) = state["intermediates"]["attention_weights"]
    np.testing.assert_array_equal(sown, weights)


@pytest.mark.parametrize("name", ["additive", "general", "local_p", "multi_head"])
def test_nobody_who_does_not_look_pays_for_weights(name):
    module = MODULES[name]
    x = (jnp.ones((1, 1031, D)),) * len(inputs(name))
    variables = init(module, *x)
    jaxpr = jax.make_jaxpr(lambda v: module.apply(v, *x))(variables)
    assert "1031,1031" not in str(jaxpr)


@pytest.mark.parametrize(
    "name", ["additive", "general", "location", "local_m", "local_p", "nnx_additive"]
)
def test_dropout_is_of_each_weight_alone(name):
    module, x = dense(name), with_values(name)
    variables = init(module, *x)
    weights = np.asarray(apply(module, variables, *x))
    dropping = module.clone(dropout_rate=RATE)

    @jax.jit
    def run(seed):
        rngs = {"dropout": jax.random.key(seed)}
        return dropping.apply(variables, *x, deterministic=False, rngs=rngs)

    kept = []
    for seed in range(20):
        got = np.asarray(run(seed))
        keeps = got != 0
        np.testing.assert_allclose(got, np.where(keeps, weights / (1 - RATE), 0), rtol=1e-5)
        kept.append(keeps[weights > 0])
    kept = np.stack(kept)
    assert kept.mean() == pytest.approx(1 - RATE, abs=0.03)
    assert np.unique(kept, axis=0).shape[0] == 20, "another key drops others"
    np.testing.assert_array_equal(run(0), run(0))
    still = apply(dropping, variables, *x, deterministic=True)
    np.testing.assert_array_equal(still, weights)


@pytest.mark.parametrize("name", ["multi_head", "lsh", "nnx_multi_head"])
def test_dropout_of_heads(name):
    module, x = dense(name), inputs(name)
    dropping = module.clone(dropout_rate=RATE)
    variables = init(module, *x)
    rng = jax.jit(
        lambda seed: dropping.apply(
            variables, *x, deterministic=False, rngs={"dropout": jax.random.key(seed)}
        )
    )
    np.testing.assert_array_equal(rng(0), rng(0))
    assert np.isfinite(rng(0)).all() and np.abs(rng(0) - rng(1)).max() > 1e-3
    text = [
        str(jax.make_jaxpr(lambda v, m=m: m.apply(v, *x, deterministic=True))(variables))
        for m in (dropping, module)
    ]
    assert text[0].count("threefry") == text[1].count("threefry"), "deterministic drops nothing"


@pytest.mark.parametrize("name", MODULES)
def test_dropout_must_be_told_and_given_its_stream(name):
    module, x = MODULES[name].clone(dropout_rate=RATE), inputs(name)
    with pytest.raises(ValueError, match="dropout_rate=0.25 must be told .*deterministic=True or"):
        module.init(jax.random.key(0), *x)
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), *x, deterministic=True))

    def run(variables):
        return module.apply(variables, *x, deterministic=False)

    error = ValueError if name.startswith("nnx_") else flax.errors.InvalidRngError
    with pytest.raises(error, match="dropout"):
        jax.eval_shape(run, variables)


@pytest.mark.parametrize(
    "name", daily(["additive", "local_p", "multi_head", "lsh"], "multi_head", "local_p")
)
def test_dropout_may_be_told_by_an_attribute(name):
    """As `nn.remat` needs it, which makes a tracer of the call's keyword."""
    module, x = dense(name).clone(dropout_rate=RATE), inputs(name)
    told = module.clone(deterministic=False)
    variables = init(module, *x, deterministic=True)
    fields = {f.name: getattr(told, f.name) for f in dataclasses.fields(told) if f.init}
    again = nn.remat(type(told))(**fields | {"parent": None, "name": None})
    rngs = {"dropout": jax.random.key(0)}

    def loss(module, **options):
        return lambda v: (module.apply(v, *x, rngs=rngs, **options) ** 2).sum()

    def gradients(*of):
        return jax.jit(lambda v: [jax.grad(one)(v) for one in of])(variables)

    one, *others = gradients(loss(module, deterministic=False), loss(told), loss(again))
    for other in others:
        assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert told._is_deterministic(True), "what the call says counts"


def test_weights_shown_are_those_before_dropout():
    module = MultiHeadAttention(2, dropout_rate=0.5, route=routes.AllPairs("dense"))
    (x,) = inputs("multi_head")
    variables = init(module, x, deterministic=True)
    _, weights = apply(
        module,
        variables,
        x,
        deterministic=False,
        return_weights=True,
        rngs={"dropout": jax.random.key(0)},
    )
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
