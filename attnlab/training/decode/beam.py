"""Beam search: the best hypotheses that ended, of the likeliest ones a step."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlab.core import tokens as tok
from attnlab.core.checks import as_number, as_size, require
from attnlab.models.seq2seq import Decoder
from attnlab.training.decode.state import (
    Hypotheses,
    as_given,
    batch_axes,
    first_call,
    limits_of,
    log_probs_of,
    make_next_logits,
)


def length_penalty_of(length: Any, alpha: Any) -> Any:
    """((5 + length) / 6)^alpha, EOS counted (Wu et al. 2016, §7); log p is divided by it."""
    return ((5.0 + length) / 6.0) ** alpha


def beam_search(
    model: Decoder,
    variables: Mapping[str, Any],
    source: jax.Array | None = None,
    *,
    prompt: jax.Array | None = None,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    max_length: int,
    extra_length: int | None = 50,
    return_beam: bool = False,
) -> Hypotheses:
    """The best hypotheses that ended, of a search that keeps the k likeliest unended ones a step.

    A hypothesis ends where EOS is among the k likeliest continuations of all of its row; it then
    scores log p / ((5 + length) / 6)^length_penalty, and its place is taken by the next likeliest
    that goes on. A row is done when no unended hypothesis can still beat what it returns, however
    its later tokens turn out, so that stopping changes nothing. Only if none has ended at the limit
    are the unended ones returned. With `beam_size=1, length_penalty=0` it is `greedy`.

    Args:
      model: model that searches, a static argument of the compiled program, as for `greedy`.
      variables: variables of the model, `{"params": …}`.
      source: tokens [B, S], padded at the end; None for a language model.
      prompt: tokens [B, P] that the output goes on after, all of one length; None = none.
      beam_size: number of hypotheses, k.
      length_penalty: exponent of the length penalty, ≥ 0; 0 = none.
      max_length: limit T of new tokens, EOS included; the caches hold P + T.
      extra_length: number of tokens by which a row may be longer than its source, as for `greedy`;
        50 as in Vaswani et al. 2017, §6.1.
      return_beam: whether to return all k ended hypotheses of a row (score −inf and no tokens where
        there are fewer) instead of the best, which takes longer to be sure of.

    Returns:
      New tokens [B, T], scores [B] and lengths [B]; of the whole beam [B, k, T], [B, k], [B, k].

    Raises:
      ValueError: as `greedy`, and other values of beam_size or length_penalty.

    Cost: of a token, a decoder step of B·k rows and a copy of their caches; what is of the source
    is not copied, and the hypotheses read it together.
    Source: Wu et al. 2016, §7; Vaswani et al. 2017, §6.1.
    """
    given = as_given(source, prompt, max_length, extra_length)
    as_size("beam_size", beam_size)
    length_penalty = as_number("length_penalty", length_penalty)
    require(length_penalty >= 0, f"length_penalty must be at least 0; got {length_penalty}")
    beams = _beam_search(
        model,
        dict(variables),
        given,
        length_penalty,
        beam_size,
        max_length,
        extra_length,
        return_beam,
    )
    return beams if return_beam else jax.tree.map(lambda x: x[:, 0], beams)


class _Beam(NamedTuple):
    """Unended hypotheses and ended ones, each with the best first; −inf where there is none."""

    tokens: jax.Array  # [B, k, T]
    log_p: jax.Array  # [B, k]
    ended: jax.Array  # [B, k, T]
    ended_scores: jax.Array  # [B, k]


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6, 7))
def _beam_search(
    model, variables, given, alpha, beam_size, max_length, extra_length, return_beam
) -> Hypotheses:
    limits = limits_of(given, max_length, extra_length)
    memory, logits, state = first_call(model, variables, given, max_length)
    axes = batch_axes(model, variables, given, max_length, state).get("cache", {})
    # The hypotheses have caches of their own, [k, …, B, …], and share all that is of the source.
    own = jax.tree.map(lambda axis: None if axis < 0 else 0, axes)
    cache = jax.tree.map(
        lambda x, axis: x if axis < 0 else jnp.stack([x] * beam_size), state.get("cache", {}), axes
    )
    next_logits = jax.vmap(
        make_next_logits(model, variables, memory, state.get("static", {})),
        in_axes=(own, 1),
        out_axes=(1, own),
    )
    batch = given.prompt.shape[0]

    def body(carry):
        step, beam, open_rows, cache = carry
        last = jax.lax.dynamic_slice_in_dim(beam.tokens, step - 1, 1, 2)  # [B, k, 1]
        logits, cache = next_logits(cache, last)  # [B, k, V]
        beam, parents = _grow(beam, logits, step, open_rows, alpha)

        rows = parents.T * batch + jnp.arange(batch)[None]  # [k, B]

        def reorder(x, axis):
            if axis < 0 or batch == 0:
                return x
            x = jnp.moveaxis(x, axis + 1, 1)  # [k, …, B, …] to [k, B, …]
            x = jnp.take(x.reshape(-1, *x.shape[2:]), rows, axis=0, mode="clip")
            return jnp.moveaxis(x, 1, axis + 1)

        cache = jax.tree.map(reorder, cache, axes)
        return step + 1, beam, open_rows & find_unsettled(step + 1, beam), cache

    def find_unsettled(step, beam):
        """The rows [B] in which an unended hypothesis may still win."""
        to_beat = beam.ended_scores[:, -1 if return_beam else 0]
        # log p only falls, and the penalty of the longest hypothesis forgives it most.
        return (step < limits) & (to_beat < beam.log_p[:, 0] / length_penalty_of(limits, alpha))

    nothing = jnp.full((batch, beam_size, max_length), tok.PAD, jnp.int32)
    none = jnp.full((batch, beam_size), -jnp.inf)
    # All hypotheses of a row are one and the same before the first token: one counts.
    beam = _Beam(nothing, none.at[:, 0].set(0.0), nothing, none)
    logits = jnp.repeat(logits[:, None], beam_size, 1)
    beam, _ = _grow(beam, logits, 0, jnp.ones(batch, bool), alpha)
    carry = jnp.int32(1), beam, find_unsettled(1, beam), cache
    _, beam, *_ = jax.lax.while_loop(lambda carry: carry[2].any(), body, carry)

    has_ended = beam.ended_scores[:, :1] > -jnp.inf
    unended_scores = beam.log_p / length_penalty_of(limits, alpha)[:, None]
    tokens = jnp.where(has_ended[..., None], beam.ended, beam.tokens)
    scores = jnp.where(has_ended, beam.ended_scores, unended_scores)
    tokens = jnp.where(jnp.isneginf(scores)[..., None], tok.PAD, tokens)
    scores = jnp.where(jnp.isnan(beam.log_p).any(1, keepdims=True), jnp.nan, scores)
    return Hypotheses(tokens, scores, tok.lengths(tokens))


def _grow(beam: _Beam, logits: jax.Array, step: Any, grows: jax.Array, alpha: Any):
    """The beam with one more token, and the hypothesis that each unended one continues, [B, k].

    Args:
      beam: hypotheses of `step` tokens.
      logits: scores [B, k, V] of their next tokens.
      step: number of tokens of the hypotheses.
      grows: booleans [B], True for rows that grow; the others stay as they are.
      alpha: exponent of the length penalty.
    """
    size, vocab_size = logits.shape[1:]
    log_probs = log_probs_of(logits)
    # A row whose model is NaN ends, and is NaN: neither is more or less than another.
    is_nan = jnp.any(jnp.isnan(log_probs[..., tok.EOS]) & (beam.log_p > -jnp.inf), axis=1)
    candidates = beam.log_p[..., None] + log_probs
    candidates = jnp.where(jnp.isnan(candidates), -jnp.inf, candidates)
    # Only k of these can be an EOS, one a hypothesis, so k others go on.
    log_p, index = jax.lax.top_k(candidates.reshape(-1, size * vocab_size), 2 * size)
    parents, token = index // vocab_size, index % vocab_size
    tokens = _take(beam.tokens, parents)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[..., None], step, 2)
    ends = token == tok.EOS

    scores = log_p / length_penalty_of(step + 1, alpha)
    scores = jnp.where(ends & (jnp.arange(2 * size)[None] < size), scores, -jnp.inf)
    ended_scores, of_ended = jax.lax.top_k(jnp.concatenate([beam.ended_scores, scores], 1), size)
    ended = _take(jnp.concatenate([beam.ended, tokens], 1), of_ended)
    ended = jnp.where(ended_scores[..., None] > -jnp.inf, ended, tok.PAD)

    log_p, unended = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_p), size)
    log_p = jnp.where(is_nan[:, None], jnp.nan, log_p)
    grown = _Beam(_take(tokens, unended), log_p, ended, ended_scores)

    def if_it_grows(new, old):
        return jnp.where(grows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(if_it_grows, grown, beam), _take(parents, unended)


def _take(x: jax.Array, index: jax.Array) -> jax.Array:
    """x [B, n, …] at index [B, m] of its axis 1."""
    index = index.reshape(*index.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1)
