"""`implementation="tokamax"`: the kernels of the library of that name, where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any, cast

import jax
import jax.numpy as jnp

from attnlab.ops.kernels.call import Call, attend_over_heads, not_for, refuse_all_but_dot
from attnlab.scores import Dot


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
    if call.mask is None:
        return None
    if call.mask.band is None:
        return f"takes no mask of type {type(call.mask).__name__}"
    if call.lengths[0] == call.lengths[1] and call.mask.band.starts_at_zero:
        return None
    return "takes masks only with as many queries as keys, and no q_offset"


def attend(call: Call) -> jax.Array:
    """The context [*B, T, N, D]."""
    return attend_over_heads(_attend, call)


def _attend(call: Call) -> jax.Array:
    import tokamax

    window: Any = None
    sides = call.reach
    if sides not in ((None, None), (None, 0)):
        # It wants two numbers; as many as there are keys is no bound.
        window = tuple(call.lengths[1] if side is None else side for side in sides)
    return tokamax.dot_product_attention(
        call.q,
        call.k,
        call.v,
        scale=cast(Dot, call.score).scale,
        is_causal=sides == (None, 0),
        local_window_size=window,
        precision=call.precision,
        implementation="mosaic",
    )
