"""An attention of any framework as the only layer of a model, so that a model's contracts hold."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.masks import Causal
from attnlab.testing.frameworks import (
    MASKS,
    can_be_traced,
    find_framework,
    find_parameters,
    give,
    library_of,
)

_HEADS, _WIDTH = 8, 4
VOCAB_SIZE = _HEADS * _WIDTH


def host(name: str, attention: Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    """A function of tokens [B, T], its logits [B, T, 32] the context of all heads; its framework.

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
    drawn = drawn.astype(np.float32)
    keyword = next((word for word in MASKS if word in find_parameters(attention)), "")
    told = getattr(attention, "keywords", {})
    hides_future = any("causal" in word and x for word, x in told.items())
    seen = {keyword: np.ones((1, 1, 1, 1), bool)} if keyword and not hides_future else {}
    framework = find_framework(name, attention, *drawn[:, None], **seen)
    library = library_of(framework)
    tables = [give(table, framework) for table in drawn]

    def turn(x: Any) -> Any:
        """[B, T, N, H], as torch has them, and back."""
        return x.swapaxes(1, 2) if framework == "torch" else x

    def logits(tokens: Any, mask: Any = None) -> Any:
        batch, length = tokens.shape
        visible = library.ones((batch, length), dtype=library.bool) if mask is None else mask
        seen = visible[:, None, None]  # [B, 1, 1, S]
        if not hides_future:
            past = library.tril(library.ones((length, length), dtype=library.bool))
            seen = seen & past  # [B, 1, T, S]
        options = {keyword: seen} if keyword and (mask is not None or not hides_future) else {}
        context = turn(attention(*[turn(x[tokens]) for x in tables], **options))
        context = context.reshape(batch, length, -1)
        return library.where(visible[..., None], context, 0)  # what padding sees is nobody's

    if not keyword:
        return lambda tokens: logits(tokens), framework
    return logits, framework


def needs_host(found: Any) -> bool:
    """Whether it is a function that does not take q, k and v of JAX and a mask of attnlab."""
    x = np.ones((1, 2, _HEADS, _WIDTH), np.float32)
    is_function = inspect.isroutine(getattr(found, "func", found))
    if not is_function:
        return False
    options = {"mask": Causal()} if "mask" in find_parameters(found) else {}
    return not can_be_traced(functools.partial(found, **options), x, x, x)
