"""Variables carried between Linen and NNX, attnlab's modules and Flax's own, and back."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnlab.nnx
from attnlab import LSHSelfAttention, MultiHeadAttention, masks, routes
from attnlab.models import Bert, Reformer, Transformer, TransformerConfig
from attnlab.nnx import from_nnx, load
from tests.daily import daily
from tests.modules.reference import apply, init
from tests.modules.test_conventions import LINEN, MODULES, inputs
from tests.nnx.as_linen import AsLinen
from tests.trees import assert_close

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def assert_same(got, true):
    assert jax.tree.structure(got) == jax.tree.structure(true)
    jax.tree.map(np.testing.assert_array_equal, got, true)


@pytest.mark.parametrize("name", LINEN)
def test_a_module_has_the_numbers_of_linens(name):
    linen, x = MODULES[name], inputs(name)
    variables = init(linen, *x)
    module = AsLinen(linen).make(*x, rngs=nnx.Rngs(0))
    load(module, variables)
    assert_same(from_nnx(module), {k: v for k, v in variables.items() if v})
    np.testing.assert_allclose(module(*x), apply(linen, variables, *x), **CLOSE)


def test_a_cache_and_a_center_go_over_too():
    linen = LSHSelfAttention(2, route=routes.LSH(num_buckets=2, chunk_size=4, centering="learned"))
    x = inputs("lsh")[0]
    variables = init(linen, x, decode=True)
    _, moved = linen.apply(variables, x[:, :3], decode=True, mutable=["cache"])
    variables |= moved
    module = attnlab.nnx.LSHSelfAttention(2, x.shape[-1], route=linen.route, rngs=nnx.Rngs(0))
    module.init_cache(x.shape)
    load(module, variables)
    assert_same(from_nnx(module), variables)
    true, _ = linen.apply(variables, x[:, 3:], decode=True, mutable=["cache"])
    np.testing.assert_allclose(module(x[:, 3:], decode=True), true, **CLOSE)


def test_flaxs_own_modules_of_both_kinds_have_the_same_parameters():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 12)), jnp.float32)
    variables = init(nn.MultiHeadDotProductAttention(3), x)
    theirs = nnx.MultiHeadAttention(3, 12, decode=False, rngs=nnx.Rngs(0))
    ours = attnlab.nnx.MultiHeadAttention(3, 12, decode=False, rngs=nnx.Rngs(1))
    mask = nn.make_causal_mask(x[..., 0])
    true = nn.MultiHeadDotProductAttention(3).apply(variables, x, mask=mask)
    for module in (theirs, ours):
        load(module, variables)
        np.testing.assert_allclose(module(x, mask=mask), true, rtol=1e-5, atol=1e-6)
        assert_same(from_nnx(module), variables)
    np.testing.assert_allclose(
        MultiHeadAttention(3).apply(from_nnx(theirs), x, mask=masks.Causal()), true, **CLOSE
    )


SIZES = {"num_layers": 1, "width": 12, "hidden": 17, "num_heads": 3, "max_length": 8}
TOKENS = jnp.asarray([[1, 7, 8, 9, 2, 5]])
CENTERED = routes.LSH(num_buckets=2, chunk_size=4, centering="learned")
MODELS = {
    "transformer": (Transformer(TransformerConfig(11, **SIZES)), (TOKENS, TOKENS)),
    "reformer": (
        Reformer(TransformerConfig(11, **SIZES), LSHSelfAttention(3, route=CENTERED)),
        (TOKENS,),
    ),
    "bert": (Bert(TransformerConfig.bert(11, **SIZES)), (TOKENS,)),
}


@pytest.mark.parametrize("name", daily(MODELS, "reformer"))
def test_a_model_behind_flaxs_bridge_takes_its_variables_and_gives_them_back(name):
    model, x = MODELS[name]
    variables = init(model, *x)
    module = nnx.bridge.ToNNX(model, rngs=nnx.Rngs(0)).lazy_init(*x)
    load(module, variables)
    assert_same(from_nnx(module), variables)
    assert_close(module(*x), model.apply(variables, *x), rtol=1e-5, atol=1e-5)


def test_a_model_behind_flaxs_bridge_decodes_with_the_caches_of_these_modules():
    model, (source, target) = MODELS["transformer"]
    variables = init(model, source, target)
    module = nnx.bridge.ToNNX(model, rngs=nnx.Rngs(0)).lazy_init(source, target)
    memory = module.encode(source)
    nnx.bridge.lazy_init(module.decode, memory, target, decode=True)
    load(module, variables)

    @nnx.jit
    def step(module, tokens):
        return module.decode(memory, tokens, decode=True, mutable=["cache", "static"])

    pieces = [step(module, target[:, part]) for part in (slice(4), slice(4, 5), slice(5, 6))]
    true = model.apply(variables, memory, target, method="decode")
    np.testing.assert_allclose(jnp.concatenate(pieces, 1), true, rtol=1e-5, atol=1e-5)
    assert from_nnx(module).keys() == {"params", "cache", "static"}
    assert len(nnx.state(module, attnlab.nnx.SourceCache)) == 1


def test_what_does_not_fit_changes_nothing():
    """The lines that say what does not are on the page of refusals."""
    module = attnlab.nnx.MultiHeadAttention(3, 12, rngs=nnx.Rngs(0))
    params = from_nnx(module)["params"]
    wrong = {
        "query": jax.tree.map(jnp.ones_like, params["query"]),
        "out": params["out"] | {"kernel": np.ones(3)},
    }
    with pytest.raises(ValueError, match="out/kernel of this MultiHeadAttention has the shape"):
        load(module, {"params": params | wrong})
    assert_same(from_nnx(module)["params"], params)
