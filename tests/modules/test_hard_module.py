"""Modules that take one key: what they draw, sow and refuse, and that they decode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import AdditiveAttention, MultiHeadAttention, MultiplicativeAttention, masks, routes
from attnlab.ops.attention import attention, attention_weights
from attnlab.ops.hard import Choice
from tests.modules.reference import apply, init
from tests.nnx.as_linen import AsLinen

B, T, D = 2, 7, 6
HARD = routes.Hard()
MODULES = {
    "additive": AdditiveAttention(5, route=HARD),
    "general": MultiplicativeAttention(route=HARD),
    "multi_head": MultiHeadAttention(3, route=HARD),
}
MODULES |= {f"nnx_{name}": AsLinen(module) for name, module in MODULES.items()}


def sequence():
    return jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), jnp.float32)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_samples_while_trained_and_sows_what_reinforce_needs(name):
    module, x = MODULES[name], sequence()
    variables = init(module, x, deterministic=True)
    assert "choice" not in variables

    @jax.jit
    def train(key):
        return module.apply(
            variables,
            x,
            deterministic=False,
            rngs={"sample": key},
            return_weights=True,
            mutable=["choice"],
        )

    (_, one), sown = train(jax.random.key(0))
    (_, two), _ = train(jax.random.key(1))
    assert (one != two).any(), "sampled"
    for weights in (one, two):
        np.testing.assert_array_equal(jnp.sort(weights, -1)[..., -1], 1)
        np.testing.assert_array_equal(weights.sum(-1), 1)
    heads = getattr(module, "num_heads", 1)
    for values in (sown["choice"]["log_prob"], sown["choice"]["entropy"]):
        assert values[0].shape == (B, T, heads) and values[0].any()

    soft = module.clone(route=routes.AllPairs("dense"))
    _, of_soft = apply(soft, variables, x, deterministic=True, return_weights=True)
    _, likeliest = apply(module, variables, x, deterministic=True, return_weights=True)
    np.testing.assert_array_equal(likeliest.argmax(-1), of_soft.argmax(-1))


class Noisy(routes.Exact):
    """A user's own route: all pairs, with noise on what is chosen while a model is trained."""

    def __call__(self, *arrays, **options):
        return self.choose(*arrays, **options).context

    def choose(self, score, q, k, v, *, sample_key=None, **options):
        context = attention(score, q, k, v, **options)
        nothing = jnp.zeros(context.shape[:-1])
        if sample_key is not None:
            context += jax.random.normal(sample_key, context.shape)
        return Choice(context, None, nothing, nothing)

    def weights(self, score, q, k, **options):
        return attention_weights(score, q, k, **options)


@pytest.mark.parametrize("name", ["additive", "multi_head"])
def test_a_route_of_ones_own_samples_and_drops(name):
    """Modules refuse for no other route what Hard cannot do."""
    module, x = MODULES[name].clone(route=Noisy(), dropout_rate=0.5), sequence()
    variables = init(module, x, deterministic=True)

    @jax.jit
    def train(sample, dropout):
        rngs = {"sample": jax.random.key(sample), "dropout": jax.random.key(dropout)}
        return module.apply(variables, x, deterministic=False, rngs=rngs)

    first = train(0, 0)
    assert (train(1, 0) != first).any(), "sampled"
    assert (train(0, 1) != first).any(), "dropped"


def test_decoding_is_the_causal_forward():
    module, x = MultiHeadAttention(3, route=HARD), sequence()
    variables = init(module, x, decode=True)
    params = {"params": variables["params"]}
    true = apply(module, params, x, mask=masks.Causal(), deterministic=True)
    step = jax.jit(lambda v, x: module.apply(v, x, decode=True, mutable=["cache"]))
    outputs = []
    for start, stop in ((0, 3), *((t, t + 1) for t in range(3, T))):
        y, updated = step(variables, x[:, start:stop])
        variables = {**variables, **updated}
        outputs.append(y)
    np.testing.assert_allclose(jnp.concatenate(outputs, 1), true, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_refusals(name):
    module, x = MODULES[name], sequence()
    with pytest.raises(ValueError, match=r"Hard\(\) takes one key.*got dropout_rate=0.1"):
        module.clone(dropout_rate=0.1).init(jax.random.key(0), x, deterministic=False)
    with pytest.raises(ValueError, match="must be told whether to sample: call or make it with de"):
        init(module, x)


def test_a_single_head_restricted_to_a_window():
    x = sequence()
    module = AdditiveAttention(5, route=routes.Window(1, 0))
    _, weights = apply(module, init(module, x), x, return_weights=True)
    here, there = np.indices((T, T))
    np.testing.assert_array_equal(weights[0] > 0, (here - there >= 0) & (here - there <= 1))
