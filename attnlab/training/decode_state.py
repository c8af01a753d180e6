"""What a search keeps of a `Seq2Seq` between its tokens: memory, cache and static arrays.

Letters: B batch, S source length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from attnlab import tokens as tok

__all__ = ["batch_axes", "first_call", "make_next_logits"]


def first_call(model, variables, source, max_length):
    """The memory, the logits [B, V] of the first tokens, and the collections that were made."""
    memory = model.apply(variables, source, method="encode")
    logits, state = model.apply(
        {**variables, "cache": _buffers(model, memory, source.shape[0], max_length)},
        memory,
        jnp.full((source.shape[0], 1), tok.BOS, jnp.int32),
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

    They are those whose shape, as `init` makes them, depends on the number of tokens it is shown.
    """

    def cache_of(length):
        def init(memory):
            tokens = jnp.zeros((batch, length), jnp.int32)
            return model.init(jax.random.key(0), memory, tokens, decode=True, method="decode")

        return jax.eval_shape(init, memory).get("cache", {})

    def growing(long, short):
        if isinstance(long, Mapping):
            found = {name: growing(long[name], short[name]) for name in long}
            return {name: x for name, x in found.items() if x is not None} or None
        if not isinstance(long, jax.ShapeDtypeStruct) or long.shape == short.shape:
            return None
        return jnp.zeros(long.shape, long.dtype)

    return growing(cache_of(max_length), cache_of(1 if max_length > 1 else 2)) or {}


def batch_axes(model, variables, source, max_length, state) -> Any:
    """The batch axis of each array in the state; −1 where all rows share it."""
    batch, length = source.shape
    more = jax.ShapeDtypeStruct((batch + 1, length), source.dtype)
    _, _, larger = jax.eval_shape(
        lambda source: first_call(model, variables, source, max_length), more
    )

    def axis(x, y):
        differs = [
            i for i, sizes in enumerate(zip(x.shape, y.shape, strict=True)) if len({*sizes}) > 1
        ]
        return differs[0] if differs else -1

    return jax.tree.map(axis, state, larger)
