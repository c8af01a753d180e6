"""Decoding with strictly causal LSH attention, O(R·W) a token.

The strict route shows a query the last W tokens of its own bucket in every round, a function of the
past alone. So a decoder needs of the past, beside keys and values, which W tokens entered each
bucket last: it hashes the new token, reads one list a round, attends to the ≤ R·W keys named there,
and enters the new token. The result is the row that the parallel forward computes.

Letters: *B batch axes, B all of them merged, N heads, K value heads, R rounds, L tokens that the
cache holds, T new ones, W the window, how many tokens of its bucket a query sees (L, where that is
less).
"""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.core.checks import as_size, require, require_instance
from attnlab.devices.meshes import as_examples, on_explicit_axes
from attnlab.devices.split import by_device, copies_of_kv_heads, serves_kernels
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.layout import visible_pairs
from attnlab.ops.lsh.attention import attend_rows
from attnlab.ops.lsh.inputs import (
    STRICT,
    LSHOptions,
    as_operands,
    check_buckets,
    nan_where,
    read_mask,
    require_implementation,
    require_options,
)
from attnlab.ops.lsh.order import require_sortable, run_starts, sort_by_bucket
from attnlab.ops.lsh.rows import CallSettings, Operands, row_seeds, unit_keys
from attnlab.ops.lsh.running_mean import RunningMean


@flax.struct.dataclass
class DecodeState:
    """The state of `lsh_decode`; all zeros before the first token.

    Every array leads with the batch axes, so that a beam search reorders it like keys and values.

    Attributes:
      buckets: buckets of the tokens so far, [*B, R, L, N] int32.
      latest: last W valid tokens of each bucket, [*B, N, R, num_buckets, W] int32, oldest first,
        each as 1 + its position; 0 = none. A ring buffer that is turned at every entry: it is read
        as a whole anyway, and so needs no count of its entries.
      mean: running mean of the vectors that are hashed, where hashing is centered on it; else None.
    """

    buckets: jax.Array
    latest: jax.Array
    mean: RunningMean | None


def empty_state(
    shape: tuple[int, ...],
    *,
    num_hashes: int,
    num_buckets: int,
    chunk_size: int = 64,
    options: LSHOptions = STRICT,
    running_mean: bool = False,
) -> DecodeState:
    """The state before the first token; R·N·(L + num_buckets·W) integers an example.

    Args:
      shape: shape of the keys in the cache, [*B, L, N, H].
      num_hashes: number of rounds, R.
      num_buckets: number of buckets of a round.
      chunk_size: number of slots attended together, C, as for `lsh_decode`.
      options: settings as for `lsh_decode`.
      running_mean: whether hashing is centered on the mean of the tokens so far.

    Raises:
      ValueError: `Published` options; too many buckets for 32-bit sort keys; sizes below 1.
    """
    require(
        len(shape) >= 3 and 0 not in shape[-3:],
        f"shape must be that of keys, [*batch, length, heads, width], no axis 0; got {shape}",
    )
    *batch, length, heads, _ = shape
    window = _window(options, chunk_size, length)
    rounds, number = as_size("num_hashes", num_hashes), as_size("num_buckets", num_buckets)
    require_sortable(number, length)
    return DecodeState(
        jnp.zeros((*batch, rounds, length, heads), jnp.int32),
        jnp.zeros((*batch, heads, rounds, number, window), jnp.int32),
        RunningMean.empty(tuple(shape)) if running_mean else None,
    )


def _require_state(
    state: DecodeState, buckets: jax.Array, length: int, chunk_size: int, options: LSHOptions
) -> None:
    """Refuses a state of another cache or of other options than these.

    Args:
      state: state of `lsh_decode`.
      buckets: buckets of the newest tokens, [*B, R, T, N].
      length: number of tokens that the cache holds, L.
      chunk_size: number of slots attended together.
      options: settings of the call.
    """
    require_instance("state", state, isinstance(state, DecodeState), "of the class DecodeState")
    *batch, rounds, _, heads = buckets.shape
    window = _window(options, chunk_size, length)
    got = state.buckets.shape, state.latest.shape
    number = state.latest.shape[-2]
    wanted = (*batch, rounds, length, heads), (*batch, heads, rounds, number, window)
    require(
        got == wanted,
        f"the state must be of a cache of {length} tokens, of {rounds} rounds and of a window of"
        f" {window} tokens, {wanted}; got {got} (make it by empty_state, of the same sizes,"
        " chunk_size and options)",
    )


def _window(options: LSHOptions, chunk_size: int, length: int) -> int:
    """How many tokens of its bucket a query sees."""
    require_options(options)
    chunk_size = as_size("chunk_size", chunk_size)
    return options.geometry(chunk_size, causal=True, length=length).window


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
    _require_state(state, buckets, length, chunk_size, options)
    num_buckets, window = state.latest.shape[-2:]
    _require_place(start, count, length)
    start = jnp.asarray(start, jnp.int32)
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

        def forward(stop, given, start):
            geometry = options.geometry(chunk_size, True, stop)
            settings = CallSettings(geometry, options.key_norm, 0.0, None, precision)
            given = _cut(given, start + count, stop)
            scale = options.scale(qk.shape[-1])
            context = attend_rows(implementation, serves_kernels(), settings, scale, given)
            # [B, N, R, buckets, W], anew from all tokens so far, as one by one they would be
            latest = _latest_of(given.buckets, given.valid, num_buckets, window)
            return lax.dynamic_slice_in_dim(context, start, count, 1), latest

        seeds = row_seeds(0.0, None, qk.shape[0], qk.shape[2])
        given = Operands(history, qk, v, valid, None, pairs, seeds, None)
        of_new = functools.partial(forward, count)
        of_all = functools.partial(forward, length)
        if count == length:
            return of_all(given, start)
        return lax.cond(jnp.equal(start, 0), of_new, of_all, given, start)

    # [B, N, R] of the first new token, read where that is the only one
    bucket = jnp.moveaxis(buckets.reshape(-1, *buckets.shape[-3:]), 3, 1)[..., 0]
    context, latest = by_device(
        of_device,
        [qk, v, bucket, flat_history, latest, valid, visibility.pairs, start],
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


def _cut(given: Operands, seen: jax.Array, stop: int) -> Operands:
    """The first `stop` places, of which those from `seen` on hold what was there before."""
    assert given.valid is not None
    heads, v = given.qk.shape[2], given.v[:, :stop]
    valid = given.valid[:, :stop] & (jnp.arange(stop) < seen)[None, :]
    return given._replace(
        buckets=given.buckets[:, :, :stop],
        qk=given.qk[:, :stop],
        v=jnp.repeat(v, heads // v.shape[2], axis=2),
        valid=valid,
    )


def _latest_of(buckets: jax.Array, valid: jax.Array, num_buckets: int, window: int) -> jax.Array:
    """`DecodeState.latest` after any number of tokens at once.

    Args:
      buckets: buckets of the first S tokens, [B, R, S, N].
      valid: booleans [B, S], False for tokens that are not entered.
      num_buckets: number of buckets of a round.
      window: window W, the number of tokens kept of each bucket.

    Returns:
      [B, N, R, num_buckets, W]. One sort, as in the parallel forward: O(R·N·S·log S).
    """
    batch, rounds, length, heads = buckets.shape
    # [B, N, R, S] by slot; what is not entered has a bucket behind all.
    position = jnp.arange(length)[None, None, None]
    by_slot = sort_by_bucket(jnp.moveaxis(buckets, 3, 1), position, valid[:, None, None])

    def one_round(bucket, position):
        sizes = jnp.zeros(num_buckets + 1, jnp.int32)
        sizes = sizes.at[bucket + 1].add(1, mode="drop")
        # [buckets + 1]: where each bucket begins among the slots [S]
        bounds = jnp.cumsum(sizes, dtype=jnp.int32)
        # [buckets, W]: the last W of each; those before its start belong to another one.
        slot = bounds[1:, None] + jnp.arange(-window, 0, dtype=jnp.int32)[None, :]
        token = jnp.take(position, slot, mode="clip")
        return jnp.where(slot >= bounds[:-1, None], token + 1, 0)

    latest = jax.vmap(one_round)(*(x.reshape(-1, length) for x in by_slot))
    return latest.reshape(batch, heads, rounds, num_buckets, window)
