"""How good a hash is: what LSH attention sees of what full attention would look at."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.core.axes import pad_to_multiple
from attnlab.core.checks import as_size, require
from attnlab.devices.meshes import as_examples, on_explicit_axes
from attnlab.ops.layout import slice_heads
from attnlab.ops.lsh.dense import row_times, softmax_times
from attnlab.ops.lsh.inputs import (
    STRICT,
    LSHOptions,
    Visibility,
    as_operands,
    check_sortable,
    nan_where,
    read_mask,
    require_options,
)
from attnlab.ops.lsh.order import (
    Geometry,
    Order,
    in_range,
    run_ends,
    run_starts,
    take,
)
from attnlab.ops.lsh.rows import (
    CallSettings,
    Operands,
    at,
    row_of,
    row_seeds,
    sort_operands,
    unit_keys,
)

_WEIGHTS_AT_ONCE = 2**20  # of one block of queries: it stays in the cache of a CPU


class HashQuality(NamedTuple):
    """Figures of every example and head, each [*B, N] in at least float32.

    Below, a pair (i, j) is *allowed* where full attention has it, *visible* where some round shows
    it. Means over queries are over those with an allowed key.

    Attributes:
      captured_mass: mean over queries of the weight that is visible, Σ_j P_ij over visible j, P the
        weights of full attention.
      top_k_recall: share of the k keys of largest weight (of all allowed keys, where they are
        fewer) that is visible; mean over queries.
      relative_error: error ‖o − o_full‖ / ‖o_full‖ of the contexts of all queries together.
      visible_pairs: share of the allowed pairs that is visible: the weight that as many keys would
        capture if chosen at random.
      visible_same_bucket: share of the allowed pairs in one bucket, counted in each round, that
        this round's window shows. The rest are lost to the chunk size.
      lonely: share of queries that see no key.
      largest_bucket: share of the tokens that are in the largest bucket; mean over rounds.
      used_buckets: number of buckets that hold a token; mean over rounds.
    """

    captured_mass: jax.Array
    top_k_recall: jax.Array
    relative_error: jax.Array
    visible_pairs: jax.Array
    visible_same_bucket: jax.Array
    lonely: jax.Array
    largest_bucket: jax.Array
    used_buckets: jax.Array

    def means(self) -> HashQuality:
        """Averaged over examples and heads: scalars."""
        return jax.tree.map(jnp.mean, self)


@on_explicit_axes(as_examples("qk"), of="qk")
def hash_quality(
    qk: jax.Array,
    v: jax.Array,
    buckets: jax.Array,
    *,
    chunk_size: int = 64,
    causal: bool = True,
    mask: masks.Mask | ArrayLike | None = None,
    options: LSHOptions = STRICT,
    top_k: int = 16,
    precision: jax.lax.PrecisionLike = None,
) -> HashQuality:
    """Compares LSH attention with full attention, with the same logits and the same mask.

    Full attention has the weights

        P_ij = softmax_j(c·⟨qk_i, k_j⟩)    over all allowed j ≠ i, k_j = qk_j / |qk_j|.

    Measure it on the activations of a model, not on random numbers: activations have a component
    that all tokens share, which puts most tokens in few buckets, where chunks show few of the pairs
    (`hash_buckets` can take a center away).

    Args:
      qk: shared queries and keys [*B, L, N, H], as for `lsh_attention`.
      v: values [*B, L, K, D].
      buckets: buckets from `hash_buckets`, integers [*B, R, L, N].
      chunk_size: number of slots attended together, C.
      causal: whether a token sees only earlier tokens, as `masks.Causal()` in the mask says too;
        default True, because the Reformer is a language model. False leaves it to the mask.
      mask: mask or boolean array, as for `lsh_attention`.
      options: settings, as for `lsh_attention`.
      top_k: number k of keys of the recall.
      precision: precision of the matrix products, as in `jax.lax.dot`.

    Returns:
      Shares in [0, 1], an error and counts, for every example and head.

    Raises:
      ValueError: shapes or dtypes that do not fit; an empty batch; top_k < 1.
      NotImplementedError: a mask that `lsh_attention` refuses.

    Time O(L²·(R + H + D + log k)) a head, one after the other; memory O(L·(R + H + D)) beside a
    block of 2²⁰ weights (or one query's, if that is more).

    Example:
      >>> import jax
      >>> from attnlab.ops.lsh.hashing import hash_buckets, make_rotations
      >>> qk, v = jax.random.normal(jax.random.key(0), (2, 1, 128, 2, 16))
      >>> rotations = make_rotations(
      ...     jax.random.key(1), num_heads=2, head_dim=16, num_hashes=4, num_buckets=4
      ... )
      >>> quality = hash_quality(qk, v, hash_buckets(qk, rotations), chunk_size=64)
      >>> bool(quality.captured_mass.mean() > quality.visible_pairs.mean())  # better than chance
      True
    """
    qk, v, buckets = as_operands(qk, v, buckets)
    require(
        0 not in qk.shape,
        f"hash_quality measures at least one example; got qk {qk.shape} (leave empty batches out)",
    )
    require_options(options)
    for name, number in (("chunk_size", chunk_size), ("top_k", top_k)):
        as_size(name, number)
    *batch_shape, length, heads, width = qk.shape
    visibility = read_mask(mask, qk.shape[:-1], causal)
    geometry = options.geometry(chunk_size, visibility.causal, length)
    buckets, broken = check_sortable(buckets, length + -length % geometry.chunk_size)
    broken |= visibility.broken
    qk = qk.reshape(-1, *qk.shape[-3:])
    v = v.reshape(-1, *v.shape[-3:])
    buckets = buckets.reshape(-1, *buckets.shape[-3:])
    # [B, L, N, H], [B, L, K, D], [B, R, L, N]
    prepared = _prepare(geometry, qk, v, buckets, visibility)
    # In the order by now. Forgotten, so that all chunk sizes and windows share a program.
    geometry = dataclasses.replace(geometry, chunk_size=1, look_back=0, look_ahead=0, window=0)
    settings = CallSettings(geometry, options.key_norm, 0.0, None, precision)
    figures = _all_rows(settings, min(top_k, length), *prepared, options.scale(width))
    figures = jax.tree.map(lambda x: nan_where(broken, x), figures)
    return jax.tree.map(lambda x: x.reshape(*batch_shape, heads), figures)  # from [B·N]


@functools.partial(jax.jit, static_argnums=0)
def _prepare(
    geometry: Geometry, qk, v, buckets, visibility: Visibility
) -> tuple[Operands, Order, jax.Array]:
    """The arrays in whole chunks, their order, and whose queries count, [B, L]."""
    dtype = jnp.promote_types(qk.dtype, jnp.float32)
    batch, length, heads, _ = qk.shape
    v = jnp.repeat(v, heads // v.shape[2], axis=2)
    valid = jnp.ones((batch, length), bool) if visibility.valid is None else visibility.valid
    asks = valid if visibility.q_valid is None else valid & visibility.q_valid
    segments = visibility.segments
    segments = jnp.zeros((batch, length), jnp.int32) if segments is None else segments
    seeds = row_seeds(0.0, None, batch, heads)
    given = Operands(
        buckets, qk.astype(dtype), v.astype(dtype), valid, segments, visibility.pairs, seeds, None
    )
    order, given = sort_operands(geometry, given)
    return given, order, pad_to_multiple(asks, 1, geometry.chunk_size)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _all_rows(
    settings: CallSettings,
    top_k: int,
    given: Operands,
    order: Order,
    asks: jax.Array,
    scale: jax.Array,
) -> HashQuality:
    """The figures of all rows, each [B·N]."""
    assert given.valid is not None and given.segments is not None
    geometry, qk, valid, segments = settings.geometry, given.qk, given.valid, given.segments
    batch, length, heads, _ = qk.shape
    # [B, R, L, N] to [B·N, R, L]
    by_row = jnp.moveaxis(given.buckets, 3, 1).reshape(batch * heads, -1, length)
    block = max(1, min(length, _WEIGHTS_AT_ONCE // length))

    def one_row(index):
        q, values, example = row_of(qk, index), row_of(given.v, index), index // heads
        keys = unit_keys(q, scale, settings.key_norm)
        here_valid = at(valid, example)
        here_asks = at(asks, example)
        segment = at(segments, example)
        bucket = at(by_row, index)
        slot = at(order.slot, index)
        first = jax.vmap(take)(at(order.first, index), slot)
        extent = jax.vmap(take)(at(order.extent, index), slot)

        def one_block(i):
            # The last block is moved back to end with the sequence; what it repeats is not counted.
            start = jnp.minimum(i * block, length - block)
            query = start + jnp.arange(block, dtype=jnp.int32)

            def own(x, axis=0):
                return lax.dynamic_slice_in_dim(x, start, block, axis)

            # [block, L]
            allowed = _allowed_pairs(geometry, query, here_valid, segment, own(segment))
            allowed &= (own(here_asks) & (query >= i * block))[:, None]
            sees_itself = jnp.ones((block,), bool)
            if order.pairs is not None:
                mask = slice_heads(order.pairs, example, index % heads)
                allowed &= mask.visible(query[:, None], jnp.arange(length)[None, :])
                sees_itself &= mask.visible(query, query)
            times = row_times(geometry, order, heads, index, start, block)
            logits = settings.einsum("th,sh->ts", own(q), keys)
            own_values = jnp.where(sees_itself[:, None], own(values), 0)
            sums = _sums(settings, logits, allowed, times, own_values, values, top_k)
            return *sums, *_same_bucket(slot, own(first, 1), own(extent, 1), bucket, own, allowed)

        blocks = lax.map(one_block, jnp.arange(-(-length // block), dtype=jnp.int32))
        totals = jax.tree.map(jnp.sum, blocks)
        captured, recall, wrong, right, seen, pairs, lonely, queries, shown, shared = totals
        return (
            captured / jnp.maximum(queries, 1),
            recall / jnp.maximum(queries, 1),
            jnp.sqrt(wrong / jnp.where(right > 0, right, 1)),
            seen / jnp.maximum(pairs, 1),
            shown / jnp.maximum(shared, 1),
            lonely / jnp.maximum(queries, 1),
            *_sizes(bucket, here_valid),
        )

    return HashQuality(*lax.map(one_row, jnp.arange(batch * heads, dtype=jnp.int32)))


def _allowed_pairs(geometry: Geometry, query, valid, segment, own_segment) -> jax.Array:
    """[T, S]: True where full attention has the pair."""
    key = jnp.arange(valid.size, dtype=jnp.int32)[None, :]
    earlier = key < query[:, None]
    ordered = earlier if geometry.causal else key != query[:, None]
    return ordered & valid[None, :] & (segment[None, :] == own_segment[:, None])


def _sums(settings: CallSettings, logits, allowed, times, own_values, values, top_k):
    """What is summed over the queries of a block."""
    dtype = logits.dtype
    visible = allowed & (times > 0)
    full = softmax_times(logits, allowed)
    near = softmax_times(logits, jnp.where(allowed, times, 0))
    asks, alone = jnp.any(allowed, axis=1), ~jnp.any(visible, axis=1)
    # [block, D] by all keys, and by those that the rounds show
    exact = settings.einsum("ts,sd->td", full, values)
    context = settings.einsum("ts,sd->td", near, values)
    wrong = jnp.where(alone[:, None], own_values, context) - exact
    # [block, k]: logits and places of the heaviest keys; −inf where fewer are allowed
    best, keys = lax.top_k(jnp.where(allowed, logits, -jnp.inf), top_k)
    counted = best > -jnp.inf
    recalled = jnp.take_along_axis(visible, keys, axis=1)
    return (
        jnp.sum(jnp.where(visible, full, 0)),
        jnp.sum(jnp.sum(recalled, axis=1) / jnp.maximum(jnp.sum(counted, axis=1), 1), dtype=dtype),
        jnp.sum(jnp.where(asks[:, None], wrong, 0) ** 2),
        jnp.sum(jnp.where(asks[:, None], exact, 0) ** 2),
        jnp.sum(visible, dtype=dtype),
        jnp.sum(allowed, dtype=dtype),
        jnp.sum(asks & alone, dtype=dtype),
        jnp.sum(asks, dtype=dtype),
    )


def _same_bucket(slot, first, extent, bucket, own, allowed) -> tuple[jax.Array, jax.Array]:
    """Over all rounds, how many allowed pairs share a bucket: those in the window, and all."""
    shown = shared = jnp.zeros((), jnp.float32)
    for r in range(bucket.shape[0]):
        same = allowed & (bucket[r][None, :] == own(bucket[r])[:, None])
        near = in_range(slot[r][None, :], first[r][:, None], extent[r][:, None])
        shared += jnp.sum(same, dtype=jnp.float32)
        shown += jnp.sum(same & near, dtype=jnp.float32)
    return shown, shared


def _sizes(bucket, valid) -> tuple[jax.Array, jax.Array]:
    """Largest share of the tokens, and number used, of [R, L] buckets; mean over rounds."""
    nobody = jnp.iinfo(jnp.int32).max
    # [R, L]: equal buckets side by side, so a size is the distance from a start to the end.
    ids = jnp.sort(jnp.where(valid[None, :], bucket.astype(jnp.int32), nobody), axis=1)
    starts = run_starts(ids)
    index = lax.broadcasted_iota(jnp.int32, ids.shape, 1)
    ends = jnp.where(run_ends(starts), index + 1, ids.shape[1])
    size = lax.cummin(ends, axis=1, reverse=True) - index
    size = jnp.where(starts & (ids != nobody), size, 0)
    largest = jnp.max(size, axis=1) / jnp.maximum(jnp.sum(valid), 1)
    return jnp.mean(largest), jnp.mean(jnp.sum(size > 0, axis=1))
