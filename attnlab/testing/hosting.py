"""An attention of any framework as the only layer of a model, so that a model's contracts hold."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from attnlab.masks import Causal
from attnlab.testing.frameworks import (
    MASKS,
    as_numpy,
    call,
    can_be_traced,
    find_framework,
    find_parameters,
)

__all__ = ["VOCAB_SIZE", "host", "needs_host"]

_HEADS, _WIDTH = 8, 4
VOCAB_SIZE = _HEADS * _WIDTH


def host(name: str, attention: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """A function of tokens [B, T] whose logits [B, T, 32] are the context of all heads.

    Queries, keys and values are drawn for each token. A keyword `mask`, `attn_mask` or
    `attention_mask` is given booleans [B, 1, T, S], True = is seen, which hide the future, but for
    an attention that an argument such as is_causal=True tells to hide it.

    Args:
      name: name of the attention.
      attention: function of q, k and v [B, T, N, H], of torch [B, N, T, H], that returns the
        context.

    Raises:
      Invalid: it takes the arrays of no framework; one line.
    """
    drawn = np.random.default_rng(0).normal(size=(3, VOCAB_SIZE, _HEADS, _WIDTH))
    tables = drawn.astype(np.float32)
    keyword = next((word for word in MASKS if word in find_parameters(attention)), "")
    told = getattr(attention, "keywords", {})
    hides_future = any("causal" in word and x for word, x in told.items())
    seen = {keyword: np.ones((1, 1, 1, 1), bool)} if keyword and not hides_future else {}
    framework = find_framework(name, attention, *tables[:, None], **seen)
    compiled = jax.jit(attention) if framework == "jax" else attention
    heads_first = (0, 2, 1, 3) if framework == "torch" else (0, 1, 2, 3)

    def logits(tokens: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        batch, length = tokens.shape
        visible = np.ones((batch, length), bool) if mask is None else mask
        future = np.triu(np.ones((length, length), bool), 1)
        seen = visible[:, None, None] & (True if hides_future else ~future)  # [B, 1, T or 1, S]
        options = {keyword: seen} if keyword and (mask is not None or not hides_future) else {}
        arrays = (np.transpose(table[tokens], heads_first) for table in tables)
        context = as_numpy(call(compiled, framework, *arrays, **options))
        context = np.transpose(context, heads_first).reshape(batch, length, -1)
        return np.where(visible[..., None], context, 0)  # what padding sees is nobody's

    return logits if keyword else lambda tokens: logits(tokens)


def needs_host(found: Any) -> bool:
    """Whether it is a function that does not take q, k and v of JAX and a mask of attnlab."""
    x = np.ones((1, 2, _HEADS, _WIDTH), np.float32)
    is_function = inspect.isroutine(getattr(found, "func", found))
    if not is_function:
        return False
    options = {"mask": Causal()} if "mask" in find_parameters(found) else {}
    return not can_be_traced(functools.partial(found, **options), x, x, x)
