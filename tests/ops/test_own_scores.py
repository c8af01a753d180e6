"""Scores of a user's own: right in every engine, or refused with what is missing."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import MultiHeadAttention, attention, attention_weights, masks, scores
from attnlab.devices.platforms import Platform, compiling_for
from attnlab.ops.hard import hard_attention
from attnlab.ops.local import local_attention

RNG = np.random.default_rng(0)
SHAPES = (2, 5, 4, 6), (2, 7, 2, 6), (2, 7, 2, 6)
Q, K, V = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in SHAPES)


class Capped(scores.Dot):
    """cap · tanh(q·k / cap), static or learned."""

    cap: float = flax.struct.field(pytree_node=False, default=2.0)

    def prepare(self, q, k, *, precision=None):
        return self, q, k

    def logits(self, q, k, *, precision=None):
        return self.cap * jnp.tanh(super().logits(q, k, precision=precision) / self.cap)


class Learned(scores.Score):
    cap: Any = 2.0

    def logits(self, q, k, *, precision=None):
        product = jnp.matmul(q, jnp.swapaxes(k, -1, -2), precision=precision)
        cap = jnp.asarray(self.cap)[..., None, None]
        return cap * jnp.tanh(product / cap / q.shape[-1] ** 0.5)

    def _parameters(self):
        return {"cap": 0}


class Lost(scores.Dot):
    """Queries of one head for all, which the dot product would take."""

    def prepare(self, q, k, *, precision=None):
        return scores.Dot(1.0), q[:, :1], k


class Half(Learned):
    def logits(self, q, k, *, precision=None):
        return super().logits(q, k).astype(jnp.bfloat16)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("score", [Capped(), Learned(2.0), Learned(jnp.full(4, 2.0))], ids=repr)
def test_is_what_it_says(score, implementation):
    got = attention(score, Q, K, V, mask=masks.Causal(2), implementation=implementation)
    logits = np.einsum("btnh,bsnh->bnts", Q, np.repeat(K, 2, 2)) / np.sqrt(6)
    weights = np.exp(2 * np.tanh(logits / 2)) * (np.arange(7) <= np.arange(5)[:, None] + 2)
    weights /= weights.sum(-1, keepdims=True)
    true = np.einsum("bnts,bsnh->btnh", weights, np.repeat(V, 2, 2))
    np.testing.assert_allclose(got, true, rtol=1e-5, atol=1e-6)


def test_a_learned_one_gets_its_gradient_in_every_engine():
    def loss(cap, implementation):
        return jnp.sin(attention(Learned(cap), Q, K, V, implementation=implementation)).sum()

    true, got = (jax.jit(jax.grad(lambda c, n=n: loss(c, n)))(2.0) for n in ("dense", "blockwise"))
    np.testing.assert_allclose(got, true, rtol=1e-4)
    assert abs(true) > 1e-3


@pytest.mark.parametrize(
    "call",
    [
        lambda score: attention(score, Q, K, V, implementation="blockwise"),
        lambda score: attention_weights(score, Q, K),
        lambda score: hard_attention(Q, K, V, score=score),
        lambda score: local_attention(Q, K, V, jnp.zeros((2, 5)), score=score),
        lambda score: MultiHeadAttention(2, score=score).init(jax.random.key(0), Q[:, :, 0]),
    ],
    ids=["attention", "weights", "hard", "local", "module"],
)
def test_every_function_asks_what_it_returns(call):
    """The other lines are on the page of refusals."""
    with pytest.raises(ValueError, match=r"Half.logits must return at least float32 .*; got bfl"):
        jax.eval_shape(lambda: call(Half()))


def test_queries_of_one_head_for_all_are_refused():
    with pytest.raises(ValueError, match=r"Lost.prepare must keep all queries \(.*\) and \d+ k"):
        jax.eval_shape(lambda: attention(Lost(), Q, K, V, implementation="blockwise"))


class Inherited(Learned, scores.Dot):
    """Has the logits of one base, and the prepare of the other."""


class Below(Capped):
    """Other logits behind a prepare that returns the score itself: they are called."""

    def logits(self, q, k, *, precision=None):
        return -super().logits(q, k, precision=precision)


def test_logits_that_would_not_be_called_are_refused():
    with pytest.raises(ValueError, match=r"\.logits would not be called: the prepare of Dot ret"):
        attention(Inherited(), Q, K, V)


def test_logits_that_are_called_are_not():
    np.testing.assert_array_equal(attention(Below(), Q, K, V), attention(Capped(), -Q, K, V))


def test_a_score_made_of_dot_is_no_dot_to_what_computes_dot_alone():
    with compiling_for(Platform("tpu", "TPU v5e", None)):
        for name in ("splash", "pallas"):
            with pytest.raises(NotImplementedError, match="not Capped"):
                jax.eval_shape(lambda n=name: attention(Capped(), Q, K, V, implementation=n))
