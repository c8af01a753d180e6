"""`implementation="cudnn"`: NVIDIA's flash attention, through `jax.nn.dot_product_attention`.

What cuDNN is told beside the arrays, and how each is made safe:

* `is_causal`: hides the future. Its window bounds the past alone, so a window is causal too.
* lengths: keys and queries behind them are padding. What stands there is zeroed before and after
  the call, since 0 · inf is NaN in cuDNN's backward pass; so is a length of 0 (before cuDNN 9.25),
  which becomes 1. Full lengths are given where no causal mask hides the last tile's end, because
  Hopper's backward pass takes that end for keys (cudnn-frontend, issues 160 and 1072).
"""

from __future__ import annotations

import functools
import operator
from typing import cast

import jax
import jax.numpy as jnp

from attnlab.ops.kernels.call import Call, attend_over_heads, not_for, refuse_all_but_dot
from attnlab.scores import Dot


def refusal(call: Call) -> str | None:
    """Why cuDNN does not serve the call; None where it does."""
    q, v = call.q, call.v
    if reason := not_for(call, "cuda") or refuse_all_but_dot(call):
        return reason
    if q.dtype not in (jnp.float16, jnp.bfloat16):
        return f"computes in float16 or bfloat16, not {q.dtype}"
    if q.shape[-1] != v.shape[-1] or q.shape[-1] % 8 or q.shape[-1] > 128:
        return (
            "wants equal widths of q, k and v, a multiple of 8 up to 128; got "
            f"{q.shape[-1]} and {v.shape[-1]}"
        )
    for part in call.parts:
        if part.band is None and part.lengths is None:
            return f"takes no mask of type {type(part).__name__}"
        if part.band is not None and not part.band.starts_at_zero:
            return "takes no q_offset"
    left, right = call.reach
    if right not in (None, 0) or (left is not None and right is None):
        return "takes a window (left, 0) of the past only"
    if left is not None and (_is_padded(call) or call.lengths[0] != call.lengths[1]):
        return "takes a window only with as many queries as keys and without padding"
    if call.lengths[0] == 1 and (right == 0 or call.lengths[1] == 1):
        return "wants two queries or more under a causal mask or with a single key"
    return None


def attend(call: Call) -> jax.Array:
    """The context [*B, T, N, D]; JAX tells XLA how to divide cuDNN's calls over devices."""
    return attend_over_heads(_attend, call, partitioned=True)


def _attend(call: Call) -> jax.Array:
    left, right = call.reach
    attend = functools.partial(
        jax.nn.dot_product_attention,
        scale=cast(Dot, call.score).scale,
        is_causal=right == 0,
        local_window_size=None if left is None else (left, 0),
        implementation="cudnn",
    )
    q, k, v = _batched_alike(*(_make_even(x) for x in (call.q, call.k, call.v)))
    num_queries, num_keys = call.lengths
    if not _is_padded(call) and right == 0 and num_queries <= num_keys:
        context = attend(q, k, v)
    else:
        q_lengths, kv_lengths = _lengths(call)
        # [B] each
        q_lengths = _of_these(q, q_lengths)
        kv_lengths = _of_these(q, kv_lengths)
        if _is_padded(call):
            q, k, v = _real(q, q_lengths), _real(k, kv_lengths), _real(v, kv_lengths)
        context = attend(
            q,
            k,
            v,
            query_seq_lengths=jnp.maximum(q_lengths, 1),
            key_value_seq_lengths=jnp.maximum(kv_lengths, 1),
        )
        if _is_padded(call):
            context = _real(context, q_lengths)
    # [B, T or T + 1, N, H] to [*B, T, N, H]
    return context[:, :num_queries].reshape(call.q.shape)


def _is_padded(call: Call) -> bool:
    return any(part.lengths is not None for part in call.parts)


def _make_even(x: jax.Array) -> jax.Array:
    """[*B, L, N, H] to [B, L or L + 1, N, H]: JAX refuses to differentiate an odd length."""
    x = x.reshape(-1, *x.shape[-3:])
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))


def _lengths(call: Call) -> tuple[jax.Array, jax.Array]:
    """[B] int32 each: the real queries, none where there are no keys, and the real keys."""
    num_queries, num_keys = call.lengths
    of_q = jnp.full(len(call.q), num_queries, jnp.int32)
    of_kv = jnp.full(len(call.q), num_keys, jnp.int32)
    for part in call.parts:
        if part.lengths is not None:
            kv_lengths, q_lengths = part.lengths
            of_kv = jnp.minimum(of_kv, jnp.asarray(kv_lengths, jnp.int32)[:, 0])
            if q_lengths is not None:
                of_q = jnp.minimum(of_q, jnp.asarray(q_lengths, jnp.int32)[:, 0])
    return jnp.where(of_kv > 0, of_q, 0), of_kv


def _real(x: jax.Array, lengths: jax.Array) -> jax.Array:
    """[B, L, N, H] with zeros behind each example's length, and gradient zero."""
    at = jnp.arange(x.shape[1])[None, :, None, None]
    return jnp.where(at < lengths[:, None, None, None], x, 0)


def _of_these(x: jax.Array, lengths: jax.Array) -> jax.Array:
    """The same lengths [B], made to depend on x [B, …].

    They are then batched by `vmap` and split over devices as x is; JAX's rules for cuDNN take that
    for granted, and would read other examples' lengths.
    """
    most = jnp.iinfo(lengths.dtype).max - jnp.isnan(x[:, 0, 0, 0]).astype(lengths.dtype)
    return jnp.minimum(lengths, most)


def _batched_alike(*arrays: jax.Array) -> list[jax.Array]:
    """The same arrays; `vmap` batches all or none of them: JAX's rule for cuDNN knows no other.

    XLA removes the sums.
    """
    one_of_each = functools.reduce(operator.or_, (jnp.isnan(x[0, 0, 0, 0]) for x in arrays))
    zero = jnp.zeros((), arrays[0].dtype)
    return [x + jnp.where(one_of_each, zero, zero) for x in arrays]
