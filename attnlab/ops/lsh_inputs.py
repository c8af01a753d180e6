"""What `lsh_attention` demands of its arguments, and what a mask means to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.axes import lead_with_ones
from attnlab.checks import require
from attnlab.ops.lsh_order import bucket_limit

__all__ = [
    "Visibility",
    "check_arrays",
    "check_buckets",
    "is_int",
    "read_mask",
    "require_key",
]


class Visibility(NamedTuple):
    """A mask as LSH attention uses it.

    Attributes:
      causal: only earlier keys are seen.
      valid: [B, L], False for padding, which nobody sees; None = none.
      q_valid: [B, L], False for queries that see nothing; None = all see.
      segments: [B, L] ids, or None.
      broken: a boolean scalar, True where a value that is known only at run time is refused.
    """

    causal: bool
    valid: jax.Array | None
    q_valid: jax.Array | None
    segments: jax.Array | None
    broken: jax.Array


def is_int(x: Any) -> bool:
    """An int that is no bool."""
    return isinstance(x, int) and not isinstance(x, bool)


def require_key(name: str, key: Any) -> None:
    """`key` must be one PRNG key, new-style or raw."""
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.ndim == 0
    raw = dtype == jnp.uint32 and key.ndim == 1
    require(
        typed or raw,
        f"{name} must be one PRNG key; got {key if dtype is None else f'{dtype}{key.shape}'}"
        " (make it with jax.random.key(seed))",
    )


def check_arrays(qk: Any, v: Any, buckets: Any) -> None:
    """qk [*B, L, N, H], v [*B, L, K, D] and buckets [*B, R, L, N], of one length and batch."""
    for name, x in (("qk", qk), ("v", v)):
        require(
            x.ndim >= 3 and min(x.shape[-3:]) > 0,
            f"{name} must be [*batch, length, heads, width], no axis 0; got {x.shape}"
            " (add an axis of 1 for a single head)",
        )
    require(
        qk.dtype == v.dtype and jnp.issubdtype(qk.dtype, jnp.floating),
        f"qk and v must have one floating dtype; got {qk.dtype} and {v.dtype} (cast them to one)",
    )
    require(
        qk.shape[:-2] == v.shape[:-2] and qk.shape[-2] % v.shape[-2] == 0,
        "qk and v must have equal batch axes and length, and qk's heads be a multiple of v's;"
        f" got qk {qk.shape} and v {v.shape}",
    )
    require(
        jnp.issubdtype(buckets.dtype, jnp.integer),
        f"buckets must be integers; got {buckets.dtype} (make them with hash_buckets)",
    )
    *batch, length, heads, _ = qk.shape
    require(
        buckets.ndim == qk.ndim
        and buckets.shape[-3] > 0
        and buckets.shape == (*batch, buckets.shape[-3], length, heads),
        f"buckets must be [*batch, rounds, length, heads] = {(*batch, '≥1', length, heads)} for"
        f" qk {qk.shape}; got {buckets.shape}",
    )


def check_buckets(buckets: jax.Array, length: int) -> jax.Array:
    """Bucket ids must fit the sort key; returns a boolean scalar, True where they do not.

    Raises:
      ValueError: where the ids are known.
    """
    limit = bucket_limit(length)
    low, high = jnp.min(buckets), jnp.max(buckets)
    wrong = (low < 0) | (high >= limit)
    if not isinstance(wrong, jax.core.Tracer):
        require(
            not bool(wrong),
            f"bucket ids must be in [0, {limit}) to be sorted by (bucket, position) in 32 bits at"
            f" length {length}; got {int(low)} … {int(high)} (use fewer buckets)",
        )
    return wrong


def read_mask(mask: Any, batch_shape: tuple[int, ...], length: int, causal: bool) -> Visibility:
    """Takes a mask apart.

    Raises:
      NotImplementedError: for a mask that is not a function of the key alone, segments or causal.
    """
    valid = q_valid = segments = None
    broken = jnp.zeros((), bool)

    def rows(x, name):
        x = jnp.asarray(x)
        fits = x.ndim <= len(batch_shape) + 1 and x.shape[-1] == length
        require(
            fits,
            f"{name} must be [*batch, {length}] with batch {batch_shape}; got {x.shape}",
        )
        return jnp.broadcast_to(x, (*batch_shape, length)).reshape(-1, length)

    def below(lengths, name):
        lengths = jnp.asarray(lengths)[..., None]
        return rows(lead_with_ones(jnp.arange(length), lengths.ndim) < lengths, name)

    for part in _parts(masks.as_mask(mask)):
        if isinstance(part, masks.Causal):
            causal = True
            broken |= _nonzero_offset(part.q_offset)
        elif isinstance(part, masks.Padding):
            valid = _both(valid, below(part.kv_lengths, "Padding.kv_lengths"))
            if part.q_lengths is not None:
                q_valid = _both(q_valid, below(part.q_lengths, "Padding.q_lengths"))
        elif isinstance(part, masks.Segments):
            if segments is not None or part.kv_ids is not None:
                raise NotImplementedError(
                    "LSH attention is self-attention over one Segments(q_ids); got"
                    f" {'a second one' if segments is not None else 'kv_ids as well'}"
                )
            segments = rows(part.q_ids, "Segments.q_ids")
        elif isinstance(part, masks.Explicit) and _of_keys_alone(part.array):
            valid = _both(valid, rows(jnp.asarray(part.array)[..., 0, 0, :], "an explicit mask"))
        else:
            raise NotImplementedError(
                "LSH attention takes masks.Causal, Padding, Segments and boolean arrays"
                f" [*batch, 1, 1, length] of keys; got {type(part).__name__}"
            )
    return Visibility(causal, valid, q_valid, segments, broken)


def _parts(mask: masks.Mask | None) -> Iterator[masks.Mask]:
    if isinstance(mask, masks.Both):
        yield from _parts(mask.first)
        yield from _parts(mask.second)
    elif mask is not None:
        yield mask


def _both(x, y):
    return y if x is None else x & y


def _of_keys_alone(array: Any) -> bool:
    shape = jnp.shape(array)
    return len(shape) >= 3 and shape[-3:-1] == (1, 1)


def _nonzero_offset(q_offset: Any) -> jax.Array:
    wrong = jnp.any(jnp.asarray(q_offset) != 0)
    if not isinstance(wrong, jax.core.Tracer) and bool(wrong):
        raise NotImplementedError(
            f"LSH attention sees all of its keys as queries; got Causal(q_offset={q_offset})"
        )
    return wrong
