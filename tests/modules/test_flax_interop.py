"""attnlab's attention inside Flax's own multi-head modules: Flax's numbers, and nothing lost."""

import functools
import pickle

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnlab import (
    MultiHeadAttention,
    as_flax_attention_fn,
    masks,
    routes,
    scores,
)
from tests import oracle
from tests.daily import daily
from tests.modules.reference import apply, init, multi_head
from tests.trees import assert_close

B, T, D, N = 2, 7, 12, 3
REAL = np.arange(T) < np.array([[T], [4]])
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def sequence(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, T, D)), jnp.float32)


def fn(**options):
    return as_flax_attention_fn(route=routes.AllPairs("dense"), **options)  # compiles fastest


def linen(attention_fn, **options):
    return nn.MultiHeadDotProductAttention(N, attention_fn=attention_fn, **options)


def of_nnx(attention_fn, seed=0, **options):
    return nnx.MultiHeadAttention(
        N, D, attention_fn=attention_fn, rngs=nnx.Rngs(seed), **({"decode": False} | options)
    )


def masks_of_flax():
    """Causal and padding, from Flax's own helpers."""
    causal = nn.make_causal_mask(jnp.ones((B, T)))
    real = jnp.asarray(REAL)
    return {
        "none": None,
        "float": nn.combine_masks(causal, nn.make_attention_mask(jnp.ones((B, T)), real)),
        "bool": nn.make_attention_mask(jnp.ones((B, T), bool), real, dtype=bool),
        "one_for_all": nn.make_causal_mask(jnp.ones((1, T)), dtype=bool),
    }


@pytest.mark.parametrize("make", daily([linen, of_nnx], linen))
def test_equals_flax_under_its_masks(make):
    x, found = sequence(), masks_of_flax()
    assert found["float"].dtype == jnp.float32 and found["bool"].dtype == jnp.bool_
    if make is linen:
        variables = init(linen(nn.dot_product_attention), x)

        def run(attention_fn, mask):
            return linen(attention_fn).apply(variables, x, mask=mask)

        theirs = nn.dot_product_attention
    else:

        def run(attention_fn, mask):
            return of_nnx(attention_fn)(x, mask=mask)

        theirs = nnx.dot_product_attention

    @jax.jit
    def all_of_them():
        return {kind: (run(theirs, mask), run(fn(), mask)) for kind, mask in found.items()}

    results = all_of_them()
    for kind, (true, got) in results.items():
        np.testing.assert_allclose(got, true, err_msg=kind, **CLOSE)
        if kind != "none":
            assert np.abs(true - results["none"][0]).max() > 1e-2, f"{kind} does nothing"


def test_the_default_is_attnlabs_own_choice_of_implementation():
    x = jnp.ones((1, 1031, D))
    module = linen(as_flax_attention_fn())
    variables = init(module, x)
    assert "1031,1031" not in str(jax.make_jaxpr(lambda v: module.apply(v, x))(variables))


def test_nnx_is_causal():
    x, real = sequence(), nnx.make_attention_mask(jnp.ones((B, T)), jnp.asarray(REAL))

    @jax.jit
    def run():
        found = []
        for attention_fn in (nnx.dot_product_attention, fn()):
            module = of_nnx(attention_fn)
            found += [module(x, is_causal=True), module(x, mask=real, is_causal=True), module(x)]
        return found

    causal, both, _, our_causal, our_both, plain = run()
    np.testing.assert_allclose(our_causal, causal, **CLOSE)
    np.testing.assert_allclose(our_both, both, **CLOSE)
    assert np.abs(our_causal - plain).max() > 1e-2 and np.abs(our_both - our_causal).max() > 1e-2


def test_nn_jit_takes_a_score_of_arrays():
    attention_fn = fn(score=scores.Additive(jnp.ones(D // N)))

    class Compiled(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.jit(nn.MultiHeadDotProductAttention)(N, attention_fn=attention_fn)(x)

    variables = init(Compiled(), sequence())
    plain = {"params": variables["params"]["JitMultiHeadDotProductAttention_0"]}
    got = apply(Compiled(), variables, sequence())
    np.testing.assert_allclose(got, apply(linen(attention_fn), plain, sequence()), **CLOSE)


def test_linen_decodes():
    x = sequence()
    module = linen(fn(), decode=True)
    variables = init(module, x)
    whole = apply(
        linen(nn.dot_product_attention),
        {"params": variables["params"]},
        x,
        mask=nn.make_causal_mask(x[..., 0]),
    )
    step = jax.jit(lambda v, x: module.apply(v, x, mutable=["cache"]))
    for t in range(T):
        y, updated = step(variables, x[:, t : t + 1])
        variables = {**variables, **updated}
        np.testing.assert_allclose(y[:, 0], whole[:, t], **CLOSE)


def test_another_score_and_route():
    x = sequence()
    module = linen(as_flax_attention_fn(scores.Cosine(3.0), routes.Window(2, 1)))
    variables = init(module, x)
    true, _ = multi_head(
        {**variables["params"], "score": {"scale": np.array(3.0)}},
        x,
        x,
        x,
        score=oracle.cosine,
        score_parameters=("scale",),
        mask=oracle.window(T, T, 2, 1),
    )
    np.testing.assert_allclose(apply(module, variables, x), true, **CLOSE)


@pytest.mark.parametrize(
    "route",
    [
        routes.AllPairs("dense"),
        routes.Window(9, 0),
        routes.LSH(1, num_buckets=2, chunk_size=8, shared_qk=False, shared_rotations=True),
    ],
    ids=["all", "window", "lsh"],
)
def test_broadcast_dropout_is_one_pattern_for_all_examples_and_heads(route):
    """Of examples and heads that are alike the weights after dropout are, or are not.

    They are the context of the identity as values.
    """
    one = np.random.default_rng(0).normal(size=(2, 16, 4))
    q, k = (np.broadcast_to(x.astype("f")[None, :, None], (2, 16, 3, 4)) for x in one)
    identity = np.broadcast_to(np.eye(16, dtype="f")[None, :, None], (2, 16, 3, 16))

    def call(**options):
        attend = functools.partial(as_flax_attention_fn(route=route), dropout_rate=0.25, **options)
        return np.asarray(jax.jit(attend)(q, k, identity, mask=masks.Causal()))

    whole = call(deterministic=True)
    for broadcast in (True, False):
        got = call(broadcast_dropout=broadcast, dropout_rng=jax.random.key(1))
        assert (got != got[:1, :, :1]).any() == (not broadcast)
        assert 0.1 < (got[whole > 0] == 0).mean() < 0.4
        np.testing.assert_allclose(got[got > 0], whole[got > 0] / 0.75, rtol=1e-4)


@pytest.mark.parametrize("make", [linen, of_nnx])
def test_flax_s_default_dropout_trains(make):
    """The same key drops the same, and nothing is dropped where it is deterministic."""
    x, params = sequence(), parameters_of(make, sequence())

    @functools.partial(jax.jit, static_argnums=(0, 1, 2))
    def run(deterministic, seed=0, rate=0.5):
        options = {"dropout_rate": rate}
        if make is linen:
            rngs = {"dropout": jax.random.key(seed)}
            module = linen(fn(), **options)
            return module.apply({"params": params}, x, deterministic=deterministic, rngs=rngs)
        return of_nnx(fn(), **options)(x, deterministic=deterministic, rngs=nnx.Rngs(dropout=seed))

    np.testing.assert_array_equal(run(True), run(True, 1, rate=0.0))
    np.testing.assert_array_equal(run(False), run(False))
    for other in (run(True), run(False, 1)):
        assert np.abs(run(False) - other).max() > 1e-2


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")  # NNX of its own
@pytest.mark.parametrize("make", [linen, of_nnx])
def test_weights_are_sown_as_flax_sows_them(make):
    x, found = sequence(), []
    params = parameters_of(linen, x)
    mask = nn.make_causal_mask(x[..., 0])
    theirs = nn.dot_product_attention if make is linen else nnx.dot_product_attention

    @functools.partial(jax.jit, static_argnums=0)
    def sown_by(attention_fn):
        if make is linen:
            module = linen(attention_fn)
            _, sown = module.apply(
                {"params": params}, x, mask=mask, sow_weights=True, mutable=["intermediates"]
            )
            return sown["intermediates"]["attention_weights"]
        module = of_nnx(attention_fn)
        module(x, mask=mask, sow_weights=True)
        assert type(module.attention_weights) is nnx.Intermediate
        return module.attention_weights.get_value()

    for attention_fn in (theirs, fn()):
        found += sown_by(attention_fn)
    assert len(found) == 2 and found[1].shape == (B, N, T, T)
    np.testing.assert_allclose(found[1], found[0], **CLOSE)


def test_dtype_is_flax_s():
    x = sequence()
    module = linen(fn(), dtype=jnp.bfloat16)
    assert apply(module, init(module, x), x).dtype == jnp.bfloat16
    assert jax.eval_shape(lambda: of_nnx(fn(), dtype=jnp.bfloat16)(x)).dtype == jnp.bfloat16


WITHOUT_PLACES = {
    "lsh": routes.LSH(1, num_buckets=2, shared_qk=False),
    "function": routes.Function(lambda q, k, v, *, mask: q),
}


@pytest.mark.parametrize("name", WITHOUT_PLACES)
def test_what_asks_where_a_query_stands_is_refused_while_flax_decodes(name):
    """Flax does not say it; the page of refusals has a window."""
    x, route = sequence(), WITHOUT_PLACES[name]
    module = linen(as_flax_attention_fn(route=route), decode=True)

    def decode(x):
        variables = module.init(jax.random.key(0), x)
        return module.apply(variables, x[:, :1], mutable=["cache"])

    with pytest.raises(NotImplementedError, match="got 1 queries and 7 keys"):
        jax.eval_shape(decode, x)


def test_a_function_of_one_query_pools():
    mean = lambda q, k, v: jnp.broadcast_to(v.mean(-3, keepdims=True), q.shape)  # noqa: E731
    module, x = linen(as_flax_attention_fn(route=routes.Function(mean))), sequence()
    variables = init(module, x[:, :1], x)
    assert apply(module, variables, x[:, :1], x).shape == (B, 1, x.shape[-1])


def parameters_of(make, x):
    """Of Flax's module, in the layout of `MultiHeadAttention`: it is the same."""
    if make is linen:
        return init(linen(nn.dot_product_attention), x)["params"]
    return nnx.to_pure_dict(nnx.state(of_nnx(nnx.dot_product_attention), nnx.Param))


def calls(make, attention_fn):
    """(params, x, mask) -> the output of Flax's module."""
    if make is linen:
        return lambda params, x, mask: linen(attention_fn).apply({"params": params}, x, mask=mask)

    def call(params, x, mask):
        graph, state = nnx.split(of_nnx(attention_fn))
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(x, mask=mask)

    return call


ROUTES = {
    "all": routes.AllPairs("dense"),
    "lsh": routes.LSH(2, num_buckets=4, chunk_size=2, shared_qk=False, implementation="dense"),
}


@pytest.mark.parametrize("name", daily(ROUTES, "all"))
def test_lazy_masks_pass(name):
    """Output and gradients are those of attnlab's own module; nothing comes from the future."""
    x, mask = sequence(), masks.Causal() & masks.Padding(jnp.asarray(REAL.sum(1)))
    params = parameters_of(linen, x)
    inside = [calls(make, as_flax_attention_fn(route=ROUTES[name])) for make in (linen, of_nnx)]

    def own(params, x, mask):
        return MultiHeadAttention(N, route=ROUTES[name]).apply({"params": params}, x, mask=mask)

    @jax.jit
    def run(params, x, dy):
        found = []
        for call in (own, *inside):
            y, pull_back = jax.vjp(lambda params, x, call=call: call(params, x, mask), params, x)
            found.append((y, *pull_back(dy)))
        return found

    dy = sequence(1)
    true, *rest = run(params, x, dy)
    for got in rest:
        assert_close(got, true, **CLOSE)
    for t in (2, 5):
        for _, _, dx in run(params, x, dy.at[:, :t].set(0).at[:, t + 1 :].set(0))[1:]:
            np.testing.assert_array_equal(dx[:, t + 1 :], 0)
            assert np.abs(dx[0, :t]).max() > 1e-4


def test_modules_with_the_same_attention_are_the_same_to_jit():
    """As with Flax's own function; pickled, too. Arrays have no hash, and so are themselves."""

    def make(score=None, left=1):
        return as_flax_attention_fn(score, routes.Window(left, 0))

    @functools.partial(jax.jit, static_argnums=0)
    def width(module):
        return module.num_heads

    for score in (None, scores.Cosine(3.0)):
        assert make(score) == pickle.loads(pickle.dumps(make(score)))
        width(linen(make(score))), width(linen(make(score)))
    assert width._cache_size() == 2
    assert make() != make(left=2) and make() != make(scores.Dot(1.0))
    learned = scores.Additive(jnp.ones(4))
    assert hash(make(learned)) == hash(make(learned)) and make(learned) == make(learned)
    assert make(learned) != make(scores.Additive(jnp.ones(4)))
    seen = routes.Masked(masks.Explicit(jnp.ones((T, T), bool)))
    masked = as_flax_attention_fn(route=seen)
    assert masked == as_flax_attention_fn(route=seen) and hash(masked) == hash(
        as_flax_attention_fn(route=seen)
    )
    assert masked != make()
