"""`implementation="cudnn"`: NVIDIA's flash attention, through `jax.nn.dot_product_attention`."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from attnlab.masks import Causal, Window
from attnlab.ops.kernels.call import Call, not_for, refuse_all_but_dot, starts_at_zero
from attnlab.scores import Dot

__all__ = ["attend", "refusal"]


def refusal(call: Call) -> str | None:
    """Why it does not serve the call; None where it does."""
    q, v, mask = call.q, call.v, call.mask
    if reason := not_for(call, "cuda") or refuse_all_but_dot(call):
        return reason
    if q.dtype not in (jnp.float16, jnp.bfloat16):
        return f"computes in float16 or bfloat16, not {q.dtype}"
    if q.shape[-1] != v.shape[-1] or q.shape[-1] % 8 or q.shape[-1] > 128:
        return (
            "wants equal widths of q, k and v, a multiple of 8 up to 128; got "
            f"{q.shape[-1]} and {v.shape[-1]}"
        )
    if isinstance(mask, Causal) and starts_at_zero(mask):
        return None
    if isinstance(mask, Window) and starts_at_zero(mask):
        if mask.left is not None and mask.right == 0 and call.lengths[0] == call.lengths[1]:
            return None
        return "takes a window (left, 0) of the past only, with as many queries as keys"
    if mask is not None:
        return f"takes no mask of type {type(mask).__name__}"
    return None


def attend(call: Call) -> jax.Array:
    """The context [*B, T, N, D]."""
    window: Any = None
    if isinstance(call.mask, Window):
        window = call.mask.left, call.mask.right
    context = jax.nn.dot_product_attention(
        *(x.reshape(-1, *x.shape[-3:]) for x in (call.q, call.k, call.v)),
        scale=cast(Dot, call.score).scale,
        is_causal=isinstance(call.mask, Causal),
        local_window_size=window,
        implementation="cudnn",
    )
    return context.reshape(*call.q.shape[:-1], call.v.shape[-1])
