"""Decoding with strictly causal LSH attention, O(R·W) a token.

The strict route shows a query the last W tokens of its own bucket in every round, a function of the
past alone. So a decoder needs of the past, beside keys and values, which W tokens entered each
bucket last: it hashes the new token, reads one list a round, attends to the ≤ R·W keys named there,
and enters the new token. The result is the row that the parallel forward computes.

Letters: *B batch axes, B all of them merged, N heads, K value heads, R rounds, L tokens that the
cache holds, T new ones, W the window.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.core.checks import require
from attnlab.devices.meshes import as_examples, on_explicit_axes
from attnlab.devices.split import by_device, copies_of_kv_heads, serves_kernels
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.layout import visible_pairs
from attnlab.ops.lsh.decode_state import DecodeState, latest_of, require_state
from attnlab.ops.lsh.implementations import attend_rows
from attnlab.ops.lsh.inputs import (
    as_operands,
    check_buckets,
    factor_of,
    nan_where,
    read_mask,
    require_implementation,
)
from attnlab.ops.lsh.options import STRICT, LSHOptions
from attnlab.ops.lsh.order import run_starts
from attnlab.ops.lsh.rows import CallSettings, row_seeds, unit_keys

__all__ = ["lsh_decode"]


@on_explicit_axes(as_examples("qk"), of="qk")
def lsh_decode(
    qk: jax.Array,
    v: jax.Array,
    buckets: jax.Array,
    state: DecodeState,
    start: ArrayLike,
    *,
    chunk_size: int = 64,
    mask: masks.Mask | ArrayLike | None = None,
    options: LSHOptions = STRICT,
    implementation: str | Pallas | None = None,
    precision: Any = None,
) -> tuple[jax.Array, DecodeState]:
    """The rows of `lsh_attention` with causal=True, its default, that belong to the newest tokens.

    Args:
      qk: shared queries and keys of all tokens so far, the newest T included, [*B, L, N, H]; places
        after the newest token are ignored.
      v: values [*B, L, K, D].
      buckets: buckets of the newest tokens, integers [*B, R, T, N].
      state: state after the tokens before the newest; at first `empty_state` for this cache and
        these options.
      start: position of the first of the newest tokens, a scalar; start + T ≤ L.
      chunk_size: number of slots attended together, C, as for `lsh_attention`.
      mask: mask of the whole sequence, L tokens, as for `lsh_attention` but without segments; it is
        the same at every call. A token that is masked as a key is entered nowhere and its context
        is zero.
      options: settings as for `lsh_attention`; not `Published` ones.
      implementation: way to compute several tokens, as for `lsh_attention`; one has only one.
      precision: precision of the matrix products, as in `jax.lax.dot`.

    Returns:
      Context [*B, T, N, D], and the state of all tokens so far.

    Raises:
      ValueError: shapes or dtypes that do not fit; a state of another cache, chunk_size or window;
        bucket ids that the state has no list for (under jit the context is then NaN); a known start
        that leaves no place for the newest tokens.
      NotImplementedError: segments.

    One token takes time O(R·W·(H + D)) a head. Several at once are a parallel forward: of
    themselves where they are the first, else of the whole cache.
    """
    require_implementation(implementation)
    qk, v, buckets = as_operands(qk, v, buckets, newest=True)
    *batch_shape, length, heads, _ = qk.shape
    count = buckets.shape[-2]
    require_state(state, buckets, length, chunk_size, options)
    num_buckets, window = state.latest.shape[-2:]
    _require_place(start, count, length)
    visibility = read_mask(mask, qk.shape[:-1], causal=True)
    if visibility.segments is not None:
        raise NotImplementedError(
            "LSH decodes one sequence a row; got masks.Segments (give each segment its own row)"
        )
    if 0 in batch_shape:
        return jnp.zeros((*batch_shape, count, heads, v.shape[-1]), v.dtype), state
    buckets, broken = check_buckets(
        buckets,
        num_buckets,
        why="as the state has it",
        remedy="make the state with the num_buckets of the rotations",
    )
    history = lax.dynamic_update_slice_in_dim(state.buckets, buckets, start, state.buckets.ndim - 2)

    def merge_batch(x):
        return x.reshape(-1, *x.shape[len(batch_shape) :])

    # All batch axes as one: [B, L, N, H], [B, L, K, D], [B, R, L, N], [B, N, R, buckets, W].
    qk = merge_batch(qk)
    v = merge_batch(v)
    flat_history = merge_batch(history)
    latest = merge_batch(state.latest)
    valid = visibility.valid
    valid = jnp.ones(qk.shape[:2], bool) if valid is None else valid
    v = jnp.repeat(v, copies_of_kv_heads(v.shape[2], heads), axis=2)

    def of_device(qk, v, bucket, history, latest, valid, pairs, start):
        if count == 1:
            return _one_token(qk, v, bucket, latest, valid, pairs, start, options, precision)
        forward = functools.partial(
            _several_tokens,
            count=count,
            num_buckets=num_buckets,
            window=window,
            chunk_size=chunk_size,
            options=options,
            implementation=implementation,
            precision=precision,
        )
        of_new = functools.partial(forward, stop=count)
        of_all = functools.partial(forward, stop=length)
        arrays = qk, v, history, valid, pairs, start
        if count == length:
            return of_all(*arrays)
        return lax.cond(jnp.equal(start, 0), of_new, of_all, *arrays)

    # [B, N, R] of the first new token, read where that is the only one
    bucket = jnp.moveaxis(buckets.reshape(-1, *buckets.shape[-3:]), 3, 1)[..., 0]
    context, latest = by_device(
        of_device,
        [qk, v, bucket, flat_history, latest, valid, visibility.pairs, jnp.asarray(start)],
        ["btn", "btn", "bn", "brtn", "bn", "bt", "bn", ""],
        ("btn", "bn"),
        name="decoding by LSH attention",
        batch=len(qk),
        heads=heads,
        partitioned=count == 1,  # what several tokens run may be a kernel, which XLA cannot divide
    )
    sees = valid if visibility.q_valid is None else valid & visibility.q_valid
    sees = lax.dynamic_slice_in_dim(sees, start, count, 1)
    context = jnp.where(sees[:, :, None, None], context, 0)
    context = nan_where(visibility.broken | broken, context)
    context = context.reshape(*batch_shape, *context.shape[1:])
    return context, DecodeState(history, latest.reshape(state.latest.shape), state.mean)


def _require_place(start: ArrayLike, count: int, length: int) -> None:
    """Refuses a start, where it is known, from which `count` tokens do not fit."""
    require(
        jnp.ndim(start) == 0 and jnp.issubdtype(jnp.result_type(start), jnp.integer),
        f"start must be an integer scalar; got {jnp.result_type(start)} {jnp.shape(start)}",
    )
    if not isinstance(start, jax.core.Tracer):
        require(
            0 <= int(np.asarray(start)) <= length - count,
            f"the newest {count} tokens must be in the cache of {length}: start must be in"
            f" [0, {length - count}]; got {start}",
        )


def _one_token(qk, v, bucket, latest, valid, pairs, start, options, precision):
    """The context [B, 1, N, D] of the token at `start`, and `latest` after it; bucket [B, N, R]."""
    batch, length, heads, width = qk.shape
    example, head = jnp.arange(batch)[:, None, None], jnp.arange(heads)[None, :, None]
    # Indices [B, 1, 1], [1, N, 1], [1, 1, R], [B, N, R]: of each row and round one list of W.
    list_of_bucket = example, head, jnp.arange(bucket.shape[2])[None, None, :], bucket
    entries = latest[list_of_bucket]  # [B, N, R, W]

    # [B, N, R·W], 1 + position; 0 is no token
    shown = entries.reshape(batch, heads, -1)
    if options.union:
        # Equal ones then stand together: all but the first are dropped, so a token counts once.
        shown = lax.sort(shown, dimension=2, is_stable=False)
        shown = jnp.where(run_starts(shown), shown, 0)
    token = jnp.maximum(shown - 1, 0)
    visible = (shown > 0) & valid[example, token]
    # The query's position, for pairs [B, N, R·W] and [B, N, 1] with it.
    own_place = jnp.asarray(start).reshape(1, 1, 1)
    if pairs is not None:
        visible &= visible_pairs(pairs, own_place, token)

    def rows(x, head):
        # One flat index, so that no copy of the history is made with the heads in front.
        # [B, N, R·W] into the rows of [B·L·N, H]; values are read at their fewer heads.
        index = (example * length + token) * x.shape[2] + head
        return jnp.where(visible[..., None], jnp.take(x.reshape(-1, x.shape[3]), index, axis=0), 0)

    group = heads // v.shape[2]
    scale = options.scale(width)
    # [B, N, R·W, H], q [B, N, H] and own value [B, K, D]
    k = unit_keys(rows(qk, head), scale, options.key_norm)
    q = lax.dynamic_index_in_dim(qk, start, 1, keepdims=False)
    own = lax.dynamic_index_in_dim(v, start, 1, keepdims=False)
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    product = functools.partial(jnp.einsum, precision=precision, preferred_element_type=dtype)
    logits = jnp.where(visible, product("bnh,bnsh->bns", q, k), jnp.finfo(dtype).min)
    weights = jnp.exp(logits - jnp.max(logits, axis=2, keepdims=True))
    weights = jnp.where(visible, weights, 0)
    # [B, N, 1]; context [B, N, D]
    total = jnp.sum(weights, axis=2)[..., None]
    context = product("bns,bnsd->bnd", weights.astype(v.dtype), rows(v, head // group))
    context = (context / jnp.where(total == 0, 1, total)).astype(v.dtype)
    own = jnp.repeat(own, group, axis=1)
    if pairs is not None:
        sees_itself = visible_pairs(pairs, own_place, jnp.full((batch, heads, 1), start))
        own = jnp.where(sees_itself, own, 0)
    context = jnp.where(total == 0, own, context)

    # [B, N, R, W]: the oldest goes, the new token is last.
    entered = jnp.roll(entries, -1, axis=3).at[..., -1].set(start + 1)
    enters = lax.dynamic_slice_in_dim(valid, start, 1, 1)[:, :, None, None]
    latest = latest.at[list_of_bucket].set(jnp.where(enters, entered, entries))
    return context[:, None], latest


def _several_tokens(
    qk,
    v,
    history,
    valid,
    pairs,
    start,
    *,
    stop,
    count,
    num_buckets,
    window,
    chunk_size,
    options,
    implementation,
    precision,
):
    """The contexts of `count` tokens: a parallel forward over the first `stop` cached places."""
    # [stop]: places behind the newest token hold what was there before.
    there = jnp.arange(stop) < start + count
    valid = valid[:, :stop] & there[None, :]
    history = history[:, :, :stop]
    batch, _, heads, width = qk.shape
    geometry = options.geometry(chunk_size, True, stop)
    context = attend_rows(
        implementation,
        serves_kernels(),
        CallSettings(geometry, options.key_norm, 0.0, None, precision),
        options.scale(width),
        history,
        qk[:, :stop],
        jnp.repeat(v[:, :stop], heads // v.shape[2], axis=2),
        valid,
        None,
        pairs,
        row_seeds(0.0, None, batch, heads),
        factor_of((batch, stop), jnp.zeros((), bool), valid),
    )
    # [B, N, R, buckets, W], anew from all tokens so far, as the one-by-one state would be.
    latest = latest_of(history, valid, num_buckets, window)
    return lax.dynamic_slice_in_dim(context, start, count, 1), latest
