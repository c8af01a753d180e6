"""`implementation="splash"`: JAX's flash attention for TPU, with blocks that a mask skips."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp

from attnlab.masks import Band, SegmentIds
from attnlab.ops.kernels.call import Call, attend_over_heads, not_for, refuse_all_but_dot
from attnlab.scores import Dot

_LANES = 128  # of a TPU's vectors: blocks are multiples of it
_LARGEST_BLOCK = 512
_MOST_PAIRS = 2**32  # which take half a minute on the host, whatever the blocks


def refusal(call: Call) -> str | None:
    """Why splash attention does not serve the call; None where it does.

    What it computes for a query that sees nothing is undefined, so it is given only masks under
    which every query sees a key.
    """
    if reason := not_for(call, "tpu") or refuse_all_but_dot(call):
        return reason
    if call.q.dtype != jnp.bfloat16:
        return f"computes in bfloat16, not {call.q.dtype}"
    if min(call.lengths) < _LANES:
        return f"wants at least {_LANES} queries and keys; got {min(call.lengths)}"
    for part in call.parts:
        if part.band is None and part.segment_ids is None:
            return f"takes no mask of type {type(part).__name__}"
    bands, segments = _bands_and_segments(call)
    if max(len(bands), len(segments)) > 1:
        return "takes one masks.Causal or Window and one Segments, not several"
    if segments and segments[0].kv_ids is not None:
        return "takes segments of self-attention only, without kv_ids"
    in_place = not bands or bands[0].starts_at_zero
    if call.mask is not None and not (in_place and call.lengths[0] == call.lengths[1]):
        return "takes masks only with as many queries as keys, and no q_offset"
    if math.prod(call.lengths) > _MOST_PAIRS:
        return (
            "goes through all T·S pairs of its mask while tracing, minutes beyond 65536 × 65536; "
            f'got {call.lengths[0]} × {call.lengths[1]} (on TPU, implementation="pallas" does not)'
        )
    return None


def attend(call: Call) -> jax.Array:
    """The context [*B, T, N, D]."""
    return attend_over_heads(_attend, call)


def _attend(call: Call) -> jax.Array:
    group = call.q.shape[-2] // call.k.shape[-2]
    scale = cast(Dot, call.score).scale
    scale = 1 / math.sqrt(call.q.shape[-1]) if scale is None else scale
    q = _heads_first(call.q * jnp.asarray(scale, call.q.dtype))
    k = _heads_first(call.k)
    v = _heads_first(call.v)
    q = q.reshape(*k.shape[:2], group, *q.shape[2:])  # [B, K, G, T, H]
    _, segments = _bands_and_segments(call)
    lengths = q.shape[3], k.shape[2]
    kernel = _kernel(call.reach, lengths, group, call.pallas.interpret)
    ids = None
    if segments or lengths != call.lengths:
        ids = _segment_ids(segments, call.lengths, lengths, q.shape[0])
    # Over K, whose heads share ids, and over B; the kernel itself takes [G, T, H] and [S, H].
    kernel = jax.vmap(jax.vmap(kernel, in_axes=(0, 0, 0, None)), in_axes=(0, 0, 0, 0))
    context = kernel(q, k, v, ids)
    # [B, K, G, T, D] to [B, N, T, D], without what pads T, then [B, T, N, D]
    context = context.reshape(q.shape[0], -1, *context.shape[3:])[:, :, : call.lengths[0]]
    return jnp.moveaxis(context, 1, 2).reshape(*call.q.shape[:-1], call.v.shape[-1])


def _bands_and_segments(call: Call) -> tuple[list[Band], list[SegmentIds]]:
    """What the mask is made of; at most one of each where splash serves."""
    bands, segments = (part.band for part in call.parts), (part.segment_ids for part in call.parts)
    return [x for x in bands if x is not None], [x for x in segments if x is not None]


def _block(length: int) -> int:
    return min(_LARGEST_BLOCK, _LANES * math.ceil(length / _LANES))


def _heads_first(x: jax.Array) -> jax.Array:
    """[*B, T, N, H] to [B, N, T, H], T padded to whole blocks."""
    x = jnp.moveaxis(x.reshape(-1, *x.shape[-3:]), 2, 1)
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % _block(x.shape[2])), (0, 0)))


def _kernel(
    reach: tuple[int | None, int | None], lengths: tuple[int, int], group: int, interpret: bool
) -> Callable[..., jax.Array]:
    """(q [G, T, H], k [S, H], v [S, D], segment ids) -> [G, T, D]."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    of_one_head: masks.Mask = masks.FullMask(lengths)
    if reach == (None, 0):
        of_one_head = masks.CausalMask(lengths)
    elif reach != (None, None):
        of_one_head = masks.LocalMask(lengths, reach, 0)
    queries, keys = map(_block, lengths)
    sizes = splash.BlockSizes(
        block_q=queries,
        block_kv=keys,
        block_q_dkv=queries,
        block_kv_dkv=keys,
        block_q_dq=queries,
        block_kv_dq=keys,
    )
    return splash.make_splash_mqa(
        mask=masks.MultiHeadMask([of_one_head] * group),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )


def _segment_ids(segments: list[SegmentIds], lengths, padded, batch: int):
    """Ids [B, T] and [B, S] that also keep the padding apart from what is real."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    ids = jnp.zeros((1, lengths[0]), jnp.int32)
    for q_ids, _ in segments:
        ids = jnp.asarray(q_ids, jnp.int32).reshape(-1, lengths[0])
    # An id of nobody: real queries do not see keys that are padding.
    padding = jnp.min(ids) - 1

    def pad(ids: jax.Array, length: int, value) -> jax.Array:
        ids = jnp.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=value)
        return jnp.broadcast_to(ids, (batch, length))

    if lengths[0] == lengths[1]:
        of_both = pad(ids, padded[0], padding)
        return splash.SegmentIds(of_both, of_both)
    # Without a mask: a query that is padding sees what is real, and is thrown away.
    keys = jnp.zeros((1, lengths[1]), jnp.int32)
    return splash.SegmentIds(pad(ids, padded[0], 0), pad(keys, padded[1], padding))
