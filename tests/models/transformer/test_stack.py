"""Layers of a Transformer on top of each other: scanned, in patterns, recomputed, in chunks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import routes
from attnlab.bench import network
from attnlab.models.transformer import TransformerEncoder, TransformerLM
from attnlab.models.transformer.layers import FeedForward
from attnlab.training.parallel import shardings_on
from tests.models.transformer.tiny import SOURCE, TARGET, TINY, D, N, tiny
from tests.modules.reference import apply, init


@pytest.mark.slow
def test_scanned_layers_are_the_same_layers():
    loop, scan = tiny(), tiny(scan_layers=True)
    variables = init(loop, SOURCE, TARGET)
    params = {name: dict(x) for name, x in variables["params"].items()}
    for name in ("encoder", "decoder"):
        layers = [params[name].pop(f"layer_{i}") for i in range(N)]
        params[name]["layers"] = jax.tree.map(lambda *x: jnp.stack(x), *layers)
    got, intermediates = apply(scan, {"params": params}, SOURCE, TARGET, mutable=["intermediates"])
    np.testing.assert_allclose(got, apply(loop, variables, SOURCE, TARGET), rtol=1e-5, atol=1e-5)
    cross = intermediates["intermediates"]["decoder"]["layers"]["cross_attention"]
    assert cross["attention_weights"][0].shape == (N, 2, 3, 5, 7)
    # Each layer begins with numbers of its own.
    fresh = jax.jit(scan.init)(jax.random.key(0), SOURCE, TARGET)["params"]
    kernel = fresh["encoder"]["layers"]["feed_forward"]["hidden"]["kernel"]
    assert abs(kernel[0] - kernel[1]).max() > 0.1


def test_a_pattern_is_repeated_by_the_layers():
    """Also where the layers are scanned, whose arrays are those of the loop, stacked."""
    routes_of = [routes.Window(1, 0, "dense"), routes.AllPairs("dense")]

    def model(**options):
        config = dataclasses.replace(TINY, num_layers=4, **options)
        return TransformerLM(config, [config.attention(route) for route in routes_of])

    loop, scan = model(), model(scan_layers=True)
    variables = init(loop, TARGET)
    params = dict(variables["params"])
    layers = [params["decoder"][f"layer_{i}"] for i in range(4)]
    params["decoder"] = {
        "layers": {
            f"layer_{i}": jax.tree.map(lambda *x: np.stack(x), *layers[i::2]) for i in range(2)
        }
    }
    got = apply(scan, {"params": params}, TARGET)
    np.testing.assert_allclose(got, apply(loop, variables, TARGET), rtol=1e-5, atol=1e-5)
    # Layer 0 sees one token back, layer 1 all: what a token adds there, layer 3 sees everywhere.
    exchanged = loop.copy(attention=loop.attention[::-1])
    assert abs(apply(exchanged, variables, TARGET) - got).max() > 1e-3


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_chunked_feed_forward_network_is_the_same(rate):
    """Its hidden layer exists for a chunk at a time, also backward, with dropout of its own."""
    x = np.float32(np.random.default_rng(0).normal(size=(2, 11, D)))
    config = dataclasses.replace(TINY, hidden=64, hidden_dropout_rate=rate)
    whole, chunked = (
        FeedForward(dataclasses.replace(config, feed_forward_chunk=size)) for size in (None, 4)
    )
    params = init(whole, x)["params"]
    assert jax.tree.map(np.shape, init(chunked, x)["params"]) == jax.tree.map(np.shape, params)
    options = {"deterministic": rate == 0, "rngs": {"dropout": jax.random.key(0)}}

    def gradient(module):
        return jax.grad(lambda params: (module.apply({"params": params}, x, **options) ** 2).sum())

    programs = [str(jax.make_jaxpr(gradient(module))(params)) for module in (whole, chunked)]
    assert ["2,11,64" in program for program in programs] == [True, False]
    if rate == 0:
        want, got = (jax.jit(gradient(module))(params) for module in (whole, chunked))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-4), got, want)
    else:
        # One token everywhere, so masks tell chunks apart; one key may serve all streams.
        same = np.broadcast_to(x[:, :1], x.shape)
        for rngs in (options["rngs"], jax.random.key(0)):
            y = apply(chunked, {"params": params}, same, deterministic=False, rngs=rngs)
            assert len(np.unique(np.asarray(y)[0, :, 0])) == 11


@pytest.mark.slow
def test_recomputed_activations_change_no_gradient():
    def gradient(**options):
        model = tiny(TransformerEncoder, **options)
        rngs = {"dropout": jax.random.key(3)}

        def loss(params):
            states = model.apply({"params": params}, SOURCE, deterministic=False, rngs=rngs)
            return (states**3).sum()

        return jax.grad(loss), init(model, SOURCE)["params"]

    found = []
    for options, recomputes in (
        ({}, False),
        ({"remat": True}, True),
        ({"remat": True, "scan_layers": True}, True),
    ):
        function, params = gradient(**options)
        assert ("remat" in str(jax.make_jaxpr(function)(params))) == recomputes
        if "scan_layers" not in options:
            found.append(jax.jit(function)(params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *found)


def sent_by_a_network(sizes, chunk, gradient):
    """Bytes that each of two devices sends; the parameters divided as a training's are."""
    module = FeedForward(dataclasses.replace(TINY, hidden=16, feed_forward_chunk=chunk))
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh(sizes, ("data", "model"), axis_types=auto)
    x = jax.ShapeDtypeStruct((2, 24, D), jnp.float32)
    params = jax.eval_shape(module.init, jax.random.key(0), x)
    rows = jax.NamedSharding(mesh, jax.P("data"))
    state = {"params": shardings_on(mesh, {"feed_forward": params["params"]})["feed_forward"]}
    function, out = module.apply, rows
    if gradient:
        function = jax.grad(lambda params, x: (module.apply(params, x) ** 2).sum(), argnums=(0, 1))
        out = state, rows
    with attnlab.over(mesh, batch="data", heads="model"):
        call = jax.jit(function, in_shardings=(state, rows), out_shardings=out)
        text = call.lower(params, x).compile().as_text()
    return network.sent(text, devices=2, devices_per_host=2).total


def test_chunks_gather_a_divided_state_once():
    """Not XLA's choice, which sends activations or weights for each of the 6 chunks."""
    forward, both = (sent_by_a_network((2, 1), None, gradient) for gradient in (False, True))
    of_gradients = both - forward
    assert forward > 0 and of_gradients > 0
    # XLA:CPU adds the gradients up over the devices chunk by chunk; a GPU's compiler, at the end.
    assert sent_by_a_network((2, 1), 4, gradient=True) == forward + 6 * of_gradients


def test_chunks_leave_hidden_units_divided():
    whole, chunked = (sent_by_a_network((1, 2), chunk, gradient=False) for chunk in (None, 4))
    assert chunked == whole > 0
