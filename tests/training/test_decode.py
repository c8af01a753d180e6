"""Greedy and beam search against searches over everything, on a model that is a table."""

import functools
import itertools
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.core.tokens import BOS, EOS, PAD
from attnlab.models import Transformer, TransformerConfig, TransformerLM
from attnlab.models.seq2seq import Seq2Seq
from attnlab.training.decode import Hypotheses, beam_search, greedy, sample
from attnlab.training.decode.single import _Draw
from tests.trees import assert_close

V, M = 5, 31  # tokens 0 … 4, states


class Table(Seq2Seq):
    """Logits are a row of a table [M, V], chosen by a hash of the source and all tokens so far.

    The state has its batch axis last, so that the search has to find it; a clock has none.
    """

    spread: float = 1.5

    def setup(self):
        def init(key):
            return self.spread * jax.random.normal(key, (M, V))

        self.table = self.param("table", init)

    def encode(self, source, *, deterministic=True):
        return (source * jnp.arange(1, source.shape[1] + 1)[None]).sum(1) % M

    @nn.compact
    def decode(self, memory, tokens, *, deterministic=True, decode=False, return_weights=False):
        # Doubled, as a width: a batch of 1 or 2 must not be taken for it.
        state = jnp.stack([memory, memory])
        if decode:
            kept = self.variable("cache", "state", lambda: state)
            clock = self.variable("cache", "clock", lambda: jnp.int32(0))
            twice = self.variable("static", "twice", lambda: jnp.stack([memory, 2 * memory], 1))
            state = kept.value

        def step(state, token):
            state = (state * 7 + token[None] + 3) % M
            return state, self.table[state[0]]

        state, logits = jax.lax.scan(step, state, tokens.T)
        if decode and not self.is_initializing():
            kept.value, clock.value = state, clock.value + tokens.shape[1]
            # Zero as long as cache, static arrays and memory are of the same rows.
            wrong = jnp.abs(twice.value[:, 1] - 2 * memory)
            logits += 1000.0 * wrong[None, :, None] * jnp.arange(V)[None, None]
        return jnp.moveaxis(logits, 0, 1)


MODEL = Table()
SOURCE = np.int32(np.random.default_rng(0).integers(4, 30, (6, 3)))


@functools.cache
def variables(seed=0, model=MODEL):
    init = jax.jit(lambda key: {"params": model.init(key, SOURCE, SOURCE)["params"]})
    return jax.device_get(init(jax.random.key(seed)))


def log_probs(prefixes, source, seed=0):
    """log p of each next token [n, V] after each prefix [n, t] (without BOS), float64."""
    table = np.asarray(variables(seed)["params"]["table"], np.float64)
    state = (np.asarray(source) * np.arange(1, len(source) + 1)).sum() % M
    state = np.full(len(prefixes), state)
    for token in np.concatenate([np.full((len(prefixes), 1), BOS), prefixes], 1).T:
        state = (state * 7 + token + 3) % M
    logits = table[state]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def penalty(length, alpha):
    """Wu et al. 2016, Eq. 14."""
    return ((5 + length) / 6) ** alpha


def all_ended(source, most, alpha, seed=0):
    """Every sequence that ends within `most` tokens, {tokens: score}; 2 tokens go on, 1 ends."""
    found = {}
    for length in range(1, most + 1):
        for body in itertools.product([EOS + 1, EOS + 2], repeat=length - 1):
            tokens = (*body, EOS)
            log_p = sum(
                log_probs(np.array([tokens[:i]], int).reshape(1, i), source, seed)[0, tokens[i]]
                for i in range(length)
            )
            found[tokens] = log_p / penalty(length, alpha)
    return found


def plain_beam(source, size, alpha, most, seed=0):
    """A beam search of one source over lists, to the limit."""
    growing, ended = [((), 0.0)], []
    for length in range(1, most + 1):
        candidates = []
        for tokens, log_p in growing:
            after = log_probs(np.array([tokens], int).reshape(1, -1), source, seed)[0]
            candidates += [
                ((*tokens, t), log_p + after[t]) for t in range(V) if t not in (PAD, BOS)
            ]
        candidates.sort(key=lambda c: -c[1])
        ended += [
            (c[0], c[1] / penalty(length, alpha)) for c in candidates[:size] if c[0][-1] == EOS
        ]
        growing = [c for c in candidates if c[0][-1] != EOS][:size]
    ended.sort(key=lambda c: -c[1])
    if ended:
        return ended[:size]
    return [(tokens, log_p / penalty(most, alpha)) for tokens, log_p in growing]


def as_list(hypotheses: Hypotheses):
    """[(tokens, score)] of a row or a beam, without padding; lengths are checked on the way."""
    rows = np.asarray(hypotheses.tokens).reshape(-1, hypotheses.tokens.shape[-1])
    for row, length in zip(rows, np.ravel(hypotheses.lengths), strict=True):
        assert (row[length:] == PAD).all() and (row[:length] > BOS).all()
        assert (row[: max(length - 1, 0)] != EOS).all()
    return [
        (tuple(row[row != PAD].tolist()), score)
        for row, score in zip(rows, np.ravel(hypotheses.scores), strict=True)
    ]


def row_of(hypotheses, i):
    return jax.tree.map(lambda x: np.asarray(x)[i], hypotheses)


def table_with(tokens, logit):
    """Variables in which some tokens have another logit everywhere."""
    table = variables()["params"]["table"].copy()
    table[:, tokens] = logit
    return {"params": {"table": table}}


def assert_same(got, true, tolerance=1e-5):
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in true]
    np.testing.assert_allclose([s for _, s in got], [s for _, s in true], rtol=tolerance)


def test_a_beam_that_holds_everything_finds_the_best_of_everything():
    size, most = 2**4, 4
    for alpha in (0.0, 0.6, 2.0):
        found = beam_search(
            MODEL, variables(), SOURCE, beam_size=size, length_penalty=alpha, max_length=most
        )
        for i, source in enumerate(SOURCE):
            everything = all_ended(source, most, alpha)
            best = max(everything, key=everything.__getitem__)
            assert_same(as_list(row_of(found, i)), [(best, everything[best])])


@pytest.mark.parametrize("return_beam", [False, True])
def test_stopping_early_changes_nothing(return_beam):
    size, most = 3, 9
    for seed, alpha in itertools.product(range(4), (0.0, 1.0, 3.0)):
        found = beam_search(
            MODEL,
            variables(seed),
            SOURCE,
            beam_size=size,
            length_penalty=alpha,
            max_length=most,
            return_beam=return_beam,
        )
        for i, source in enumerate(SOURCE):
            true = plain_beam(source, size, alpha, most, seed)
            assert_same(as_list(row_of(found, i)), true if return_beam else true[:1])


def restricted(log_p, temperature, top_k, top_p):
    """The probabilities that are drawn from, one token after the other in falling order."""
    p = np.exp(log_p / temperature)
    p[[PAD, BOS]] = 0
    order = np.argsort(-p)
    p[order[top_k:]] = 0
    p /= p.sum()
    kept = 0.0
    for token in order:
        p[token] = p[token] if kept < top_p else 0.0
        kept += p[token]
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, None), (0.5, None, None), (2.0, 2, None), (1.0, None, 0.6), (3.0, 3, 0.7)],
)
def test_tokens_are_drawn_as_they_should_be(temperature, top_k, top_p):
    rows = 4001
    many = np.repeat(SOURCE[:1], rows, 0)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    found = sample(MODEL, variables(), many, key=jax.random.key(1), max_length=2, **options)
    tokens = np.asarray(found.tokens)
    first = log_probs(np.zeros((1, 0), int), SOURCE[0])[0]
    for prefix in ((), (EOS + 1,)):
        after = tokens[(tokens[:, : len(prefix)] == prefix).all(1), len(prefix)]
        log_p = log_probs(np.array([prefix], int).reshape(1, -1), SOURCE[0])[0]
        expected = restricted(log_p, temperature, top_k or V, top_p or 1.0)
        share = np.bincount(after, minlength=V) / len(after)
        spread = np.sqrt(expected * (1 - expected) / len(after))
        assert (np.abs(share - expected) <= 4.5 * spread).all(), (share, expected)
    ended = tokens[:, 0] == EOS  # the score is of the model, not of what was drawn from
    np.testing.assert_allclose(np.asarray(found.scores)[ended], first[EOS], rtol=1e-5)


@pytest.mark.parametrize("top_k", [None, 5])
def test_the_coldest_draw_is_a_word(top_k):
    """log p of a large vocabulary over the smallest temperature is no float32."""
    log_p = jax.nn.log_softmax(jnp.zeros((2, 300)).at[:, 7].set(1e-3))
    draw = _Draw(jax.random.key(0), jnp.float32(1.2e-38), None)
    assert (draw.token(0, log_p, top_k) == 7).all()


def test_a_cold_draw_is_greedy_and_a_key_says_all():
    cold = sample(MODEL, variables(), SOURCE, key=jax.random.key(0), max_length=9, temperature=1e-4)
    assert_close(cold, greedy(MODEL, variables(), SOURCE, max_length=9), rtol=1e-6)
    first, again, other = (
        np.asarray(sample(MODEL, variables(), SOURCE, key=jax.random.key(i), max_length=9).tokens)
        for i in (1, 1, 2)
    )
    assert (first == again).all() and (first != other).any()


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_a_prompt_is_gone_on_with(search):
    """Each row begins with its own tokens, and the rest is what a search of the rest finds."""
    prompt = np.array([[3, 4], [4, 4], [4, 3], [3, 3], [3, 4], [4, 3]], np.int32)
    found = search(MODEL, variables(), SOURCE, prompt=prompt, max_length=5)
    before = []
    for i, source in enumerate(SOURCE):
        # The model's state after the prompt, as the source of a search that begins there.
        state = (source * np.arange(1, 4)).sum() % M
        for token in (BOS, *prompt[i]):
            state = (state * 7 + token + 3) % M
        before.append([(state - BOS - 3) * pow(7, -1, M) % M, 0, 0])
    alone = search(MODEL, variables(), np.array(before, np.int32), max_length=5)
    assert_close(found, alone, rtol=1e-6)


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_what_a_call_kept_of_another_source_is_not_used(search):
    twice = {"static": {"twice": np.zeros((6, 2), np.int32)}}
    found = search(MODEL, variables() | twice, SOURCE, max_length=3)
    want = search(MODEL, variables(), SOURCE, max_length=3)
    jax.tree.map(np.testing.assert_array_equal, found, want)


def test_it_does_stop_early():
    calls = []

    class Counted(Table):
        def decode(self, memory, tokens, *, decode=False, **options):
            if decode and not self.is_initializing():
                jax.debug.callback(lambda _: calls.append(1), tokens[0, 0])
            return super().decode(memory, tokens, decode=decode, **options)

    table = np.zeros((M, V), np.float32)
    table[:, EOS] = 5.0
    ends = {"params": {"table": table}}
    for search, steps in ((greedy, 1), (functools.partial(beam_search, beam_size=2), 2)):
        calls.clear()
        found = search(Counted(), ends, SOURCE, max_length=40)
        jax.block_until_ready(found)
        jax.effects_barrier()
        np.testing.assert_array_equal(found.lengths, 1)
        assert 1 <= len(calls) <= steps + 1, len(calls)


def test_greedy_takes_the_likeliest_token_each_time():
    most = 7
    found = greedy(MODEL, variables(), SOURCE, max_length=most)
    log_p = jax.jit(lambda v, tokens: jax.nn.log_softmax(MODEL.apply(v, SOURCE, tokens)))
    log_p = np.asarray(log_p(variables(), found.tokens))
    words = np.where(np.isin(np.arange(V), (PAD, BOS)), -np.inf, log_p)
    assert len(set(np.asarray(found.lengths).tolist())) > 1
    for i, (tokens, score) in enumerate(as_list(found)):
        assert words[i].argmax(-1)[: len(tokens)].tolist() == list(tokens)
        assert len(tokens) == most or tokens[-1] == EOS
        np.testing.assert_allclose(score, sum(log_p[i, range(len(tokens)), tokens]), rtol=1e-5)


def test_a_beam_of_one_is_greedy():
    for seed in (0, 1):
        one = beam_search(
            MODEL, variables(seed), SOURCE, beam_size=1, length_penalty=0.0, max_length=9
        )
        assert_close(one, greedy(MODEL, variables(seed), SOURCE, max_length=9), rtol=1e-5)


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_rows_are_searched_apart(search):
    together = jax.device_get(search(MODEL, variables(), SOURCE, max_length=8))
    for rows in ([3, 0, 5, 1, 4, 2], [0], [4, 2]):
        some = search(MODEL, variables(), SOURCE[rows], max_length=8)
        jax.tree.map(np.testing.assert_array_equal, row_of(together, rows), some)


def test_a_row_ends_at_its_own_limit():
    """Where no hypothesis ends, what is returned has the limit's length and EOS is not forced."""
    never, source = table_with(EOS, -np.inf), SOURCE.copy()
    source[1, 2:] = source[2, 1:] = PAD
    for search in (greedy, beam_search):
        found = search(MODEL, never, source, max_length=5, extra_length=3)
        np.testing.assert_array_equal(found.lengths, [5, 5, 4, 5, 5, 5])
        assert (np.asarray(found.tokens) != EOS).all()
        without = search(MODEL, never, source, max_length=5, extra_length=None)
        np.testing.assert_array_equal(without.lengths, 5)
        shorter = search(MODEL, never, source, max_length=4)
        got, expected = row_of(shorter, 2), row_of(found, 2)
        np.testing.assert_array_equal(got.tokens, expected.tokens[:4])
        np.testing.assert_allclose(got.scores, expected.scores, rtol=1e-6)


def test_padding_and_the_first_token_are_never_emitted():
    for search, token in itertools.product((greedy, beam_search), (PAD, BOS)):
        found = search(MODEL, table_with(token, 20.0), SOURCE, max_length=5)
        as_list(found)  # checks it
        assert (found.lengths > 0).all()


@pytest.mark.parametrize(
    "search", [greedy, beam_search, functools.partial(sample, key=jax.random.key(0))]
)
def test_a_model_that_is_nan_is_nan_in_its_rows_alone(search):
    """One logit is enough: of EOS, which a beam would else wait for."""
    table = variables()["params"]["table"].copy()
    broken = {"params": {"table": table}}
    first = jax.device_get(search(MODEL, variables(), SOURCE, max_length=1))
    state = (SOURCE[0] * np.arange(1, 4)).sum() % M
    table[(state * 7 + BOS + 3) % M, EOS] = np.nan
    found = jax.device_get(search(MODEL, broken, SOURCE, max_length=1))
    np.testing.assert_array_equal(np.isnan(found.scores), [True] + [False] * 5)
    np.testing.assert_array_equal(found.tokens[1:], first.tokens[1:])


def test_a_beam_that_meets_nan_later_is_nan_though_something_ended():
    table, log_p = variables()["params"]["table"].copy(), np.log([1, 1, 40, 30, 28])
    table[:] = log_p
    state = ((SOURCE[0] * np.arange(1, 4)).sum() * 7 + BOS + 3) % M
    table[(state * 7 + 3 + 3) % M] = np.nan  # after the token 3
    options = {"beam_size": 3, "max_length": 4, "length_penalty": 2.0, "return_beam": True}
    found = beam_search(MODEL, {"params": {"table": table}}, SOURCE[:1], **options)
    assert np.isnan(found.scores).all()


def test_a_branch_after_which_nothing_may_follow_is_dead_and_not_nan():
    """The other hypotheses of its sentence go on; a search that has no other ends there."""
    table = variables()["params"]["table"].copy()
    table[:] = np.log([1, 1, 10, 58, 30])
    state = ((SOURCE[0] * np.arange(1, 4)).sum() * 7 + BOS + 3) % M
    table[(state * 7 + 3 + 3) % M] = -np.inf  # after the token 3, the likeliest
    dead = {"params": {"table": table}}
    found = beam_search(MODEL, dead, SOURCE[:1], beam_size=3, max_length=2, length_penalty=0.0)
    assert as_list(found) == [((2,), pytest.approx(math.log(0.1)))]
    for search in (greedy, functools.partial(sample, key=jax.random.key(0), top_k=1)):
        found = search(MODEL, dead, SOURCE[:1], max_length=4)
        assert as_list(found) == [((3,), -math.inf)]


def test_known_padding_before_a_token_is_refused():
    """Positions and masks take the first tokens for the real ones, and prompts for whole."""
    in_front, between = np.int32([[0, 5, 6]]), np.int32([[5, 0, 6]])
    for source in (in_front, between):
        with pytest.raises(ValueError, match="tokens must be padded at the end"):
            TransformerLM(TransformerConfig(7)).init(jax.random.key(0), source)
    for prompt in (in_front, between, in_front[:, ::-1]):
        with pytest.raises(ValueError, match="prompts of a call are of one length, without pad"):
            greedy(MODEL, variables(), np.int32([[5]]), prompt=prompt, max_length=2)


def test_what_is_no_hypothesis_has_no_tokens():
    never = table_with(EOS, -np.inf)
    found = beam_search(MODEL, never, SOURCE, beam_size=7, max_length=1, return_beam=True)
    assert np.isneginf(found.scores[:, 2:]).all() and np.isfinite(found.scores[:, :2]).all()
    assert (found.tokens[:, 2:] == PAD).all() and (found.lengths[:, 2:] == 0).all()


def test_hypotheses_share_what_is_of_the_source():
    model = Transformer(TransformerConfig(17, num_layers=1, width=8, hidden=8, num_heads=2))
    source = jnp.full((3, 37), 5)
    shapes = jax.eval_shape(model.init, jax.random.key(0), source, source)
    search = jax.jit(lambda x: beam_search(model, x, source, beam_size=4, max_length=5))
    text = str(search.trace(shapes).jaxpr)
    # The keys and values of the source [B, 37, N, H], and of the hypotheses [k, B, 5, N, H].
    assert set(re.findall(r"\[([\d,]*),37,2,4\]", text)) == {"3"}
    assert "4,3" in re.findall(r"\[([\d,]*),5,2,4\]", text)


def test_no_row_is_searched_too():
    for search in (greedy, functools.partial(beam_search, beam_size=2)):
        found = search(MODEL, variables(), SOURCE[:0], max_length=3)
        one = search(MODEL, variables(), SOURCE[:1].tolist(), max_length=3)
        assert one.tokens.shape[0] == 1
        assert found.tokens.shape[0] == 0 and found.tokens.shape[-1] == 3
