"""Hash-sorted order: where every token stands in every round, and which slots it may see.

Tokens of one round are sorted by (bucket, segment, position). A token's place in that order is its
*slot*; C consecutive slots are a chunk. The slots that a query may see are one contiguous range
`first ≤ slot < first + extent`, so a pair is tested with one subtraction and one unsigned
comparison, also when it is asked whether another round shows the same pair.

Letters: B examples, N heads, M = B·N rows, R rounds, L tokens (a multiple of C here).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attnlab.core.checks import require
from attnlab.masks import Mask

_SORT_KEYS = 2**32  # one uint32 operand: several times faster than sorting pairs


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Which slots are neighbors; hashable, so that it is a static argument.

    Attributes:
      chunk_size: number of slots in a chunk, C.
      look_back: number of chunks before its own that a query visits.
      look_ahead: number of chunks after its own that a query visits.
      window: number of slots on each side that a query sees, in its bucket; all of them lie in
        the visited chunks.
      causal: whether only keys at earlier positions are seen.
      union: whether a pair that several rounds show counts once.
    """

    chunk_size: int
    look_back: int
    look_ahead: int
    window: int
    causal: bool
    union: bool

    @property
    def span(self) -> int:
        """Chunks that a query visits, its own included."""
        return self.look_back + 1 + self.look_ahead


class KeyOrder(NamedTuple):
    """The slots of S keys that are not the queries.

    Attributes:
      token: key at each key slot, [M, R, S].
      slot: key slot of each key, the inverse of `token`, [M, R, S].
      home: key chunk that a query chunk's neighborhood is centered on, [M, R, query chunks].
    """

    token: jax.Array
    slot: jax.Array
    home: jax.Array


class Order(NamedTuple):
    """Every row's rounds, sorted. Self-attention has L query slots; else some may be empty.

    Attributes:
      token: query at each slot, [M, R, slots]; any token where the slot is empty.
      slot: slot of each query, [M, R, L].
      first: first key slot that each slot's query may see, [M, R, slots].
      extent: number of key slots from there on, [M, R, slots].
      keys: slots of the keys; None where the keys are the queries and stand in the same slots.
      pairs: mask in layout, [B|1, N|1, …], asked of each pair of tokens; None = it shows them all.
      factor: factor of each query's context from `inputs.factor_of`, [B, T]; None = 1.
    """

    token: jax.Array
    slot: jax.Array
    first: jax.Array
    extent: jax.Array
    keys: KeyOrder | None = None
    pairs: Mask | None = None
    factor: jax.Array | None = None

    @property
    def key_slot(self) -> jax.Array:
        """The key slot of each key."""
        return self.slot if self.keys is None else self.keys.slot


def take(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index] along the first axis, for an index that is in bounds by construction."""
    return x.at[index].get(mode="promise_in_bounds")


def in_range(x: jax.Array, first: jax.Array, extent: jax.Array) -> jax.Array:
    """True where first ≤ x < first + extent: below `first` the unsigned difference is huge."""
    return (x - first).astype(jnp.uint32) < extent.astype(jnp.uint32)


def bucket_limit(length: int) -> int:
    """Bucket ids below this fit the packed sort key beside a place; one more stands for padding."""
    rule = "LSH sorts a length that is known while tracing (export one program a length)"
    require(isinstance(length, int), f"{rule}; got {length}")
    return min(_SORT_KEYS // length - 1, 2**31 - 1)  # ids are int32 themselves


def require_sortable(num_buckets: int, length: int) -> None:
    """Refuses more buckets than a sort key holds beside a place below `length`."""
    limit = bucket_limit(length)
    require(
        num_buckets <= limit,
        f"(bucket, position) must fit a 32-bit sort key: at length {length} at most {limit}"
        f" buckets; got num_buckets={num_buckets} (give fewer)",
    )


def token_order(*digits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sorts tokens by these [B, L] integers, the first counting most, and then by index.

    Returns:
      The tokens in that order and each token's place in it, both [B, L].
    """
    # The index is the last key, so no two are equal and the sort need not be stable.
    index = lax.broadcasted_iota(jnp.int32, digits[0].shape, 1)
    keys = (*digits, index)
    *_, tokens = lax.sort(keys, dimension=1, num_keys=len(keys), is_stable=False)
    return tokens, _inverse(tokens)


def sort_by_bucket(
    buckets: jax.Array, place: jax.Array, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Sorts by (bucket, place) along the last axis, of L items.

    Args:
      buckets: buckets, integers [*, L] in [0, bucket_limit(L)).
      place: places in [0, L), all different, of the buckets' rank.
      valid: booleans, of the buckets' rank, False for items that come last, in the bucket
        `bucket_limit(L)` of their own; None = there are none.

    Returns:
      The bucket and the place at each slot.
    """
    length = buckets.shape[-1]
    limit = bucket_limit(length)
    require(limit >= 1, f"packed sort keys need length ≤ 2^31; got {length} (split the sequence)")
    keys = buckets.astype(jnp.uint32)
    if valid is not None:
        keys = jnp.where(valid, keys, jnp.uint32(limit))
    # One uint32 for (bucket, place): below 2³², as the bucket is at most `limit`.
    keys = keys * jnp.uint32(length) + place.astype(jnp.uint32)
    # Stable, it would carry along where each came from.
    keys = lax.sort(keys, dimension=keys.ndim - 1, is_stable=False)
    return keys // jnp.uint32(length), (keys % jnp.uint32(length)).astype(jnp.int32)


@functools.partial(jax.jit, static_argnames="geometry", inline=True)
def sort_rounds(
    buckets: jax.Array,
    valid: jax.Array | None,
    segments: jax.Array | None,
    geometry: Geometry,
) -> Order:
    """Sorts every round and finds the range of slots that each slot may see.

    Args:
      buckets: buckets of the tokens, integers [B, N, R, L] in [0, bucket_limit(L)).
      valid: booleans [B, L], False for tokens that nobody sees; None = all are valid.
      segments: segment ids, integers [B, L], or None.
      geometry: rules of which slots are neighbors.

    Returns:
      The order; tokens that are not valid stand last and see nothing.
    """
    batch, heads, rounds, length = buckets.shape
    # Digits of the order of places: padding last, then by segment, then (of itself) by position.
    digits = [] if valid is None else [(~valid).astype(jnp.int32)]
    digits += [] if segments is None else [segments]
    sorted_by_place = token_order(*digits) if digits else None
    slots = lax.broadcasted_iota(jnp.int32, buckets.shape, 3)
    place = slots
    if sorted_by_place is not None:
        # [B, L] to [B, N, R, L]
        place = _per_head(sorted_by_place[1], buckets.shape)
    in_rounds = None if valid is None else _per_head(valid, buckets.shape)
    # [B, N, R, L]: by slot, the place of who stands there; without digits a place is a position.
    bucket, place = sort_by_bucket(buckets, place, in_rounds)
    token = place
    if sorted_by_place is not None:
        # From places to tokens, of each example: [L] by [N, R, L].
        token = jax.vmap(take)(sorted_by_place[0], place)

    segment = () if segments is None else (jax.vmap(take)(segments, token),)
    starts = run_starts(bucket, *segment)
    # First slot of the bucket (and segment) that each slot belongs to: the last start before it.
    bucket_start = lax.cummax(jnp.where(starts, slots, 0), axis=3)
    first = jnp.maximum(slots - geometry.window, bucket_start)
    if geometry.causal:
        # Within a bucket slots are in the order of positions: before it in one is before it in
        # both.
        stop = slots
    else:
        # One past the last slot of the bucket: the next end from each slot on.
        ends = jnp.where(run_ends(starts), slots + 1, length)
        bucket_stop = lax.cummin(ends, axis=3, reverse=True)
        stop = jnp.minimum(slots + geometry.window + 1, bucket_stop)
    extent = stop - first
    if valid is not None:
        # Padding sees nothing, and nobody sees it: it is in a bucket of its own.
        extent = jnp.where(bucket == bucket_limit(length), 0, extent)

    def rows(x):
        return x.reshape(batch * heads, rounds, length)

    token = rows(token)
    # [M, R, L]: where each token stands
    slot = _inverse(token.reshape(-1, length)).reshape(token.shape)
    return Order(token, slot, rows(first), rows(extent))


def run_starts(*keys: jax.Array) -> jax.Array:
    """True at the first of each run, along the last axis, of items that are equal in all keys."""
    # The first item is compared with the last one, and set below.
    changes = (key != jnp.roll(key, 1, axis=-1) for key in keys)
    return functools.reduce(jnp.logical_or, changes).at[..., 0].set(True)


def run_ends(starts: jax.Array) -> jax.Array:
    """True at the last of each run, by `run_starts`."""
    # The first item, which starts a run, comes to the last place.
    return jnp.roll(starts, -1, axis=-1)


def _per_head(x, shape):
    """[B, L] to [B, N, R, L]."""
    return jnp.broadcast_to(x[:, None, None, :], shape)


def _inverse(permutations: jax.Array) -> jax.Array:
    """The inverse of every row of [rows, L]."""

    def invert(row):
        slots = jnp.arange(row.size, dtype=row.dtype)
        return jnp.zeros_like(row).at[row].set(slots, unique_indices=True, mode="promise_in_bounds")

    return jax.vmap(invert)(permutations)
