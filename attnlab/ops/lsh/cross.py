"""LSH attention with queries and keys of their own: between two sequences, or within one."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.core.axes import pad_to_multiple
from attnlab.devices.meshes import like, on_explicit_axes
from attnlab.devices.split import by_device, divide_positions
from attnlab.ops.lsh.attention import choose
from attnlab.ops.lsh.cross_order import CrossVisibility, sort_queries_and_keys
from attnlab.ops.lsh.inputs import (
    STRICT,
    LSHOptions,
    Visibility,
    as_cross_operands,
    check_knobs,
    check_sortable,
    factor_of,
    read_mask,
)
from attnlab.ops.lsh.rows import CallSettings, row_seeds


@on_explicit_axes(like("q"), of="q")
def lsh_cross_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_buckets: jax.Array,
    k_buckets: jax.Array,
    *,
    chunk_size: int = 64,
    causal: bool = False,
    mask: masks.Mask | ArrayLike | None = None,
    options: LSHOptions = STRICT,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    rows_at_once: int | None = None,
    implementation: str | None = None,
    precision: Any = None,
) -> jax.Array:
    r"""Attention of queries over the keys that hash into their bucket; not causal by default.

    Per head, with c = `options.logit_scale` and k̂_j = k_j / |k_j| (k_j where `key_norm` is None):

        o_i = Σ_j softmax_j(c·⟨q_i, k̂_j⟩) v_j    over j visible to i in some round,

    and o_i = 0 where no round shows i a key. In each round i sees, of the keys in its bucket, the
    `window` (default look_back · chunk_size) before its own place in (segment, position) order and,
    if not causal, as many after it. With `causal` the query at position t (plus the q_offset of a
    `masks.Causal` in the mask) sees keys at or before it, itself included, and no finite change of
    the future changes o_i. Else its place is
    where it would stand if both sequences were of one length: for self-attention its own position.

    Hash both with the same rotations. Keys are normalized, so that buckets, which know nothing of
    length, hold the keys of large logits. With `key_norm=None` they are not. A hash in the order of
    inner products (Simple-LSH, Neyshabur & Srebro 2015) does not help: it shrinks all products, and
    its buckets held 0.5 to 1 times as much of the softmax's mass, with normal directions and three
    distributions of norms, H = 16 and 64, 8 and 32 buckets.

    Args:
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H], K a divisor of N; head n uses head n // (N/K) of keys and values.
      v: values [*B, S, K, D].
      q_buckets: buckets of the queries from `hash_buckets`, integers [*B, R, T, N].
      k_buckets: buckets of the keys from `hash_buckets` with the same rotations, integers [*B, R,
        S, K].
      chunk_size: number of slots attended together, C; no more than max(T, S) of them.
      causal: whether a query sees only keys at or before its position, as `masks.Causal()` in the
        mask says too; default False, because keys of another sequence are neither earlier nor
        later. False leaves it to the mask.
      mask: any mask, or a boolean array that broadcasts to [*B, N, T, S], as for `lsh_attention`.
      options: settings; not `Published` ones, in whose chunks of keys a query has no place.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      rows_at_once: number of rows to compute together, as for `lsh_attention`.
      implementation: None, "sorted" or "dense", as for `lsh_attention`.
      precision: precision of the matrix products, as in `jax.lax.dot`.

    Returns:
      Context [*B, T, N, D] in v's dtype; softmax and sums in float32 at least.

    Raises:
      ValueError: shapes or dtypes that do not fit; bucket ids that the packed sort key cannot hold
        (under jit they cannot raise: the context is then NaN).

    Time O(R·(T + S)·C·(H + D) + R·(T + S)·log(T + S)), twice that of shared queries and keys;
    memory O((T + S)·N·(R + H + D)), gradients included.

    Source: not in Kitaev, Kaiser & Levskaya, "Reformer" (2020), which shares queries and keys.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attnlab.ops.lsh.hashing import hash_buckets, make_rotations
      >>> q = jax.random.normal(jax.random.key(0), (1, 30, 4, 16))
      >>> k, v = jax.random.normal(jax.random.key(1), (2, 1, 50, 4, 16))
      >>> rotations = make_rotations(
      ...     jax.random.key(2), num_heads=4, head_dim=16, num_hashes=2, num_buckets=8
      ... )
      >>> q_buckets = hash_buckets(q, rotations)
      >>> k_buckets = hash_buckets(k, rotations)
      >>> lsh_cross_attention(q, k, v, q_buckets, k_buckets, chunk_size=8).shape
      (1, 30, 4, 16)
    """
    dropout_rate = check_knobs(
        chunk_size, options, rows_at_once, implementation, dropout_rate, dropout_key
    )
    q, k, v, q_buckets, k_buckets = as_cross_operands(q, k, v, q_buckets, k_buckets)
    q, k, v = divide_positions(q, k, v)
    *batch_shape, num_queries, heads, width = q.shape
    num_keys = k.shape[-3]
    seen = read_mask(mask, (*batch_shape, num_keys, heads), causal, num_queries=num_queries)
    geometry = options.geometry(chunk_size, seen.causal, max(num_queries, num_keys))
    batch, chunk = math.prod(batch_shape), geometry.chunk_size
    if batch == 0:
        return jnp.zeros((*q.shape[:-1], v.shape[-1]), v.dtype)
    length = num_queries + num_keys + -num_keys % chunk
    q_buckets, q_broken = check_sortable(q_buckets, length)
    k_buckets, k_broken = check_sortable(k_buckets, length)

    q = q.reshape(batch, *q.shape[-3:])
    k = k.reshape(batch, *k.shape[-3:])
    v = v.reshape(batch, *v.shape[-3:])
    q_buckets = q_buckets.reshape(batch, *q_buckets.shape[-3:])
    k_buckets = k_buckets.reshape(batch, *k_buckets.shape[-3:])
    if heads != k.shape[2]:
        k = jnp.repeat(k, heads // k.shape[2], axis=2)
        v = jnp.repeat(v, heads // v.shape[2], axis=2)
        k_buckets = jnp.repeat(k_buckets, heads // k_buckets.shape[3], axis=3)
    # Key heads are as many as query heads from here on: rows are (example, query head).
    visible = _visibility(seen, batch, num_queries, num_keys, chunk)
    # Seeds [B, N, 2]; `visible` holds whole chunks of S, [B, n·C], for keys and [B, T] for queries.
    seeds = row_seeds(dropout_rate, dropout_key, batch, heads)
    factor = factor_of(q.shape[:2], seen.broken | q_broken | k_broken, seen.q_valid)
    settings = CallSettings(geometry, options.key_norm, dropout_rate, rows_at_once, precision)
    context = by_device(
        functools.partial(_attend, implementation, settings, options.scale(width)),
        [q_buckets, k_buckets, q, k, v, visible, seen.pairs, seeds, factor],
        ["brtn", "brtn", "btn", "btn", "btn", "bt", "bn", "bn", "bt"],
        "btn",
        name="LSH attention",
        batch=batch,
        heads=heads,
    )
    return divide_positions(context.reshape(*batch_shape, *context.shape[1:]))


def _attend(
    implementation: str | None,
    settings: CallSettings,
    scale: float,
    q_buckets: jax.Array,
    k_buckets: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    visible: CrossVisibility,
    pairs: masks.Mask | None,
    seeds: jax.Array,
    factor: jax.Array,
) -> jax.Array:
    """The context [B, T, N, D] of the rows at hand: those of one device."""
    chunk = settings.geometry.chunk_size
    # Whatever stands in the padding, NaN included, ends here.
    valid = visible.valid[:, : k.shape[1], None, None]
    q = jnp.where(visible.q_valid[:, :, None, None], q, 0)
    k = pad_to_multiple(jnp.where(valid, k, 0), 1, chunk)
    v = pad_to_multiple(jnp.where(valid, v, 0), 1, chunk)
    k_buckets = pad_to_multiple(k_buckets, 2, chunk)
    with jax.named_scope("lsh_sort"):
        # [B, R, T, N] to [B, N, R, T], and S in place of T for the keys
        q_ids = jnp.moveaxis(q_buckets, 3, 1)
        k_ids = jnp.moveaxis(k_buckets, 3, 1)
        order = sort_queries_and_keys(q_ids, k_ids, visible, settings.geometry)
    order = order._replace(pairs=pairs, factor=factor)
    attend = choose(implementation, order, settings, q, v)
    return attend(settings, q, k, v, scale, order, seeds.reshape(-1, 2))


def _visibility(
    seen: Visibility, batch: int, num_queries: int, num_keys: int, chunk_size: int
) -> CrossVisibility:
    """The masks with all arrays made, keys in whole chunks."""

    def ones_unless_given(valid, size):
        return jnp.ones((batch, size), bool) if valid is None else valid

    valid = ones_unless_given(seen.valid, num_keys)
    q_valid = ones_unless_given(seen.q_valid, num_queries)
    if seen.causal:
        positions = jnp.broadcast_to(jnp.arange(num_queries), q_valid.shape)
        # [B, T]; below 0 there is no key before the query, from S on all of them.
        first = jnp.clip(jnp.broadcast_to(seen.q_offset, (batch,)), -num_queries, num_keys)
        q_position = positions + first[:, None]
    else:
        q_position = _same_relative_place(valid, q_valid, seen.kv_segments, seen.segments)
    segments = seen.kv_segments
    return CrossVisibility(
        valid=pad_to_multiple(valid, 1, chunk_size),
        q_valid=q_valid,
        segments=None if segments is None else pad_to_multiple(segments, 1, chunk_size),
        q_segments=seen.segments,
        q_position=q_position.astype(jnp.int32),
    )


def _same_relative_place(
    valid: jax.Array,
    q_valid: jax.Array,
    segments: jax.Array | None,
    q_segments: jax.Array | None,
) -> jax.Array:
    """[B, T] the key that stands where a query does if both sequences are stretched to one length.

    Only valid tokens count, so that padding changes nothing; each segment is a sequence.
    """

    def in_order(valid, segments):
        """Ids of the segments, places by segment and, behind all, the padding; the sorted ids."""
        ids = 0 if segments is None else segments.astype(jnp.int32)
        ids = jnp.where(valid, ids, jnp.iinfo(jnp.int32).max)
        places = jnp.argsort(ids, axis=1, stable=True)
        return ids, places, jnp.take_along_axis(ids, places, axis=1)

    def bounds(sorted_ids, ids):
        """[B, T] where a query's segment begins among the sorted, and its number of tokens."""
        first = jax.vmap(functools.partial(jnp.searchsorted, side="left"))(sorted_ids, ids)
        stop = jax.vmap(functools.partial(jnp.searchsorted, side="right"))(sorted_ids, ids)
        return first, stop - first

    q_ids, q_places, q_sorted = in_order(q_valid, q_segments)
    _, places, k_sorted = in_order(valid, segments)
    (q_first, q_count), (first, count) = bounds(q_sorted, q_ids), bounds(k_sorted, q_ids)
    # [B, T]: number of each query in its segment.
    q_rank = jnp.argsort(q_places, axis=1) - q_first
    # In floats: products of two lengths overflow 32 bits. Equal lengths stay exact.
    ratio = count / jnp.maximum(q_count, 1)
    rank = jnp.minimum((q_rank.astype(ratio.dtype) * ratio).astype(jnp.int32), count - 1)
    rank = jnp.clip(first + rank, 0, valid.shape[1] - 1)
    return jnp.take_along_axis(places, rank, axis=1)
