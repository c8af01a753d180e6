"""One hypothesis a row, token by token: the likeliest token, or one that is drawn."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlab.core import tokens as tok
from attnlab.core.checks import as_number, as_size, require, require_key
from attnlab.models.seq2seq import Decoder
from attnlab.training.decode.state import (
    Hypotheses,
    as_given,
    first_call,
    limits_of,
    log_probs_of,
    make_next_logits,
)


def greedy(
    model: Decoder,
    variables: Mapping[str, Any],
    source: jax.Array | None = None,
    *,
    prompt: jax.Array | None = None,
    max_length: int,
    extra_length: int | None = 50,
) -> Hypotheses:
    """The likeliest token after the likeliest tokens, until EOS or the limit.

    Args:
      model: model that writes the tokens, a static argument of the compiled program: equal models
        share it.
      variables: variables of the model, `{"params": …}`.
      source: tokens [B, S], padded at the end; None for a language model. Every new shape compiles
        anew: put lengths in buckets.
      prompt: tokens [B, P] that the output goes on after, all of one length; None = none.
      max_length: limit T of new tokens, EOS included; the caches hold P + T.
      extra_length: number of tokens by which a row may be longer than its source, if that ends it
        before max_length; None, or no source = no such limit.

    Returns:
      New tokens [B, T], scores [B] (not divided by a penalty) and lengths [B].

    Raises:
      ValueError: neither source nor prompt, shapes that do not fit, a length below 1.

    Cost: one decoder step a token, until the last row has ended.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attnlab.models import TransformerConfig, TransformerLM
      >>> model = TransformerLM(TransformerConfig(11, num_layers=1, width=8, hidden=8, num_heads=2))
      >>> prompt = jnp.array([[5, 6, 7], [8, 9, 10]])
      >>> variables = model.init(jax.random.key(0), prompt)
      >>> greedy(model, variables, prompt=prompt, max_length=4).tokens.shape
      (2, 4)
    """
    given = as_given(source, prompt, max_length, extra_length)
    return _write(model, dict(variables), given, None, None, max_length, extra_length)


def sample(
    model: Decoder,
    variables: Mapping[str, Any],
    source: jax.Array | None = None,
    *,
    key: jax.Array,
    prompt: jax.Array | None = None,
    max_length: int,
    extra_length: int | None = 50,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Hypotheses:
    """Tokens drawn one after the other, until EOS or the limit.

        p'(y) ∝ p(y)^{1/temperature}    over the `top_k` likeliest y, and of these over the fewest
                                        likeliest whose p' sums up to at least `top_p`.

    Args:
      model: model that writes the tokens, a static argument of the compiled program, as for
        `greedy`.
      variables: variables of the model, `{"params": …}`.
      source: tokens [B, S], padded at the end; None for a language model.
      key: PRNG key; the same key gives the same tokens.
      prompt: tokens [B, P] that the output goes on after, all of one length; None = none.
      max_length: limit T of new tokens, EOS included; the caches hold P + T.
      extra_length: number of tokens by which a row may be longer than its source, as for `greedy`.
      temperature: spread of the draw, > 0; towards 0 it is `greedy`.
      top_k: number of tokens that may be drawn; None = all. Each value compiles anew.
      top_p: share of the probability that may be drawn, in (0, 1]; None = all.

    Returns:
      As `greedy`; scores are log p of the model, whatever the temperature.

    Raises:
      ValueError: as `greedy`, and other values of temperature, top_k or top_p.

    Source: top_p is the nucleus of Holtzman et al. 2020, §3.1; top_k is Fan et al. 2018, §5.3.
    """
    given = as_given(source, prompt, max_length, extra_length)
    temperature, float32 = as_number("temperature", temperature), jnp.finfo(jnp.float32)
    require(
        float(float32.tiny) <= temperature <= float(float32.max),
        f"temperature must be more than 0 and finite; got {temperature} (towards 0 use greedy)",
    )
    if top_k is not None:
        as_size("top_k", top_k)
    if top_p is not None:
        require(0 < as_number("top_p", top_p) <= 1, f"top_p must be in (0, 1]; got {top_p}")
    require_key("key", key)
    draw = _Draw(key, jnp.float32(temperature), None if top_p is None else jnp.float32(top_p))
    return _write(model, dict(variables), given, draw, top_k, max_length, extra_length)


class _Draw(NamedTuple):
    """How a token is drawn."""

    key: jax.Array
    temperature: jax.Array
    top_p: jax.Array | None

    def token(self, step: Any, log_probs: jax.Array, top_k: int | None) -> jax.Array:
        """One token [B] of log p [B, V]."""
        key = jax.random.fold_in(self.key, step)
        # The likeliest is 0: divided by the smallest temperatures, all others alone overflow.
        logits = (log_probs - log_probs.max(-1, keepdims=True)) / self.temperature
        if top_k is None and self.top_p is None:
            return jax.random.categorical(key, logits).astype(jnp.int32)
        size = logits.shape[-1]
        falling, tokens = jax.lax.top_k(logits, size if top_k is None else min(top_k, size))
        if self.top_p is not None:
            p = jax.nn.softmax(falling)
            falling = jnp.where(jnp.cumsum(p, axis=-1) - p < self.top_p, falling, -jnp.inf)
        place = jax.random.categorical(key, falling)
        return jnp.take_along_axis(tokens, place[:, None], axis=-1)[:, 0].astype(jnp.int32)


class _Growing(NamedTuple):
    """One hypothesis a row, and whether it has not ended."""

    tokens: jax.Array  # [B, T]
    log_p: jax.Array  # [B]
    growing: jax.Array  # [B]


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6))
def _write(model, variables, given, draw, top_k, max_length, extra_length) -> Hypotheses:
    limits = limits_of(given, max_length, extra_length)
    memory, logits, state = first_call(model, variables, given, max_length)
    next_logits = make_next_logits(model, variables, memory, state.get("static", {}))

    def extend(step, hypotheses: _Growing, logits) -> _Growing:
        log_probs = log_probs_of(logits)
        if draw is None:
            # The first of the likeliest ids, the last id where all is NaN; jnp.argmax takes four
            # times as long on a CPU.
            ids, largest = jnp.arange(log_probs.shape[-1]), log_probs.max(-1, keepdims=True)
            token = jnp.where(log_probs == largest, ids, ids[-1]).min(-1).astype(jnp.int32)
        else:
            token = draw.token(step, log_probs, top_k)
            token = jnp.where(jnp.isnan(log_probs[:, -1]), log_probs.shape[-1] - 1, token)
        log_p = jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0]
        follows = hypotheses.growing & ~jnp.isneginf(log_p)
        token = jnp.where(follows, token, tok.PAD)
        return _Growing(
            jax.lax.dynamic_update_slice_in_dim(hypotheses.tokens, token[:, None], step, 1),
            hypotheses.log_p + jnp.where(hypotheses.growing, log_p, 0.0),
            follows & (token != tok.EOS) & (step + 1 < limits),
        )

    def body(carry):
        step, hypotheses, cache = carry
        last = jax.lax.dynamic_slice_in_dim(hypotheses.tokens, step - 1, 1, 1)
        logits, cache = next_logits(cache, last)
        return step + 1, extend(step, hypotheses, logits), cache

    batch = given.prompt.shape[0]
    empty = jnp.full((batch, max_length), tok.PAD, jnp.int32)
    none = _Growing(empty, jnp.zeros(batch, jnp.float32), jnp.ones(batch, bool))
    hypotheses = extend(0, none, logits)
    carry = jnp.int32(1), hypotheses, state.get("cache", {})
    _, hypotheses, _ = jax.lax.while_loop(lambda carry: carry[1].growing.any(), body, carry)
    return Hypotheses(hypotheses.tokens, hypotheses.log_p, tok.lengths(hypotheses.tokens))
