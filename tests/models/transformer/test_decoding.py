"""A Transformer that decodes token by token computes what it computes of the whole sequence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import routes
from attnlab.core.tokens import BOS, PAD, shift_right
from attnlab.models.transformer import Transformer, TransformerConfig, TransformerLM
from attnlab.training.decode import beam_search, greedy, length_penalty_of
from attnlab.training.decode.state import Given, first_call, make_next_logits
from tests.daily import daily
from tests.models.transformer.tiny import DENSE, SOURCE
from tests.modules.reference import apply, init

V, CACHE = 13, 9
TINY = TransformerConfig(
    V, num_layers=2, width=12, hidden=17, num_heads=3, value_width=5, max_length=CACHE
)
TARGET = np.array([[8, 4, 7, 11, 10, 2], [12, 6, 2, 0, 0, 0]])
GIVEN = Given(SOURCE, np.zeros((2, 0), np.int32))


def tiny(route=DENSE, **changed):
    config = dataclasses.replace(TINY, **changed)
    return Transformer(config, config.attention(route), config.cross_attention(route=DENSE))


LSH = routes.LSH(num_hashes=2, num_buckets=4, chunk_size=4)
MODELS = {
    "sinusoid": tiny(),
    "learned, pre-norm, scanned": tiny(
        positions="learned", pre_norm=True, scan_layers=True, share_embeddings=False
    ),
    "rotary, pre-norm": tiny(positions="rotary", pre_norm=True),
    "relative, scanned": tiny(positions="relative", scan_layers=True),
    "window": tiny(routes.Window(2, 0, "dense")),
    "lsh, scanned": tiny(LSH, scan_layers=True, key_width=4, value_width=4),
}


@pytest.mark.parametrize("name", daily(MODELS, "sinusoid"))
def test_decoding_is_the_teacher_forced_forward(name):
    model = MODELS[name]
    variables = init(model, SOURCE, TARGET)
    true = apply(model, variables, SOURCE, TARGET)
    memory, logits, state = jax.jit(
        lambda variables: first_call(model, variables, GIVEN, max_length=CACHE)
    )(variables)
    # What the first call kept of the source is all that later calls look at.
    memory = memory._replace(states=np.full(memory.states.shape, np.nan, np.float32))
    found, cache = [logits], state["cache"]
    next_logits = jax.jit(make_next_logits(model, variables, memory, state["static"]))
    for token in np.asarray(shift_right(TARGET))[:, 1:].T:
        logits, cache = next_logits(cache, token[:, None])
        found.append(logits)
    np.testing.assert_allclose(np.stack(found, 1), true, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_several_tokens_at_once_and_the_weights_over_the_source():
    model = MODELS["sinusoid"]
    variables = init(model, SOURCE, TARGET)
    tokens = shift_right(TARGET)
    memory = apply(model, variables, SOURCE, method="encode")
    true = apply(model, variables, memory, tokens, return_weights=True, method="decode")
    made = init(model, memory, jnp.zeros((2, CACHE), int), decode=True, method="decode")
    assert set(made) == {"params", "cache"}  # "static" is of the first call's source
    state, found = {"cache": made["cache"]}, []
    for piece, positions in ((tokens[:, :4], jnp.arange(4)), (tokens[:, 4:], None)):
        result, updated = apply(
            model,
            {**variables, **state},
            memory,
            piece,
            positions=positions,
            decode=True,
            return_weights=True,
            mutable=["cache", "static"],
            method="decode",
        )
        state |= updated
        found.append(result)
    for got, whole in zip(zip(*found, strict=True), true, strict=True):
        np.testing.assert_allclose(jnp.concatenate(got, 1), whole, rtol=1e-4, atol=1e-5)
    _, intermediates = apply(model, variables, SOURCE, TARGET, mutable=["intermediates"])
    for i in range(TINY.num_layers):
        layer = intermediates["intermediates"]["decoder"][f"layer_{i}"]["cross_attention"]
    np.testing.assert_allclose(layer["attention_weights"][0].mean(1), true[1], rtol=1e-5)


def test_the_language_model_decodes():
    model = TransformerLM(TINY, TINY.attention(DENSE))
    variables = init(model, TARGET)
    true = np.asarray(apply(model, variables, TARGET))
    made = init(model, None, jnp.zeros((2, CACHE), int), decode=True, method="decode")
    variables |= {"cache": made["cache"]}
    step = jax.jit(
        lambda v, x: model.apply(v, None, x, decode=True, mutable=["cache"], method="decode")
    )
    for t, token in enumerate(np.asarray(shift_right(TARGET)).T):
        logits, updated = step(variables, token[:, None])
        variables |= updated
        logits = np.asarray(logits)[:, 0]
        np.testing.assert_allclose(logits, true[:, t], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("search", daily([greedy, beam_search], greedy))
def test_a_language_model_goes_on_after_a_prompt(search):
    model = TransformerLM(TINY, TINY.attention(DENSE))
    prompt = TARGET[:, :3]
    variables = init(model, prompt)
    found = search(model, variables, prompt=prompt, max_length=CACHE - 3)
    found = jax.device_get(found)
    whole = np.concatenate([prompt, found.tokens], axis=1)
    log_p = jax.jit(lambda v, tokens: jax.nn.log_softmax(model.apply(v, tokens)))
    log_p = np.asarray(log_p(variables, whole))
    for row, (tokens, length, score) in enumerate(
        zip(found.tokens, found.lengths, found.scores, strict=True)
    ):
        of_tokens = log_p[row, range(3, 3 + length), tokens[:length]].sum()
        alpha = 0.6 if search is beam_search else 0.0
        np.testing.assert_allclose(score, of_tokens / length_penalty_of(length, alpha), rtol=1e-4)


@pytest.mark.slow
def test_what_a_search_scores_is_what_the_model_says():
    """Only if each hypothesis keeps its own caches, whichever it came from, do the scores agree."""
    model, alpha = MODELS["learned, pre-norm, scanned"], 0.6
    variables = jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)
    of_all = jax.jit(
        lambda source, target: jax.nn.log_softmax(model.apply(variables, source, target))
    )

    found = greedy(model, variables, SOURCE, max_length=CACHE)
    log_p = np.asarray(of_all(SOURCE, found.tokens).at[..., (PAD, BOS)].set(-np.inf))
    for row, (tokens, length) in enumerate(zip(found.tokens, found.lengths, strict=True)):
        np.testing.assert_array_equal(log_p[row].argmax(-1)[:length], tokens[:length])

    size = 3
    found = beam_search(
        model,
        variables,
        SOURCE,
        beam_size=size,
        length_penalty=alpha,
        max_length=CACHE,
        return_beam=True,
    )
    tokens, lengths = np.asarray(found.tokens), np.asarray(found.lengths)
    assert len({tuple(x) for x in tokens.reshape(-1, CACHE)}) > size
    for i in range(size):
        log_p = np.asarray(of_all(SOURCE, found.tokens[:, i]))
        chosen = np.take_along_axis(log_p, tokens[:, i, :, None], -1)[..., 0]
        total = np.where(np.arange(CACHE) < lengths[:, i, None], chosen, 0).sum(1)
        true = total / length_penalty_of(lengths[:, i], alpha)
        np.testing.assert_allclose(found.scores[:, i], true, rtol=1e-4)
