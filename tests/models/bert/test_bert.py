import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab
from attnlab import routes
from attnlab.bench.network import sent
from attnlab.models import BertClassifier, BertPretraining, TransformerConfig
from attnlab.models.bert import Bert
from attnlab.models.hugging_face import ACTIVATIONS
from attnlab.models.output import DeferredLogits
from attnlab.training.objective import token_sums
from tests.modules.reference import apply, init
from tests.trees import assert_close

DENSE = routes.AllPairs("dense")  # compiles fastest
CONFIG = TransformerConfig.bert(
    23, num_layers=1, width=12, hidden=17, num_heads=3, max_length=11, dropout_rate=0.0,
    attention_dropout_rate=0.0,
)  # fmt: skip
TOKENS = np.array([[1, 7, 8, 9, 2, 5, 6, 2, 0], [1, 4, 2, 22, 11, 2, 0, 0, 0]])
TYPES = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0, 0, 0]])
MASKED = np.array([[2, 5], [4, 0]])
KEY = jax.random.key(0)


def pretraining(route=DENSE, **changed):
    config = dataclasses.replace(CONFIG, **changed)
    return BertPretraining(config, config.attention(route))


def drawn(model):
    """Variables that are not near 0, as they are at first, with biases that say something."""
    shapes = jax.eval_shape(lambda: model.init(KEY, TOKENS, TYPES, masked=MASKED))
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda x: np.asarray(draw.normal(size=x.shape) * 0.3, x.dtype), shapes)


def logits_of(model):
    """A program: logits of the masked tokens [B, M, V], and of the pairs [B, 2]."""

    @jax.jit
    def run(variables, tokens, types, masked):
        made = model.apply(variables, tokens, types, masked=masked)
        return made.masked.logits(), made.next

    return lambda *arrays: jax.device_get(run(*arrays))


LOGITS = logits_of(pretraining())


@pytest.fixture(scope="module")
def variables():
    return drawn(pretraining())


def test_matrices_begin_as_released():
    model = pretraining(width=48, num_heads=3, hidden=200)
    params = jax.jit(lambda: model.init(KEY, TOKENS, masked=MASKED))()["params"]
    params = jax.device_get(params)
    for path, x in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        if path[-1].key == "bias":
            assert not x.any(), name
        elif path[-1].key == "scale":
            assert (x == 1).all(), name
        else:
            assert np.abs(x).max() <= 0.04, name  # 2 σ; σ of what is left is 0.88 · 0.02
            assert x.size < 500 or 0.016 < x.std() < 0.0195, name


@pytest.mark.parametrize(
    "route",
    [
        routes.Window(10, 10),
        # One bucket and one chunk over all: queries are their keys, and nothing else changes.
        routes.LSH(num_hashes=1, num_buckets=1, chunk_size=16),
    ],
    ids=["window", "lsh"],
)
def test_any_attention_reads_no_padding(variables, route):
    model = pretraining(route)
    run = logits_of(model)
    made = drawn(model) if route.shares_qk else variables
    masked, following = run(made, TOKENS, TYPES, MASKED)
    if not route.shares_qk:
        exact = LOGITS(made, TOKENS, TYPES, MASKED)[1]
        np.testing.assert_allclose(following, exact, atol=1e-5)
    short = run(made, TOKENS[1:, :6], TYPES[1:, :6], MASKED[1:])
    np.testing.assert_allclose(following[1:], short[1], atol=1e-5)
    np.testing.assert_allclose(masked[1:], short[0], atol=1e-5)
    other = TOKENS.copy()
    other[1, 1] = 9
    moved = run(made, other, TYPES, MASKED)[1] - following
    assert np.abs(moved[1]).max() > 1e-4  # the first token sees what comes later


def test_a_masked_token_goes_through_the_gelu_of_the_release(variables):
    params = variables["params"]
    bert = Bert(CONFIG, CONFIG.attention(DENSE))
    states, _ = jax.jit(bert.apply)({"params": params["bert"]}, TOKENS, TYPES)
    x = np.take_along_axis(np.asarray(states), MASKED[..., None], axis=1)
    x = x @ params["transform"]["kernel"] + params["transform"]["bias"]
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    norm = params["transform_norm"]
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * norm["scale"] + norm["bias"]
    want = x @ params["bert"]["vocabulary"]["embedding"].T + params["bias"]
    np.testing.assert_allclose(LOGITS(variables, TOKENS, TYPES, MASKED)[0], want, atol=1e-4)
    exact = 1 + math.erf(2**0.5)  # 2 Φ(2), 3e-4 from the one by tanh
    assert float(ACTIVATIONS["gelu"](2.0)) == pytest.approx(exact, abs=1e-6)


def test_masked_tokens_are_those_at_the_positions(variables):
    all_at = np.broadcast_to(np.arange(9), (2, 9))
    every, _ = LOGITS(variables, TOKENS, TYPES, all_at)
    some, _ = LOGITS(variables, TOKENS, TYPES, MASKED)
    np.testing.assert_allclose(some[0], every[0, [2, 5]], atol=1e-5)
    assert np.abs(np.diff(every, axis=1)).max(-1).min() > 1e-3  # no two positions are alike
    none, _ = LOGITS(variables, TOKENS, TYPES, np.where(all_at == 4, -1, all_at))
    assert np.isnan(none[:, 4]).all() and np.isfinite(np.delete(none, 4, 1)).all()
    # Tied: what moves the embedding of one word moves its logit.
    bias = variables["params"]["bias"] + np.float32(np.arange(23) == 3)
    again, _ = LOGITS({"params": variables["params"] | {"bias": bias}}, TOKENS, TYPES, MASKED)
    np.testing.assert_allclose(again - some, (np.zeros_like(some) + np.arange(23)) == 3, atol=1e-5)


def test_logits_of_half_precision_are_not_rounded():
    config = dataclasses.replace(CONFIG, dtype=jnp.bfloat16)
    classifier = BertClassifier(config, 3, attention=config.attention(DENSE))
    classes = apply(classifier, init(classifier, TOKENS), TOKENS)
    model = pretraining(dtype=jnp.bfloat16)
    for logits in (classes, *logits_of(model)(drawn(model), TOKENS, TYPES, MASKED)):
        assert logits.dtype == jnp.float32
        assert (logits.astype(jnp.bfloat16) != logits).any()


def test_a_loss_in_blocks_is_the_loss():
    draw = np.random.default_rng(0)
    arrays = [np.float32(draw.normal(size=shape)) for shape in ((2, 5, 7), (13, 7), (13,))]
    targets, weights = draw.integers(0, 13, (2, 5)), np.float32(draw.uniform(size=(2, 5)))
    targets[1, 3:] = 0

    def loss(arrays, block):
        logits = DeferredLogits(*arrays, block=block or 1)
        sums = token_sums(
            logits if block else logits.logits(), targets, label_smoothing=0.1, weights=weights
        )
        return sums["loss"], sums

    @jax.jit
    def by_block(arrays):
        take = jax.value_and_grad(loss, has_aux=True)
        return [take(arrays, block) for block in (None, 3, 5, 100)]

    wanted, *found = map(jax.tree.leaves, by_block(arrays))
    for made in found:
        assert_close(made, wanted, rtol=2e-5, atol=1e-5)


def test_a_loss_in_blocks_does_not_hold_all_logits():
    tokens, words, width, block = 512, 4096, 8, 32

    def memory(deferred):
        def loss(x, e):
            logits = DeferredLogits(x, e, block=block)
            targets = jnp.ones((1, tokens), jnp.int32)
            return token_sums(logits if deferred else logits.logits(), targets)["loss"]

        x, e = (jax.ShapeDtypeStruct((*n, width), jnp.float32) for n in ((1, tokens), (words,)))
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(x, e).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(True) < 4 * tokens * words / 4 < memory(False)


@pytest.mark.parametrize("whole", [True, False])
def test_each_device_has_the_blocks_of_its_own_examples(whole):
    """Two devices exchange the gradient of the vocabulary and its matrix, and no logits."""
    words, width, block, shape = 13, 6, 4, (4, 14)
    draw = np.random.default_rng(0)
    x, e, b = (np.float32(draw.normal(size=s)) for s in ((*shape, width), (words, width), (words,)))
    targets = draw.integers(0, words, shape)

    def loss(x, e, b):
        sums = token_sums(DeferredLogits(x, e, b, block=block), targets, label_smoothing=0.1)
        return sums["loss"], sums

    def over_devices(*arrays):
        with attnlab.over(mesh, batch="data"):
            return step(*arrays)

    step = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("data",))
    rows, every = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (["data"], []))
    matrix = every if whole else jax.NamedSharding(mesh, jax.P(None, "data"))
    placed = jax.device_put((x, e, b), (rows, matrix, every))
    compiled = (
        jax.jit(over_devices, out_shardings=((every, every), (rows, matrix, every)))
        .lower(*placed)
        .compile()
    )
    assert_close(compiled(*placed), jax.jit(step)(x, e, b), rtol=2e-5, atol=1e-5)
    exchanged = sent(compiled.as_text(), devices=2, devices_per_host=2).total
    assert 0 < exchanged < 4 * (2 * words * width + words + 32)


class TestClassifier:
    def logits(self, labelled, tokens=TOKENS, types=TYPES, **options):
        model = BertClassifier(CONFIG, 3, labelled, CONFIG.attention(DENSE), **options)
        return np.asarray(apply(model, init(model, tokens, types), tokens, types))

    def test_what_is_labelled_has_the_logits(self):
        assert self.logits("sequence").shape == (2, 3)
        assert self.logits("tokens").shape == (2, 9, 3)
        span = self.logits("span")
        assert span.shape == (2, 2, 9)
        within = TYPES == 1
        within[:, 0] = True
        assert (np.isfinite(span) == within[:, None]).all()
        anywhere = np.isfinite(self.logits("span", types=None)[:, 0])
        assert (anywhere == (TOKENS != 0)).all()

    @pytest.mark.parametrize("labelled", ["sequence", "tokens"])
    def test_frozen_trains_the_classes_alone(self, labelled):
        model = BertClassifier(CONFIG, 3, labelled, CONFIG.attention(DENSE), frozen=True)
        made = init(model, TOKENS, TYPES)

        @jax.jit
        @jax.grad
        def gradient(variables, tokens, rows):
            logits = model.apply(variables, tokens, TYPES)
            return jnp.square(jnp.where(rows.reshape(2, *[1] * (logits.ndim - 1)), logits, 0)).sum()

        grads = jax.device_get(gradient(made, TOKENS, np.array([True, True])))["params"]
        assert not any(x.any() for x in jax.tree.leaves(grads["bert"]))
        assert grads["classes"]["kernel"].any()
        filling = TOKENS.copy()
        filling[1] = 0
        grads = gradient(made, filling, np.array([True, False]))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))
        run = jax.jit(model.apply)
        short, long = (np.asarray(run(made, TOKENS[:, :t], TYPES[:, :t])) for t in (8, 9))
        long = long if labelled == "sequence" else long[:, :8]
        np.testing.assert_allclose(long, short, atol=1e-5)
