"""`attnlab.testing`: what keeps a contract, and for each contract something that breaks it."""

import dataclasses
import itertools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from attnlab import (
    BiasModule,
    MultiHeadAttention,
    ScoreModule,
    dot_product_attention,
    masks,
    routes,
    scores,
    testing,
)
from attnlab.mechanisms import own
from attnlab.runs.errors import Invalid
from attnlab.testing import judging
from attnlab.testing.subject import subject_of
from tests.daily import daily


def weighted(q, k, v, mask=None, change=lambda logits: logits, values=lambda v: v):
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    logits = change(jnp.einsum("btnh,bsnh->bnts", q, k).astype(jnp.float32))
    seen = True if mask is None else mask.as_array(q.shape[1], k.shape[1])
    largest = jnp.max(logits, -1, keepdims=True, where=seen, initial=-1e30)
    exp = jnp.where(seen, jnp.exp(jnp.where(seen, logits - largest, 0)), 0)
    weights = exp / jnp.maximum(exp.sum(-1, keepdims=True), 1e-30)
    return jnp.einsum("bnts,bsnh->btnh", weights.astype(v.dtype), values(v)).astype(v.dtype)


def looks_ahead(q, k, v, *, mask=None):
    return weighted(q, k, v + 1e-3 * v.sum(1, keepdims=True), mask=mask)


def ignores_the_mask(q, k, v, *, mask=None):
    return weighted(q, k, v)


def normalizes_over_the_batch(q, k, v, *, mask=None):
    return weighted(q, k, v / (1 + jnp.abs(v).mean(0, keepdims=True)), mask=mask)


def divides_by_the_batch(q, k, v, *, mask=None):
    return weighted(q, k, v / len(q), mask=mask)


def another_in_jit(q, k, v, *, mask=None):
    return weighted(q, k, v * (2 if isinstance(q, jax.core.Tracer) else 1), mask=mask)


def divides_by_the_length_less_one(q, k, v, *, mask=None):
    return weighted(q, k, v / (k.shape[1] - 1), mask=mask)


def tiles_heads(q, k, v, *, mask=None):
    k, v = (jnp.tile(x, (1, 1, q.shape[2] // x.shape[2], 1)) for x in (k, v))
    return weighted(q, k, v, mask=mask)


def float32_alone(q, k, v, *, mask=None):
    return weighted(q, k, v, mask=mask).astype(jnp.float32)


def loses_a_row_of_a_thousand(q, k, v, *, mask=None):
    """As a kernel in half precision may, in its last block."""
    context = weighted(q, k, v, mask=mask)
    if q.dtype == jnp.bfloat16 and q.shape[1] > 1000:
        return context.at[:, 1000].set(0)
    return context


def decides_by_rounding(q, k, v, *, mask=None):
    """As a hash may: a row is another one in half precision, by its numbers."""
    context = weighted(q, k, v, mask=mask)
    if q.dtype == jnp.bfloat16:
        return context.at[:, jnp.argmax(q[0, :, 0, 0])].set(0)
    return context


def causal_by_rows(q, k, v, *, mask=None):
    """Right but for decoding, where the first row is not the first position."""
    own = jnp.arange(k.shape[1])[None] <= jnp.arange(q.shape[1])[:, None]
    return weighted(
        q, k, v, change=lambda logits: jnp.where(own[None, None], logits, -1e9), mask=mask
    )


def random_by_callback(q, k, v, *, mask=None):
    noise = jax.pure_callback(
        lambda: np.random.default_rng().normal(size=v.shape).astype(v.dtype),
        jax.ShapeDtypeStruct(v.shape, v.dtype),
    )
    return weighted(q, k, v, mask=mask) + noise[:, :1]


@jax.custom_vjp
def doubled_gradient(x):
    return x


doubled_gradient.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))


def wrong_gradient(q, k, v, *, mask=None):
    return weighted(q, k, v, mask=mask, values=doubled_gradient)


@jax.custom_vjp
def square(x):
    return x * x


square.defvjp(lambda x: (x * x, x), lambda x, g: (2 * jax.lax.stop_gradient(x) * g,))


def wrong_second_derivative(q, k, v, *, mask=None):
    return weighted(q, k, v, mask=mask, values=square)


def in_order(q, k, v, *, mask=None):
    """An effect in order, which `jax.checkpoint` cannot do twice."""
    io_callback(lambda: None, None, ordered=True)
    return weighted(q, k, v, mask=mask)


def without_gradient(q, k, v, *, mask=None):
    context = weighted(q, k, v, mask=mask)
    return jax.pure_callback(lambda x: x, context, context)


@jax.custom_vjp
def _one_gradient_short(q, k, v):
    return weighted(q, k, v, mask=None)


_one_gradient_short.defvjp(
    lambda q, k, v: (_one_gradient_short(q, k, v), None), lambda _, x: (x, x)
)


def one_gradient_short(q, k, v):
    return _one_gradient_short(q, k, v)


def softmax_in_float32(q, k, v, *, mask=None):
    """Right: of float64 too its logits are float32."""
    return weighted(q, k, v, mask=mask)


class Misranged(masks.Mask):
    """A causal mask that tells the engines of its last key alone."""

    def visible(self, i, j):
        return j <= i

    def key_range(self, q_positions, num_keys):
        return num_keys - 1, num_keys


class OneShort(Misranged):
    """The same of the first keys, but for the last one."""

    def key_range(self, q_positions, num_keys):
        return 0, q_positions[-1]


def leaks_in_whole_tiles(q, k, v, *, mask=None):
    return weighted(q, k, v, mask=mask if k.shape[1] % 128 else None)


def loses_the_mask_of_shared_keys(q, k, v, *, mask=None):
    return weighted(q, k, v, mask=mask if k.shape[2] == q.shape[2] else None)


def loses_the_mask_in_bfloat16(q, k, v, *, mask=None):
    return weighted(q, k, v, mask=None if q.dtype == jnp.bfloat16 else mask)


def another_where_lengths_differ(q, k, v, *, mask=None):
    return weighted(q, k, v * (k.shape[1] / q.shape[1]), mask=mask)


class Constant(scores.Dot):
    """A score that does not look at the keys."""

    def prepare(self, q, k, *, precision=None):
        return scores.Dot(1.0), q, jnp.zeros_like(k)


def promotes(q, k, v, *, mask=None):
    """Ordinary JAX: Python's numbers and integers beside floats."""
    ones = 1 + 0 * jnp.arange(q.shape[-2])[None, None, :, None]
    return dot_product_attention(q * ones, k, v, mask=mask)


class Gated(MultiHeadAttention):
    """A subclass with a parameter, and a bias of keys that softmax cancels."""

    def make_route(self, q, k):
        gate = self.param("gate", nn.initializers.ones, (1, 1, q.shape[-2], 1)).astype(q.dtype)
        attend = dot_product_attention
        return routes.Function(lambda q, k, v, mask=None: gate * attend(q, k, v, mask=mask))


class Shuffled(ScoreModule):
    """A score with a variable of integers, made by a key that is a variable."""

    @nn.compact
    def __call__(self, q, k):
        weight = self.param("weight", nn.initializers.ones, q.shape[-1:])
        key = self.variable("constants", "key", jax.random.key, 7)
        order = self.variable("constants", "order", jnp.arange, q.shape[-1])
        return scores.Additive(weight[jax.random.permutation(key.value, order.value)])


class Counting(nn.Module):
    """An attention that counts its calls, where it may."""

    @nn.compact
    def __call__(self, query, key=None, value=None, *, mask=None, deterministic, decode=False):
        count = self.variable("counts", "calls", jnp.zeros, (), jnp.int32)
        if self.is_mutable_collection("counts"):
            count.value += 1
        drawn = jax.random.normal(jax.random.key(count.value), (1, 1, query.shape[-1]), query.dtype)
        return MultiHeadAttention(num_heads=2)(query + drawn, mask=mask)


class WeightsOfNoHeads(routes.Exact):
    def weights(self, score, q, k, **options):
        return super().weights(score, q, k, **options)[..., 0, :, :]


class ForgetsToReturn(BiasModule):
    @nn.compact
    def __call__(self, num_heads, num_queries, num_keys, *, causal=None):
        jnp.zeros((num_heads, num_queries, num_keys))


class Narrow(nn.Module):
    """A module whose result is no state of its layer."""

    @nn.compact
    def __call__(self, query, key=None, value=None, *, mask=None, deterministic, decode=False):
        return MultiHeadAttention(num_heads=2, out_features=3)(query, mask=mask)


class Two(nn.Module):
    def __call__(self, query, key=None, value=None, *, mask=None, deterministic=None, decode=False):
        return query, query


BREAK = {
    "shapes": (Constant(), "influence"),
    "definition": (Misranged(), "at 701 keys|context"),
    "gradient": (wrong_gradient, "the gradient says"),
    "causal": (looks_ahead, r"context\[0, 0, 0, 0\] is .* after positions 1, … changed"),
    "hidden_keys": (ignores_the_mask, "where hidden keys hold 10000"),
    "empty_rows": (ignores_the_mask, "not 0"),
    "examples": (normalizes_over_the_batch, "context"),
    "batch": (divides_by_the_batch, "context"),
    "devices": (divides_by_the_batch, "context"),
    "eager": (another_in_jit, "context"),
    "constants": (another_in_jit, "sum of squares"),
    "lengths": (divides_by_the_length_less_one, r"is (nan|inf)"),
    "grouped_heads": (tiles_heads, "context"),
    "second_derivative": (wrong_second_derivative, "the second derivative says"),
    "transforms": (in_order, "(?i)effect"),
    "bfloat16": (float32_alone, "must return the context, in the dtype bfloat16"),
    "deterministic": (random_by_callback, "context"),
    "decoding": (causal_by_rows, r"decoded.*, cut at"),
}
EVERY_DAY = ("causal", "hidden_keys", "gradient", "definition")


@pytest.mark.parametrize("contract", daily(BREAK, *EVERY_DAY))
def test_each_contract_is_broken_by_something(contract):
    mechanism, words = BREAK[contract]
    outcome = testing.outcome(mechanism, contract)
    assert outcome.verdict == "no" and re.search(words, outcome.words), outcome
    assert outcome.line == (
        f"from attnlab import testing; print(testing.{contract}({outcome.mechanism}, 0))"
    )


def test_all_contracts_are_broken_above():
    assert testing.CONTRACTS.keys() == BREAK.keys()


@pytest.mark.parametrize(
    "mechanism, contract, words",
    [
        (OneShort, "definition", "query 0 sees key 0, not in key_range: 0, 0"),
        (leaks_in_whole_tiles, "causal", "after positions 1, … changed, of 128"),
        (another_where_lengths_differ, "lengths", "context of 5 queries, where"),
        (loses_the_mask_of_shared_keys, "grouped_heads", "context"),
        (loses_the_mask_in_bfloat16, "bfloat16", "in roundings, of context"),
        (loses_a_row_of_a_thousand, "bfloat16", "in roundings, of context[0, 1000, 0] is"),
    ],
)
def test_a_contract_is_broken_at_its_borders(mechanism, contract, words):
    outcome = testing.outcome(mechanism, contract)
    assert outcome.verdict == "no" and words in outcome.words, outcome


def test_a_leak_of_lsh_below_the_rounding_of_float32_is_seen():
    """Its sums may move by a rounding; in float64 that hides nothing."""
    right = subject_of("lsh-1")

    def leaks(arrays, mask):
        return right.apply(arrays, mask) + 1e-9 * arrays["v"].mean(1, keepdims=True)

    broken = testing.causal(dataclasses.replace(right, apply=leaks), 0)
    assert "after positions 1, … changed" in broken.words


def test_where_rounding_decides_nobody_is_accused():
    assert testing.outcome(decides_by_rounding, "bfloat16").verdict == "yes"


@pytest.mark.parametrize("value", [0, np.nan])
def test_the_judge_sees_a_row_among_a_thousand(value):
    """Which the mean over an output forgives, as rows are smaller the more keys they see."""
    rng = np.random.default_rng(0)
    sizes = np.linspace(1, 0.03, 1024)[:, None, None]
    true = {"context": rng.normal(size=(1, 1024, 1, 64)) * sizes}
    nearby = [judging.move(true, judging.rounding("bfloat16"), seed) for seed in range(4)]
    options = {"dtype": "bfloat16", "length": 1024}
    got = {"context": true["context"].astype(jnp.bfloat16)}
    assert max(judging.judge(got, true, nearby, **options).values()) < 1
    got["context"][0, -1] = value
    ratios = judging.judge(got, true, nearby, **options)
    assert ratios["context, worst row"] > 20 and (ratios["context"] < 1 or np.isnan(value))


def test_the_judge_lets_terms_cancel_but_not_in_a_context():
    true = np.array([[1.0, 1.0], [0.0, 0.0]])
    outputs = {"context": true, "d_q": true}
    nearby = [{name: x * (1 + 2**-8) for name, x in outputs.items()}]
    got = {name: x + 2**-8 for name, x in outputs.items()}
    ratios = judging.judge(got, outputs, nearby, dtype="bfloat16", length=2)
    assert ratios["d_q, worst row"] < 1 < ratios["context, worst row"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    ["exact", "lsh-2", "additive", "alibi", "general", routes.Chunked(4), Gated, promotes],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_what_is_right_keeps_all(mechanism):
    report = testing.check(mechanism)
    report.require()
    assert [x.contract for x in report.outcomes] == list(testing.CONTRACTS)
    assert sum(x.verdict == "yes" for x in report.outcomes) >= 14


@pytest.mark.parametrize(
    "mechanism, contract, words",
    [
        (
            WeightsOfNoHeads,
            "shapes",
            r"returns must be \[\*B, N, T, S\] .* got .5, 17, 23",
        ),
        (ForgetsToReturn, "decoding", "ForgetsToReturn must return a bias; got None"),
        (Narrow, "shapes", r"\(5, 23, 3\), not float32 \(5, 23, 14\)"),
        (Two, "causal", r"Two must return one array, float32 \(5, 23, 14\); got tuple"),
    ],
)
def test_what_returns_something_else_is_told(mechanism, contract, words):
    outcome = testing.outcome(mechanism, contract)
    assert outcome.verdict == "no" and re.search(words, outcome.words), outcome


@pytest.mark.parametrize("contract, seed", [("gradient", 0), ("second_derivative", 2)])
def test_differences_do_not_accuse_what_rounds_to_float32(contract, seed):
    assert testing.outcome(softmax_in_float32, contract, seed).verdict == "yes"


@pytest.mark.parametrize(
    "contract, mechanism",
    daily(
        itertools.product(["shapes", "gradient", "batch"], [Shuffled, Counting]),
        ("gradient", Counting),
        ("batch", Shuffled),
    ),
)
def test_variables_that_are_no_parameters_keep_their_dtype(contract, mechanism):
    outcome = testing.outcome(mechanism, contract)
    assert outcome.verdict == "yes", outcome.words


def test_a_report_names_what_is_broken_of_what_is_asked():
    with pytest.raises(AssertionError, match="ignores_the_mask breaks hidden_keys: context"):
        testing.check(ignores_the_mask, contracts=["shapes", "hidden_keys"]).require()
    testing.check(ignores_the_mask, contracts=["shapes"]).require()
    with pytest.raises(Invalid, match="no contract speed; there are shapes, definition"):
        testing.check(ignores_the_mask, contracts=["speed"])


def sums_in_a_loop(q, k, v, *, mask=None, start=jnp.zeros_like):
    total = jax.lax.scan(lambda x, y: (x + y, None), start(v[:, 0]), jnp.moveaxis(v, 1, 0))[0]
    return jnp.broadcast_to(total[:, None], (*q.shape[:2], *v.shape[2:]))


def test_a_loop_that_devices_refuse_is_told_how_to_begin():
    assert testing.outcome(sums_in_a_loop, "devices").verdict == "yes"
    with_zeros = own.as_own(sums_in_a_loop, start=lambda x: jnp.zeros(x.shape))
    assert "jnp.zeros_like(q, shape=…)" in testing.outcome(with_zeros, "devices").words


def test_a_score_may_hold_an_array():
    testing.shapes(scores.Additive(jnp.ones(7)))


def test_what_has_no_gradient_is_held_to_the_rest():
    outcomes = {x: testing.outcome(without_gradient, x).verdict for x in ("gradient", "causal")}
    assert outcomes == {"gradient": "-", "causal": "yes"}
    assert "Pure callbacks do not support" in testing.outcome(without_gradient, "gradient").words
    assert testing.outcome(one_gradient_short, "gradient").verdict == "no"
    assert testing.outcome(one_gradient_short, "decoding").verdict == "-", "it takes no mask"


def test_hard_attention_decodes_at_rest_and_says_that_its_gradient_is_another():
    names = ("decoding", "hidden_keys", "definition", "gradient", "second_derivative")
    verdicts = [testing.outcome("hard", x).verdict for x in names]
    assert verdicts == ["yes", "yes", "-", "-", "-"]


def test_cost_grows_as_the_compiler_says():
    cost = testing.Cost({1024: 5, 4096: 2**20, 8192: 2**22}, 0.001)
    assert cost.power == 2.0
    sizes, growth = "5 B at 1,024 tokens and 4.00 MiB at 8,192 tokens", "over the last doubling"
    assert str(cost) == f"{sizes}, ~n^2.0 {growth}; 1.00 ms at 1,024"


@pytest.mark.parametrize(
    "mechanism, words",
    [
        ("exact+lsh-2", "cannot be checked"),
        ("location", "cannot be checked"),
        (3, "int is no attention"),
        (np, "module is no attention"),
    ],
)
def test_what_is_no_mechanism_is_refused(mechanism, words):
    with pytest.raises(Invalid, match=words):
        testing.subject_of(mechanism)
