"""The Transformer against the paper's equations in float64 NumPy, and against its own promises."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import GeneralScore, positions, routes
from attnlab.core.tokens import BOS, PAD, rows_of, shift_right
from attnlab.models.transformer import (
    Transformer,
    TransformerConfig,
    TransformerEncoder,
    TransformerLM,
)
from tests import oracle
from tests.models.transformer.tiny import DENSE, SOURCE, TARGET, TINY, D, N, V, tiny
from tests.modules.reference import apply, float64, init, multi_head
from tests.trees import assert_close

# The model once more, from Vaswani et al. 2017, §3.


def layer_norm(params, x):
    centered = x - x.mean(-1, keepdims=True)
    normed = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
    return normed * params["scale"] + params["bias"]


def feed_forward(params, x):
    hidden = np.maximum(0, x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


def stack(params, x, mask, memory=None, memory_mask=None, *, pre_norm, turn, slopes=0.0):
    distance = np.abs(np.arange(x.shape[1]) - np.arange(x.shape[1])[:, None])
    bias = -np.reshape(slopes, (-1, 1, 1)) * distance
    for i in range(sum(name.startswith("layer_") for name in params)):
        layer = params[f"layer_{i}"]
        weights = None

        def attend(x, layer=layer):
            return multi_head(layer["attention"], x, x, x, mask=mask, bias=bias, turn=turn)[0]

        def over_memory(x, layer=layer):
            nonlocal weights
            y, weights = multi_head(layer["cross_attention"], x, memory, memory, mask=memory_mask)
            return y

        def forward(x, layer=layer):
            return feed_forward(layer["feed_forward"], x)

        sublayers = {"attention": attend, "cross_attention": over_memory, "feed_forward": forward}
        for name, sublayer in sublayers.items():
            if name == "cross_attention" and memory is None:
                continue
            norm = layer[f"{name}_norm"]
            if pre_norm:
                x = x + sublayer(layer_norm(norm, x))
            else:
                x = layer_norm(norm, x + sublayer(x))
    return (layer_norm(params["norm"], x) if pre_norm else x), weights


def sinusoids(length):
    wavelengths = 10_000.0 ** (np.arange(0, D, 2) / D)
    angles = np.arange(length)[:, None] / wavelengths
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, D)


def transformer(params, source, target, *, config):
    """Logits [B, T, V] and the last layer's weights [B, T, S]."""
    params, source, target = float64(params), np.asarray(source), np.asarray(target)
    before = np.concatenate([np.full((len(target), 1), BOS), target[:, :-1]], 1)
    names = ("vocabulary",) * 3
    if not config.share_embeddings:
        names = ("source_vocabulary", "vocabulary", "softmax")
    source_embedding, embedding, softmax = (params[name]["embedding"] for name in names)

    def inputs(name, table, tokens):
        x = table[tokens] * np.sqrt(D)
        if config.positions == "sinusoid":
            x = x + sinusoids(tokens.shape[1])
        if config.positions == "learned":
            x = x + params[name]["positions"][: tokens.shape[1]]
        if config.positions == "concatenated":
            at = np.broadcast_to(sinusoids(tokens.shape[1]), x.shape)
            x = np.concatenate([x, at], -1) @ params[name]["positions"]["kernel"]
        return x

    options = {"pre_norm": config.pre_norm, "turn": config.positions == "rotary"}
    options["slopes"] = np.array([2.0**-4, 2.0**-8, 2.0**-2]) * (config.positions == "alibi")
    visible = (source != PAD)[:, None, None]
    x = inputs("encoder_inputs", source_embedding, source)
    memory, _ = stack(params["encoder"], x, visible, **options)
    y = inputs("decoder_inputs", embedding, before)
    causal = oracle.causal(before.shape[1], before.shape[1])
    y, weights = stack(params["decoder"], y, causal, memory, visible, **options)
    return y @ softmax.T, weights.mean(1)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"pre_norm": True, "positions": "learned", "share_embeddings": False},
        {"positions": "rotary"},
        {"positions": "concatenated"},
        {"positions": "alibi", "pre_norm": True},
        {"positions": None},
    ],
    ids=str,
)
def test_the_equations(changed, x64):
    changed |= {"key_width": 4} if changed.get("positions") == "rotary" else {}
    model = tiny(param_dtype=jnp.float64, num_layers=1 if changed else N, **changed)
    variables = init(model, SOURCE, TARGET)

    @jax.jit
    def run(variables):
        memory = model.apply(variables, SOURCE, method="encode")
        before = shift_right(TARGET)
        return model.apply(variables, memory, before, return_weights=True, method="decode")

    # Sinusoids and rotations are float32, whatever the rest.
    error = 1e-11 if model.config.positions == "learned" else 2e-5
    true = transformer(variables["params"], SOURCE, TARGET, config=model.config)
    assert_close(run(variables), true, rtol=error, atol=error)


def test_the_logits_are_float32_and_near_those_of_float32_in_bfloat16():
    exact, half = tiny(), tiny(dtype=jnp.bfloat16)
    variables = init(exact, SOURCE, TARGET)

    @jax.jit
    def both(variables):
        return [model.apply(variables, SOURCE, TARGET) for model in (exact, half)]

    a, b = map(np.asarray, both(variables))
    assert a.dtype == b.dtype == np.float32
    assert 1e-4 < abs(a - b).max() < 0.05 * abs(a).max()


def num_parameters(config):
    model, tokens = Transformer(config), jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens, tokens))
    return sum(x.size for x in jax.tree.leaves(shapes))


def test_the_papers_sizes():
    """The numbers of parameters of all rows of Table 3 are in tests/papers."""
    base, big = TransformerConfig.base(37000), TransformerConfig.big(37000)
    wide = {"width": 1024, "hidden": 4096, "num_heads": 16, "dropout_rate": 0.3}
    assert big == dataclasses.replace(base, **wide)
    # A vocabulary of its own is another one, also if it is of the same size.
    separate = dataclasses.replace(base, source_vocab_size=37000)
    assert num_parameters(separate) == num_parameters(base) + 37000 * base.width


@pytest.mark.slow
def test_initial_parameters_are_as_documented():
    config = TransformerConfig(257, num_layers=1, width=128, hidden=512, num_heads=4)
    model = Transformer(config)
    params = jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)["params"]
    layer = params["decoder"]["layer_0"]
    assert abs(float(jnp.std(params["vocabulary"]["embedding"])) * 128**0.5 - 1) < 0.02
    for kernel, fans in (
        (layer["cross_attention"]["query"]["kernel"], 256),
        (layer["attention"]["out"]["kernel"], 256),
        (layer["feed_forward"]["hidden"]["kernel"], 640),
    ):
        limit = (6 / fans) ** 0.5
        assert 0.99 * limit < abs(kernel).max() <= limit
        assert abs(float(kernel.std()) / (2 / fans) ** 0.5 - 1) < 0.03
    logits = apply(model, {"params": params}, SOURCE, TARGET)
    assert 0.8 < float(logits.std()) < 1.3


@pytest.mark.parametrize("options", [{}, {"positions": "learned", "max_length": 7}])
def test_packed_rows_are_as_if_apart(options):
    """They may have more tokens than a table has positions: each segment begins anew."""
    model = tiny(**options)
    variables = init(model, SOURCE, TARGET)
    packed = {
        "source": np.array([[*SOURCE[0, :6], *SOURCE[1, :4], 0]]),
        "source_segments": np.array([[1] * 6 + [2] * 4 + [0]]),
        "source_positions": np.array([[*range(6), *range(4), 0]]),
        "target": np.array([[*TARGET[0], *TARGET[1, :3]]]),
        "target_segments": np.array([[1] * 5 + [2] * 3]),
        "target_positions": np.array([[*range(5), *range(3)]]),
    }

    @jax.jit
    def both(variables):
        return model.apply(variables, SOURCE, TARGET), model.apply(variables, **packed)[0]

    apart, got = map(np.asarray, both(variables))
    np.testing.assert_allclose(got[:5], apart[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[5:], apart[1, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_encoder_alone_and_the_decoder_alone():
    """The encoder is the encoder of both; of the decoder, row t knows the tokens before t."""
    both, encoder, lm = (tiny(kind) for kind in (Transformer, TransformerEncoder, TransformerLM))
    params = init(both, SOURCE, TARGET)["params"]
    memory = apply(both, {"params": params}, SOURCE, method="encode")
    mine = {"vocabulary": params["vocabulary"], "encoder": params["encoder"]}
    np.testing.assert_array_equal(apply(encoder, {"params": mine}, SOURCE), memory.states)

    variables = init(lm, SOURCE)
    x = float64(variables["params"]["vocabulary"]["embedding"])
    inputs = x[np.asarray(shift_right(SOURCE))] * np.sqrt(D) + sinusoids(SOURCE.shape[1])
    causal = oracle.causal(SOURCE.shape[1], SOURCE.shape[1])
    decoder = float64(variables["params"]["decoder"])
    states, _ = stack(decoder, inputs, causal, pre_norm=False, turn=False)
    got = apply(lm, variables, SOURCE)
    np.testing.assert_allclose(got, states @ x.T, rtol=1e-4, atol=1e-4)
    packed = {
        "tokens": SOURCE[:1],
        "segments": jnp.array([[1, 1, 1, 2, 2, 2, 0]]),
        "positions": jnp.array([[0, 1, 2, 0, 1, 2, 0]]),
    }
    alone = lm.apply(variables, SOURCE[:1, 3:6])
    np.testing.assert_allclose(lm.apply(variables, **packed)[:, 3:6], alone, rtol=1e-4, atol=1e-5)


def test_each_layer_has_an_attention_and_a_score_of_its_own():
    config = dataclasses.replace(TINY, dropout_rate=0.0)
    attention = config.attention(DENSE, score=GeneralScore())
    model = Transformer(config, attention, config.cross_attention(score=GeneralScore()))
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), SOURCE, TARGET))["params"]
    for name in ("encoder", "decoder"):
        for i in range(N):
            assert shapes[name][f"layer_{i}"]["attention"]["score"]["kernel"].shape == (3, 2, 2)
    assert "score" in shapes["decoder"]["layer_1"]["cross_attention"]
    window = Transformer(config, config.attention(routes.Window(1, 1)))
    variables = init(window, SOURCE, TARGET)
    other = SOURCE.copy()
    other[0, 5] = 10
    encode = jax.jit(lambda source: window.apply(variables, source, method="encode").states)
    difference = abs(np.subtract(*map(encode, (other, SOURCE))))[0].max(-1)
    # One further with each layer.
    np.testing.assert_array_equal(difference > 0, [False] * 3 + [True] * 4)


def test_a_window_in_the_config_is_restricted_self_attention():
    config = dataclasses.replace(TINY, window=1, dropout_rate=0.0)
    assert config.attention().route == routes.Window(1, 1)
    assert config.cross_attention().route == routes.AllPairs()
    assert config.attention(DENSE).route == DENSE
    model, same = Transformer(config), Transformer(TINY, config.attention())
    variables = init(model, SOURCE, TARGET)
    programs = [
        jax.jit(one.apply).lower(variables, SOURCE, TARGET).as_text() for one in (model, same)
    ]
    assert programs[0] == programs[1]


@pytest.mark.slow
def test_dropout_is_where_the_paper_has_it():
    """At a rate near 1 nothing is left of embeddings and sub-layers: only LayerNorm's biases."""
    rngs = {"dropout": jax.random.key(0)}
    model = tiny(dropout_rate=1 - 1e-9)
    variables = init(model, SOURCE, TARGET)
    logits = apply(model, variables, SOURCE, TARGET, deterministic=False, rngs=rngs)
    params = float64(variables["params"])
    x = np.zeros(D)
    for i in range(N):
        for name in ("attention", "cross_attention", "feed_forward"):
            x = layer_norm(params["decoder"][f"layer_{i}"][f"{name}_norm"], x)
    true = np.broadcast_to(x @ params["vocabulary"]["embedding"].T, logits.shape)
    np.testing.assert_allclose(logits, true, rtol=1e-4, atol=1e-4)

    variables = init(tiny(TransformerEncoder), SOURCE)
    kept = apply(tiny(TransformerEncoder), variables, SOURCE)
    for rate in ("attention_dropout_rate", "hidden_dropout_rate"):
        model = tiny(TransformerEncoder, dropout_rate=0.0, **{rate: 0.5})
        some = apply(model, variables, SOURCE, deterministic=False, rngs=rngs)
        assert abs(some - kept).max() > 1e-2


def test_learned_positions_have_an_initializer_of_their_own():
    model = tiny(TransformerLM, positions="learned", position_init=positions.sinusoid_init)
    params = jax.jit(model.init)(jax.random.key(0), SOURCE)["params"]
    table = positions.sinusoids(jnp.arange(11), D)
    np.testing.assert_array_equal(params["inputs"]["positions"], table)
    assert np.abs(params["vocabulary"]["embedding"]).max() < 1.5  # N(0, 1/D)


def test_an_id_without_a_row_is_nan():
    model, tokens = tiny(TransformerLM), jnp.array([[4, 5, 6], [4, V, 6], [-1, 5, 6]])
    variables = jax.jit(model.init)(jax.random.key(0), tokens)
    known = jnp.isfinite(jax.jit(model.apply)(variables, tokens)).all(-1)
    np.testing.assert_array_equal(known[:, -1], [True, False, False])
    rows = rows_of(jnp.ones((260, 2)), jnp.array([-1, 100], jnp.int8))
    np.testing.assert_array_equal(jnp.isnan(rows).all(-1), [True, False])


def test_bert_has_the_gelu_of_its_release():
    """By tanh: 3e-4 from the exact one at 2."""
    x = jnp.linspace(-4, 4, 33)
    by_tanh = 0.5 * x * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(TransformerConfig.bert(11).activation(x), by_tanh, atol=2e-6)
