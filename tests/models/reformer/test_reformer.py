"""The Reformer: its backward pass, its memory, its decoding, where it runs, what it refuses."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import routes
from attnlab.bench import network
from attnlab.masks import Mask
from attnlab.models import Reformer, TransformerConfig, TransformerLM
from attnlab.models.reformer import couplings
from attnlab.models.reformer.model import ReversibleStack
from attnlab.training.parallel import shardings_on
from tests.daily import daily
from tests.modules.reference import apply, init
from tests.trees import assert_close

V, LENGTH, CHUNK = 29, 23, 4
TINY = TransformerConfig(
    V,
    num_layers=4,
    width=12,
    hidden=17,
    num_heads=3,
    feed_forward_chunk=5,
    positions="axial",
    max_length=30,
    axial_shape=(5, 6),
    axial_widths=(3, 9),
    dropout_rate=0.3,
    attention_dropout_rate=0.2,
)
# Of a window and LSH: once, or scanned twice over both.
SCANNED = [{"scan_layers": False, "num_layers": 2}, {"scan_layers": True}]
LSH = routes.LSH(num_hashes=2, num_buckets=4, chunk_size=CHUNK, centering="learned")
TOKENS = jnp.asarray(np.random.default_rng(0).integers(4, V, (2, LENGTH)))
STREAMS = ("dropout", "hash")


def tiny(*pattern, stream_dtype=jnp.float32, **changed):
    config = dataclasses.replace(TINY, **changed)
    attention = tuple(config.attention(route) for route in pattern or (routes.Window(3, 0), LSH))
    return Reformer(config, attention, stream_dtype)


def gradient(model, variables, tokens=TOKENS):
    """Of a mean with every dropout on, and the collections as the pass left them."""
    kept = {kind: x for kind, x in variables.items() if kind != "params"}
    rngs = {name: jax.random.key(i) for i, name in enumerate(STREAMS)}

    @functools.partial(jax.grad, has_aux=True)
    def of_loss(params):
        logits, moved = model.apply(
            {"params": params, **kept},
            tokens,
            deterministic=False,
            rngs=rngs,
            mutable=list(kept),
        )
        return -jax.nn.log_softmax(logits)[..., 5].mean(), moved

    return jax.jit(of_loss)(variables["params"])


class Spy(nn.Module):
    """An attention that keeps the masks it is given, draws, and adds a loss of its own."""

    note: Callable[[Mask], None]

    @nn.compact
    def __call__(self, x, *, mask, deterministic, decode=False):
        self.note(mask)
        x = nn.Dense(x.shape[-1])(x)
        self.sow("losses", "size", jnp.square(x).mean())
        return x + jax.random.normal(self.make_rng("noise"), x.shape)


def relative_error(got, want):
    flat = [jnp.concatenate([x.ravel() for x in jax.tree.leaves(tree)]) for tree in (got, want)]
    return float(jnp.linalg.norm(flat[0] - flat[1]) / jnp.linalg.norm(flat[1]))


@pytest.mark.slow
@pytest.mark.parametrize("layers", SCANNED, ids=str)
def test_gradients_are_those_of_stored_activations(monkeypatch, layers):
    """With dropout, rotations drawn anew and a center that moves: all of it is drawn again."""
    model = tiny(**layers)
    variables = init(model, TOKENS)
    got, moved = gradient(model, variables)
    monkeypatch.setattr("attnlab.models.reformer.model.reversible", couplings.store_layers)
    want, moved_of_stored = gradient(model, variables)
    assert relative_error(got, want) < 3e-6
    assert_close(moved, moved_of_stored, atol=1e-6)
    before = {"hash_stats": variables["hash_stats"]}
    assert jax.tree.structure(moved) == jax.tree.structure(before)
    assert not jax.tree.all(jax.tree.map(jnp.array_equal, moved, before))
    assert min(float(jnp.abs(x).max()) for x in jax.tree.leaves(got)) > 0


def test_logits_of_half_precision_are_not_rounded():
    model = tiny(routes.Window(3, 0), dtype=jnp.bfloat16, num_layers=1)
    logits = model.apply(init(model, TOKENS), TOKENS)  # compiled, a CPU would not round them anyway
    assert logits.dtype == jnp.float32 and (logits.astype(jnp.bfloat16) != logits).any()


@pytest.mark.slow
def test_streams_of_float32_serve_a_bfloat16_model(monkeypatch):
    """Streams of bfloat16 do not: that is why they are float32."""

    def error(stream_dtype):
        model = tiny(
            routes.Window(3, 0), dtype=jnp.bfloat16, stream_dtype=stream_dtype, scan_layers=True
        )
        variables = init(model, TOKENS)
        got, _ = gradient(model, variables)
        with monkeypatch.context() as patched:
            patched.setattr("attnlab.models.reformer.model.reversible", couplings.store_layers)
            want, _ = gradient(model, variables)
        return relative_error(got, want)

    assert error(jnp.float32) < min(5e-4, error(jnp.bfloat16) / 5)


def test_a_divided_state_is_all_that_travels():
    """Weights once a pass and layer, and their gradients; no activations, which are longer ones."""
    mesh = jax.make_mesh((2, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = jax.NamedSharding(mesh, jax.P("data"))

    def sent(length, chunk, gradient):
        model = tiny(
            routes.Window(3, 0),
            vocab_size=32,
            num_layers=1,
            hidden=20,
            positions=None,
            max_length=length,
            feed_forward_chunk=chunk,
        )
        tokens = jax.ShapeDtypeStruct((2, length), jnp.int32)
        variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
        state = shardings_on(mesh, variables)

        def loss(variables, tokens):
            return (model.apply(variables, tokens) ** 2).sum()

        step, out = (jax.grad(loss), state) if gradient else (loss, None)
        with attnlab.over(mesh, batch="data"):
            call = jax.jit(step, in_shardings=(state, rows), out_shardings=out)
            text = call.lower(variables, tokens).compile().as_text()
        return network.sent(text, devices=2, devices_per_host=2).total

    assert sent(48, None, True) == sent(96, None, True) > 0
    assert sent(48, None, False) == sent(48, 6, False) > 0
    # XLA:CPU adds the feed-forward network's gradients up chunk by chunk; a GPU's, at the end.
    of_network = 4 * (2 * 12 * 20 + 20 + 12 + 2 * 12)
    assert sent(48, 6, True) == sent(48, None, True) + 7 * of_network


@pytest.mark.slow
@pytest.mark.parametrize("model", [Reformer, TransformerLM])
def test_memory_does_not_grow_with_depth(model):
    def temporaries(num_layers):
        config = TransformerConfig(
            V, num_layers=num_layers, width=32, hidden=64, num_heads=2, scan_layers=True
        )
        built = model(config, config.attention(routes.Window(7, 0)))
        tokens = jax.ShapeDtypeStruct((1, 512), jnp.int32)
        variables = jax.eval_shape(built.init, jax.random.key(0), tokens)

        def loss(variables, tokens):
            return built.apply(variables, tokens).sum()

        compiled = jax.jit(jax.grad(loss)).lower(variables, tokens).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    growth = (temporaries(11) - temporaries(3)) / 8
    streams = 2 * 512 * 32 * 4
    assert growth < streams / 8 if model is Reformer else growth > streams


@pytest.mark.parametrize("layers", daily(SCANNED), ids=str)
def test_decoding_is_the_forward(layers):
    """As are the activations that are kept where somebody looks at them."""
    route = dataclasses.replace(LSH, centering=None)
    model = tiny(routes.Chunked(3), route, **layers)
    variables = init(model, TOKENS)
    want = apply(model, variables, TOKENS)
    found, _ = apply(model, variables, TOKENS, mutable=["intermediates"])
    np.testing.assert_allclose(found, want, atol=2e-5)

    longest = jnp.zeros((2, LENGTH), jnp.int32)
    make = functools.partial(model.init, decode=True, method="decode")
    cache = jax.jit(lambda: make(jax.random.key(0), None, longest)["cache"])()
    read = jnp.concatenate([jnp.ones((2, 1), jnp.int32), TOKENS[:, :-1]], 1)

    @jax.jit
    def step(cache, tokens):
        given = {**variables, "cache": cache}
        logits, after = model.apply(
            given, None, tokens, decode=True, method="decode", mutable=["cache"]
        )
        return logits, after["cache"]

    prompt, cache = step(cache, read[:, :6])
    found = [prompt]
    for i in range(6, LENGTH):
        logits, cache = step(cache, read[:, i : i + 1])
        found.append(logits)
    np.testing.assert_allclose(jnp.concatenate(found, 1), want, atol=3e-5)


@pytest.mark.slow
def test_layers_are_given_what_those_of_other_stacks_are():
    """Any stream, or one key for all; offsets that are numbers; collections that they make."""
    seen = []
    model = Reformer(dataclasses.replace(TINY, num_layers=2, dropout_rate=0.0), Spy(seen.append))
    keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
    variables = {"params": jax.jit(model.init)(keys, TOKENS)["params"]}
    seen.clear()

    def gradient_with(rngs):
        return jax.grad(lambda variables: model.apply(variables, TOKENS, rngs=rngs).sum())

    for rngs in ({"noise": jax.random.key(2)}, jax.random.key(2)):
        jax.eval_shape(gradient_with(rngs), variables)
    assert seen and all(type(mask.q_offset) is int for mask in seen), "or cuDNN is not asked"

    @jax.jit
    @jax.grad
    def of_the_losses(variables):
        _, made = model.apply(
            variables, TOKENS, rngs={"noise": jax.random.key(2)}, mutable=["losses"]
        )
        return sum(jax.tree.leaves(made["losses"]))

    dense = of_the_losses(variables)["params"]["decoder"]["layer_0"]["attention"]["Dense_0"]
    assert abs(dense["kernel"]).max() > 0


class Noise(nn.Module):
    """An attention that draws what it returns."""

    @nn.compact
    def __call__(self, x, *, mask, deterministic, decode=False):
        return jax.random.normal(self.make_rng("noise"), x.shape)


def test_each_layer_and_each_chunk_draws_numbers_of_its_own():
    config = dataclasses.replace(TINY, num_layers=2, scan_layers=True, dropout_rate=0.5)
    model = ReversibleStack(config, (Noise(), Noise()))
    x = jnp.ones((2, LENGTH, 12))

    @jax.jit
    def run(*keys):
        variables = model.init(keys[0], x)
        rngs = dict(zip(("dropout", "noise"), keys, strict=True))
        return model.apply(variables, x, deterministic=False, rngs=rngs)

    y1, y2 = jnp.split(run(*jax.random.split(jax.random.key(0))), 2, axis=-1)
    assert 3 < jnp.var(y1 - x) < 5  # 2 a layer; of two that draw alike 8
    dropped, size = y2 == x, config.feed_forward_chunk
    assert (dropped[:, :size] != dropped[:, size : 2 * size]).any()


def test_an_empty_batch_and_a_single_token():
    model = tiny(routes.Window(3, 0))
    variables = init(model, TOKENS)
    assert apply(model, variables, TOKENS[:0]).shape == (0, LENGTH, V)
    one = apply(model, variables, TOKENS[:, :1])
    np.testing.assert_allclose(one, apply(model, variables, TOKENS)[:, :1], atol=2e-5)


def test_a_packed_row_is_its_documents():
    route = dataclasses.replace(LSH, centering=None)
    model = tiny(route, num_layers=2)
    variables = init(model, TOKENS)
    segments = jnp.array([[1] * 9 + [2] * 14])
    positions = jnp.array([[*range(9), *range(14)]])
    got = apply(model, variables, TOKENS[:1], segments=segments, positions=positions)
    parts = [apply(model, variables, TOKENS[:1, span]) for span in (slice(9), slice(9, None))]
    np.testing.assert_allclose(got, jnp.concatenate(parts, 1), atol=3e-5)


@pytest.mark.slow
def test_over_devices():
    """The mean gradient of shard_map is that of one device, without dropout."""
    model = tiny(routes.Window(3, 0), num_layers=2, dropout_rate=0.0, attention_dropout_rate=0.0)
    variables = init(model, TOKENS)

    def loss(variables, tokens):
        return -jax.nn.log_softmax(model.apply(variables, tokens))[..., 5].mean()

    want = jax.jit(jax.grad(loss))(variables, TOKENS)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("rows")

    def mean_loss(variables, tokens):
        return jax.lax.pmean(loss(variables, tokens), "rows")

    of_shards = jax.shard_map(
        mean_loss, mesh=mesh, in_specs=(jax.sharding.PartitionSpec(), rows),
        out_specs=jax.sharding.PartitionSpec(),
    )  # fmt: skip
    got = jax.jit(jax.grad(of_shards))(variables, TOKENS)
    assert relative_error(got, want) < 1e-5
