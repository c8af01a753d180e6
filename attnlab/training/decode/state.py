"""The state of every search: its beginning, a `Decoder`'s part between tokens, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from attnlab.core import tokens as tok
from attnlab.core.checks import as_size, require
from attnlab.models.seq2seq import Seq2Seq

__all__ = [
    "Given",
    "Hypotheses",
    "as_given",
    "batch_axes",
    "first_call",
    "limits_of",
    "log_probs_of",
    "make_next_logits",
]

NEVER = (tok.PAD, tok.BOS)  # a model's mass on them is lost to its hypotheses, not shared out


@flax.struct.dataclass
class Hypotheses:
    """What a search found.

    Attributes:
      tokens: new tokens [B, T] or, of a whole beam, [B, k, T] with the best first; they end with
        EOS unless the limit came first, then PAD.
      scores: log-probabilities of the new tokens, over the length penalty, [B] or [B, k]; NaN
        where the model's are, −inf where it let nothing follow, every logit being −inf.
      lengths: numbers of new tokens, EOS included.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


class Given(NamedTuple):
    """What every row begins with.

    Attributes:
      source: tokens [B, S], padded at the end; None for a language model.
      prompt: tokens [B, P] that the output goes on after, P ≥ 0.
    """

    source: jax.Array | None
    prompt: jax.Array


def as_given(
    source: jax.Array | None,
    prompt: jax.Array | None,
    max_length: int,
    extra_length: int | None,
) -> Given:
    """The arguments of a search, checked; lists are arrays."""
    source = None if source is None else jnp.asarray(source)
    prompt = None if prompt is None else jnp.asarray(prompt)
    require(
        source is None or source.ndim >= 2,
        "source must be tokens [B, S]; got one axis (give one sentence as source[None])",
    )
    if source is not None and jnp.issubdtype(source.dtype, jnp.integer):
        tok.require_padding_at_end("source", source)
    as_size("max_length", max_length)
    if extra_length is not None:
        as_size("extra_length", extra_length)
    if prompt is None:
        require(
            source is not None,
            "a search needs a source or a prompt; got neither (a language model that begins with"
            " nothing has a prompt [B, 0])",
        )
        assert source is not None
        prompt = jnp.zeros((source.shape[0], 0), jnp.int32)
    require(
        prompt.ndim == 2 and (prompt.size == 0 or jnp.issubdtype(prompt.dtype, jnp.integer)),
        f"prompt must be tokens [B, P], integers; got {prompt.dtype} {list(prompt.shape)} (give one"
        " prompt as prompt[None])",
    )
    require(
        isinstance(prompt, jax.core.Tracer) or bool((prompt != tok.PAD).all()),
        f"prompts of a call are of one length, without padding; got the id {tok.PAD} in one (search"
        " once for the prompts of each length)",
    )
    prompt = prompt.astype(jnp.int32)
    rows = prompt.shape[0] if source is None else source.shape[0]
    require(
        prompt.shape[0] == rows,
        f"prompt must be tokens [B, P] with B = {rows}; got {list(prompt.shape)} (give one for each"
        " source)",
    )
    return Given(source, prompt)


def limits_of(given: Given, max_length: int, extra_length: int | None) -> jax.Array:
    """The most new tokens of each row, [B]."""
    if extra_length is None or given.source is None:
        return jnp.full(given.prompt.shape[0], max_length)
    return jnp.minimum(tok.lengths(given.source) + extra_length, max_length)


def log_probs_of(logits: jax.Array) -> jax.Array:
    """log softmax in float32, at most 0 also when rounded, and −inf for what is never emitted.

    Where a logit is NaN, all are; where all are −inf, nothing may follow, and all stay −inf.
    """
    logits = logits.astype(jnp.float32)
    nothing = jnp.isneginf(logits.max(-1, keepdims=True))
    log_probs = jnp.where(nothing, logits, jnp.minimum(jax.nn.log_softmax(logits), 0.0))
    never = jnp.where(jnp.isnan(log_probs[..., :1]), jnp.nan, -jnp.inf)
    return log_probs.at[..., NEVER].set(never)


def first_call(model, variables, given: Given, max_length):
    """The memory, the logits [B, V] of the first new tokens, and the collections that were made."""
    require(
        given.source is not None or not isinstance(model, Seq2Seq),
        f"a {type(model).__name__} needs a source; got None (give source=)",
    )
    memory = model.apply(variables, given.source, method="encode")
    batch, prompted = given.prompt.shape
    begin = jnp.full((batch, 1), tok.BOS, jnp.int32)
    variables = {name: x for name, x in variables.items() if name != "static"}  # of another source
    logits, state = model.apply(
        {**variables, "cache": _buffers(model, memory, batch, prompted + max_length)},
        memory,
        jnp.concatenate([begin, given.prompt], axis=1),
        decode=True,
        mutable=["cache", "static"],
        method="decode",
    )
    return memory, logits[:, -1], dict(state)


def make_next_logits(model, variables, memory, static) -> Callable[..., Any]:
    """(cache, last tokens [B, 1]) → logits [B, V] and the cache after them."""

    def next_logits(cache, last):
        logits, state = model.apply(
            {**variables, "static": static, "cache": cache},
            memory,
            last,
            decode=True,
            mutable=["cache"],
            method="decode",
        )
        return logits[:, -1], state.get("cache", {})

    return next_logits


def _buffers(model, memory, batch: int, max_length: int) -> dict[str, Any]:
    """Empty arrays for the caches that hold all tokens; the first call makes what else it keeps.

    These are the arrays whose shape, as `init` makes them, depends on the number of tokens.
    """

    def cache_of(length):
        def init(memory):
            tokens = jnp.zeros((batch, length), jnp.int32)
            return model.init(jax.random.key(0), memory, tokens, decode=True, method="decode")

        return jax.eval_shape(init, memory).get("cache", {})

    def growing(long, short):
        if isinstance(long, Mapping):
            cache = {name: growing(long[name], short[name]) for name in long}
            return {name: x for name, x in cache.items() if x is not None} or None
        if not isinstance(long, jax.ShapeDtypeStruct) or long.shape == short.shape:
            return None
        return jnp.zeros(long.shape, long.dtype)

    return growing(cache_of(max_length), cache_of(1 if max_length > 1 else 2)) or {}


def batch_axes(model, variables, given: Given, max_length, state) -> Any:
    """The batch axis of each array in the state; −1 where all rows share it."""
    more = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((x.shape[0] + 1, *x.shape[1:]), x.dtype), given
    )
    _, _, larger = jax.eval_shape(
        lambda given: first_call(model, variables, given, max_length), more
    )

    def axis(x, y):
        differs = [
            i for i, sizes in enumerate(zip(x.shape, y.shape, strict=True)) if len({*sizes}) > 1
        ]
        return differs[0] if differs else -1

    return jax.tree.map(axis, state, larger)
