"""`implementation="tokamax"`: the kernels of the library of that name, where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any, cast

import jax
import jax.numpy as jnp

from attnlab.masks import Causal, Window
from attnlab.ops.kernels.call import (
    Call,
    attend_over_heads,
    not_for,
    refuse_all_but_dot,
    starts_at_zero,
)
from attnlab.scores import Dot

__all__ = ["attend", "refusal"]


def refusal(call: Call) -> str | None:
    """Why tokamax does not serve the call; None where it does.

    Tokamax averages the values where a query sees nothing, so it is given only masks under which
    every query sees a key.
    """
    if reason := not_for(call, "cuda", "tpu"):
        return reason
    if importlib.util.find_spec("tokamax") is None:
        return "needs the package tokamax (pip install tokamax; Python >= 3.12), which is missing"
    if reason := refuse_all_but_dot(call):
        return reason
    if call.q.dtype not in (jnp.float16, jnp.bfloat16):
        return f"computes in float16 or bfloat16, not {call.q.dtype}"
    if isinstance(call.mask, (Causal, Window)):
        if call.lengths[0] == call.lengths[1] and starts_at_zero(call.mask):
            return None
        return "takes masks only with as many queries as keys, and no q_offset"
    return None if call.mask is None else f"takes no mask of type {type(call.mask).__name__}"


def attend(call: Call) -> jax.Array:
    """The context [*B, T, N, D]."""
    return attend_over_heads(_attend, call)


def _attend(call: Call) -> jax.Array:
    import tokamax

    window: Any = None
    if isinstance(call.mask, Window):
        # It wants two numbers; as many as there are keys is no bound.
        sides = (call.mask.left, call.mask.right)
        window = tuple(call.lengths[1] if side is None else side for side in sides)
    return tokamax.dot_product_attention(
        call.q,
        call.k,
        call.v,
        scale=cast(Dot, call.score).scale,
        is_causal=isinstance(call.mask, Causal),
        local_window_size=window,
        precision=call.precision,
        implementation="mosaic",
    )
