"""Greedy and beam search for any `Seq2Seq`, each one compiled program.

Letters: B batch, S source length, T the most target tokens, k beam, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from attnlab import tokens as tok
from attnlab.checks import require
from attnlab.models.seq2seq import Seq2Seq
from attnlab.training.decode_state import batch_axes, first_call, make_next_logits

__all__ = ["Hypotheses", "beam_search", "greedy", "length_penalty_of"]

NEVER = (tok.PAD, tok.BOS)  # a model's mass on them is lost to its hypotheses, not shared out


@flax.struct.dataclass
class Hypotheses:
    """What a search found.

    Attributes:
      tokens: [B, T] or, of a whole beam, [B, k, T] with the best first; ends with EOS unless the
        limit came first, then PAD.
      scores: [B] or [B, k]; log p of the tokens, over the length penalty.
      lengths: tokens, EOS included.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


def length_penalty_of(length: Any, alpha: Any) -> Any:
    """((5 + length) / 6)^alpha, EOS counted (Wu et al. 2016, §7); log p is divided by it."""
    return ((5.0 + length) / 6.0) ** alpha


def greedy(
    model: Seq2Seq,
    variables: Mapping[str, Any],
    source: jax.Array,
    *,
    max_length: int,
    extra_length: int | None = 50,
) -> Hypotheses:
    """The likeliest token after the likeliest tokens, until EOS or the limit.

    Args:
      model: a static argument of the compiled program: equal models share it.
      variables: of the model, `{"params": …}`.
      source: [B, S], padded at the end. Every new shape compiles anew: put lengths in buckets.
      max_length: T, EOS included; also the length of the caches.
      extra_length: a row ends at its source's length + extra_length, if that comes first; None = at
        max_length.

    Returns:
      tokens [B, T], scores [B] (not divided by a penalty) and lengths [B].

    Cost: one decoder step a token, until the last row has ended.
    """
    _require_lengths(max_length, extra_length)
    return _greedy(model, dict(variables), source, max_length, extra_length)


def beam_search(
    model: Seq2Seq,
    variables: Mapping[str, Any],
    source: jax.Array,
    *,
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
    its later tokens turn out, so that stopping early changes nothing. Only if none has ended at the
    limit are the unended ones returned. With `beam_size=1, length_penalty=0` it is `greedy`.

    Args:
      model: as for `greedy`.
      variables: as for `greedy`.
      source: as for `greedy`.
      beam_size: k.
      length_penalty: alpha ≥ 0; 0 = none.
      max_length: as for `greedy`.
      extra_length: as for `greedy`; 50 as in Vaswani et al. 2017, §6.1.
      return_beam: return all k ended hypotheses of a row (score −inf and no tokens where there are
        fewer) instead of the best, which takes longer to be sure of.

    Returns:
      tokens [B, T], scores [B] and lengths [B]; of the whole beam [B, k, T], [B, k], [B, k].

    Cost: of a token, a decoder step of B·k rows and a copy of their caches.
    Source: Wu et al. 2016, §7; Vaswani et al. 2017, §6.1.
    """
    _require_lengths(max_length, extra_length)
    require(beam_size >= 1, f"beam_size must be at least 1; got {beam_size}")
    require(length_penalty >= 0, f"length_penalty must be at least 0; got {length_penalty}")
    found = _beam_search(
        model, dict(variables), source, length_penalty, beam_size, max_length, extra_length,
        return_beam,
    )  # fmt: skip
    return found if return_beam else jax.tree.map(lambda x: x[:, 0], found)


class _Growing(NamedTuple):
    """One hypothesis a row, and whether it has not ended."""

    tokens: jax.Array  # [B, T]
    log_p: jax.Array  # [B]
    growing: jax.Array  # [B]


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _greedy(model, variables, source, max_length, extra_length) -> Hypotheses:
    limits = _limits(source, max_length, extra_length)
    memory, logits, state = first_call(model, variables, source, max_length)
    next_logits = make_next_logits(model, variables, memory, state.get("static", {}))

    def extend(step, found: _Growing, logits) -> _Growing:
        log_probs = _log_probs(logits)
        token = jnp.argmax(log_probs, -1).astype(jnp.int32)
        token = jnp.where(found.growing, token, tok.PAD)
        return _Growing(
            jax.lax.dynamic_update_slice_in_dim(found.tokens, token[:, None], step, 1),
            found.log_p + jnp.where(found.growing, log_probs.max(-1), 0.0),
            found.growing & (token != tok.EOS) & (step + 1 < limits),
        )

    def body(carry):
        step, found, cache = carry
        last = jax.lax.dynamic_slice_in_dim(found.tokens, step - 1, 1, 1)
        logits, cache = next_logits(cache, last)
        return step + 1, extend(step, found, logits), cache

    batch = source.shape[0]
    empty = jnp.full((batch, max_length), tok.PAD, jnp.int32)
    found = extend(0, _Growing(empty, jnp.zeros(batch), jnp.ones(batch, bool)), logits)
    carry = jnp.int32(1), found, state.get("cache", {})
    _, found, _ = jax.lax.while_loop(lambda carry: carry[1].growing.any(), body, carry)
    return Hypotheses(found.tokens, found.log_p, tok.lengths(found.tokens))


class _Beam(NamedTuple):
    """Unended hypotheses and ended ones, each with the best first; −inf where there is none."""

    tokens: jax.Array  # [B, k, T]
    log_p: jax.Array  # [B, k]
    ended: jax.Array  # [B, k, T]
    ended_scores: jax.Array  # [B, k]


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6, 7))
def _beam_search(
    model, variables, source, alpha, beam_size, max_length, extra_length, return_beam
) -> Hypotheses:
    limits = _limits(source, max_length, extra_length)
    memory, logits, state = first_call(model, variables, source, max_length)
    axes = batch_axes(model, variables, source, max_length, state)

    def repeat(x, axis=0):
        return x if axis < 0 else jnp.repeat(x, beam_size, axis)

    state = jax.tree.map(repeat, state, axes)
    next_logits = make_next_logits(
        model, variables, jax.tree.map(repeat, memory), state.get("static", {})
    )
    cache_axes = axes.get("cache", {})
    batch = source.shape[0]
    first_rows = beam_size * jnp.arange(batch)[:, None]

    def body(carry):
        step, beam, cache = carry
        last = jax.lax.dynamic_slice_in_dim(beam.tokens, step - 1, 1, 2)
        logits, cache = next_logits(cache, last.reshape(-1, 1))
        beam, parents = _grow(beam, logits.reshape(batch, beam_size, -1), step, limits, alpha)
        rows = (first_rows + parents).reshape(-1)

        def reorder(x, axis):
            return x if axis < 0 else jnp.take(x, rows, axis=axis)

        return step + 1, beam, jax.tree.map(reorder, cache, cache_axes)

    def goes_on(carry):
        step, beam, _ = carry
        to_beat = beam.ended_scores[:, -1 if return_beam else 0]
        best_to_come = beam.log_p[:, 0] / length_penalty_of(limits, alpha)
        return ((step < limits) & (to_beat < best_to_come)).any()

    nothing = jnp.full((batch, beam_size, max_length), tok.PAD, jnp.int32)
    none = jnp.full((batch, beam_size), -jnp.inf)
    # All hypotheses of a row are one and the same before the first token: one counts.
    beam = _Beam(nothing, none.at[:, 0].set(0.0), nothing, none)
    logits = jnp.repeat(logits[:, None], beam_size, 1)
    beam, _ = _grow(beam, logits, 0, limits, alpha)
    carry = jnp.int32(1), beam, state.get("cache", {})
    _, beam, _ = jax.lax.while_loop(goes_on, body, carry)

    has_ended = beam.ended_scores[:, :1] > -jnp.inf
    unended_scores = beam.log_p / length_penalty_of(limits, alpha)[:, None]
    tokens = jnp.where(has_ended[..., None], beam.ended, beam.tokens)
    scores = jnp.where(has_ended, beam.ended_scores, unended_scores)
    return Hypotheses(tokens, scores, tok.lengths(tokens))


def _grow(beam: _Beam, logits: jax.Array, step: Any, limits: jax.Array, alpha: Any):
    """The beam with one more token, and the hypothesis that each unended one continues, [B, k].

    Args:
      beam: of the hypotheses with `step` tokens.
      logits: [B, k, V].
      step: how many tokens there are.
      limits: [B]; a row stays as it is from there on.
      alpha: of the length penalty.
    """
    size, vocab_size = logits.shape[1:]
    candidates = beam.log_p[..., None] + _log_probs(logits)
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
    grown = _Beam(_take(tokens, unended), log_p, ended, ended_scores)
    grows = step < limits

    def if_it_grows(new, old):
        return jnp.where(grows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(if_it_grows, grown, beam), _take(parents, unended)


def _take(x: jax.Array, index: jax.Array) -> jax.Array:
    """x [B, n, …] at index [B, m] of its axis 1."""
    index = index.reshape(*index.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1)


def _log_probs(logits: jax.Array) -> jax.Array:
    """log softmax in float32, at most 0 also when rounded, and −inf for what is never emitted."""
    log_probs = jnp.minimum(jax.nn.log_softmax(logits.astype(jnp.float32)), 0.0)
    return log_probs.at[..., NEVER].set(-jnp.inf)


def _limits(source: jax.Array, max_length: int, extra_length: int | None) -> jax.Array:
    """The most tokens of each row, [B]."""
    if extra_length is None:
        return jnp.full(source.shape[0], max_length)
    return jnp.minimum(tok.lengths(source) + extra_length, max_length)


def _require_lengths(max_length: int, extra_length: int | None) -> None:
    require(max_length >= 1, f"max_length must be at least 1; got {max_length}")
    require(
        extra_length is None or extra_length >= 1,
        f"extra_length must be at least 1, or None; got {extra_length}",
    )
