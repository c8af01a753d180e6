"""The judge of models is judged: it accuses each fault, and nothing that is right."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import dot_product_attention, testing
from attnlab.runs.errors import Invalid
from tests import audited
from tests.daily import daily


def model(subject):
    logits, decode = subject if isinstance(subject, tuple) else (subject, None)
    initial = None if decode is None else audited.initial
    return testing.as_model(logits, vocab_size=audited.V, decode=decode, initial=initial)


@pytest.mark.parametrize("name", audited.BROKEN)
def test_no_fault_is_missed(name):
    contract, subject = audited.BROKEN[name]
    outcome = testing.outcome(model(subject), contract)
    assert outcome.verdict == "no" and re.search("logits.*is .*, not|differ by", outcome.words)


@pytest.mark.parametrize("name", daily(audited.RIGHT, "Fourier", "a cache of a window"))
def test_nothing_right_is_accused(name):
    outcomes = [testing.outcome(model(audited.RIGHT[name]), x) for x in testing.MODEL_CONTRACTS]
    assert not testing.Report(tuple(outcomes)).broken


def counts(tokens):
    return jnp.cumsum(jax.nn.one_hot(tokens, 5), 1)


def counts_and_peeks(tokens):
    return counts(tokens) + 1e-3 * counts(tokens)[:, -1:]


def test_a_counterexample_is_shown_by_its_line(capsys):
    (outcome,) = testing.audit(
        counts_and_peeks, vocab_size=5, length=3, contracts=["past"]
    ).outcomes
    words = r"logits\[0, 0, (\d)\] is (\S+), not (\S+), where token 1 of 2 was \d, not \d"
    _, moved, before = re.fullmatch(words, outcome.words).groups()
    exec(outcome.line, {"counts_and_peeks": counts_and_peeks})  # noqa: S102 - as a user would
    assert [f"{float(x):.6g}" for x in capsys.readouterr().out.split()] == [moved, before]


TABLE = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)


def leaks_by_an_empty_table(tokens):
    """Another embedding, still of zeros: no token moves anything by it, but training will."""
    empty = jnp.zeros((5, 5))[tokens]
    in_order = jnp.take_along_axis(empty, jnp.argsort(tokens, 1)[..., None], 1)
    return counts(tokens) + in_order.mean(1, keepdims=True)


def leaks_in_torch(tokens):
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        empty = torch.nn.functional.embedding(tokens, torch.zeros(5, 5))
        return torch.from_numpy(TABLE)[tokens] + empty.mean(1, keepdim=True)


def sorts_by_expert(tokens):
    """Right: each token is where it was, once its expert, known by its number, is done."""
    order = jnp.argsort(tokens % 3, 1)
    x = jnp.take_along_axis(jnp.asarray(TABLE)[tokens], order[..., None], 1)
    gate = jnp.asarray(TABLE)[jnp.take_along_axis(tokens % 3, order, 1)]
    return jnp.take_along_axis(gate * x, jnp.argsort(order, 1)[..., None], 1)


def hides_padding_by_its_number(tokens):
    """Right: a mask of numbers is no table."""
    past, own = np.tri(tokens.shape[1], dtype=bool)[None], np.eye(tokens.shape[1], dtype=bool)[None]
    seen = past & (tokens != 0)[:, None] | own
    weights = jax.nn.softmax(jnp.where(seen, 0.0, -1e9), -1)
    return weights @ jnp.asarray(TABLE)[tokens]


def embeds_in_a_loop(tokens):
    def step(total, token):
        total = total + jnp.asarray(TABLE)[token]
        return total, total

    totals = jax.lax.scan(step, jnp.zeros((len(tokens), 5)), tokens.T)[1]
    return jnp.moveaxis(totals, 0, 1)


def refuses_to_be_read(tokens):
    torch = pytest.importorskip("torch")
    if torch.overrides._len_torch_function_stack():
        raise RuntimeError("compiled")
    return torch.from_numpy(TABLE)[tokens]


@pytest.mark.parametrize(
    "logits, verdict, words",
    [
        (leaks_by_an_empty_table, "no", r"where token 1 of 2 was \d, not \d, and each table"),
        (jax.checkpoint(leaks_by_an_empty_table), "no", "each table"),
        (leaks_in_torch, "no", r"where token 1 of 2 was \d, not \d, and each table"),
        (sorts_by_expert, "yes", ""),
        (hides_padding_by_its_number, "yes", ""),
        (embeds_in_a_loop, "-", "cannot be drawn: its tokens go into scan, which is not read"),
        (counts, "-", "looks up no table"),
        (refuses_to_be_read, "-", "its tables cannot be drawn: RuntimeError: compiled"),
    ],
)
def test_other_tables_find_what_no_token_moves(logits, verdict, words):
    audited_model = testing.as_model(logits, vocab_size=5, length=9)
    outcome = testing.outcome(audited_model, "dependence")
    assert outcome.verdict == verdict and re.search(words, outcome.words), outcome
    assert testing.outcome(audited_model, "past").verdict == "yes"


@pytest.mark.parametrize(
    "logits, words",
    [
        (lambda tokens, more: tokens, "and raised TypeError: .*'more' .arrays of jax, "),
        (lambda tokens: counts(tokens)[:, -1], r"here \(2, 2, 5\); got \(2, 5\)"),
        (lambda tokens: counts(tokens)[..., :4], r"got \(2, 2, 4\) \(give vocab_size=4\)"),
        (lambda tokens: (counts(tokens), 0), "got tuple .return its logits alone"),
        (lambda tokens: counts(tokens) / 0, r"finite logits; got (inf|nan) at \[0, 0, 0\] of"),
        ("no.py:such", "no.py"),
        (3, "got int"),
    ],
)
def test_what_is_no_model_is_told_in_a_line(logits, words):
    with pytest.raises(Invalid, match=words):
        testing.audit(logits, vocab_size=5)


def test_a_model_that_fails_at_a_length_is_told():
    def at_most_8(tokens):
        return np.eye(5)[tokens] + np.zeros(8)[: tokens.shape[1]][:, None]

    report = testing.audit(at_most_8, vocab_size=5, contracts=["past"])
    assert "fails at 129 tokens: ValueError" in report.broken[0].words
    assert not testing.audit(at_most_8, vocab_size=5, length=8).broken
    packs = lambda tokens, segment_ids=None: at_most_8(tokens)  # noqa: E731
    assert not testing.audit(packs, vocab_size=5, length=8, contracts=["packing"]).broken


@pytest.mark.parametrize(("factor", "length", "verdict"), [(1, 4, "yes"), (np.nan, 7, "no")])
def test_a_cache_that_spoils_pieces_is_told(factor, length, verdict):
    def decode(state, tokens):
        return np.eye(5)[tokens] * (1 if tokens.shape[1] == 1 else factor), state

    model = testing.as_model(
        lambda tokens: np.eye(5)[tokens],
        vocab_size=5, length=length, decode=decode, initial=lambda batch, length: 0,
    )  # fmt: skip
    assert testing.outcome(model, "cache").verdict == verdict


def of_numpy(q, k, v, mask=None, *, scale=1.0):
    logits = np.einsum("btnh,bsnh->bnts", q, k) * scale - 1e30 * ~mask
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)


def is_causal_but_for_a_head(q, k, v, *, is_causal=False):
    torch = pytest.importorskip("torch")
    attend = torch.nn.functional.scaled_dot_product_attention
    context = attend(q, k, v, is_causal=is_causal)
    context[:, 3] = attend(q, k, v)[:, 3]
    return context


def test_an_attention_of_another_framework_is_the_layer_of_a_model():
    pytest.importorskip("torch")
    right = testing.audit("torch.nn.functional:scaled_dot_product_attention(is_causal=True)")
    assert [x.verdict for x in right.outcomes] == ["yes"] * 3 + ["-", "yes", "yes"] + ["-"] * 3
    told = functools.partial(is_causal_but_for_a_head, is_causal=True)
    (broken,) = testing.audit(told, contracts=["past"]).broken
    assert re.match(r"logits\[0, 0, 1[2-5]\] is", broken.words), "the channels of the fourth head"
    assert not testing.audit(of_numpy, contracts=["past", "padding"]).broken


def test_what_takes_masks_of_attnlab_needs_no_host():
    assert testing.needs_host(of_numpy) and testing.needs_host(jax.nn.dot_product_attention)
    assert not testing.needs_host(dot_product_attention)


def test_what_is_random_is_asked_for_nothing_else():
    outcomes = testing.audit(audited.BROKEN["dropout is on"][1], vocab_size=audited.V).outcomes
    assert [x.contract for x in outcomes if x.verdict != "-"] == ["determinism"]
