"""Hash-sorted order of queries and keys that are not the same tokens.

Queries and keys are sorted together by (bucket, segment, position). A query's keys are then the W
keys before its place in that order (and the W after it, if not causal) that share its bucket: one
contiguous range of key slots. It says nothing about other queries, so it is as strictly causal as
self-attention is.

Keys stand in slots without gaps, C to a chunk. A query's *home* is the key chunk that its place
falls into: all that it may see lies there and in the chunks beside it. Queries of one home are put
into query chunks of their own, so a query chunk knows which key chunks to visit. At most
⌈T/C⌉ + S/C of these chunks are needed, whatever the buckets.

Letters: B examples, N heads, M = B·N rows, R rounds, T queries, S keys (a multiple of C here).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attnlab.ops.lsh.order import (
    Geometry,
    KeyOrder,
    Order,
    bucket_limit,
    run_ends,
    run_starts,
    sort_by_bucket,
    take,
    token_order,
)


class CrossVisibility(NamedTuple):
    """Who may see whom, buckets aside, for B examples.

    Attributes:
      valid: booleans [B, S], False for keys that nobody sees.
      q_valid: booleans [B, T], False for queries that see nothing.
      segments: segment ids of the keys, [B, S], or None.
      q_segments: segment ids of the queries, [B, T], or None.
      q_position: index of the last key at or before each query in position order, [B, T]; −1 =
        none.
    """

    valid: jax.Array
    q_valid: jax.Array
    segments: jax.Array | None
    q_segments: jax.Array | None
    q_position: jax.Array


@functools.partial(jax.jit, static_argnames="geometry", inline=True)
def sort_queries_and_keys(
    q_buckets: jax.Array, k_buckets: jax.Array, seen: CrossVisibility, geometry: Geometry
) -> Order:
    """Sorts every round and finds the range of key slots that each query may see.

    Args:
      q_buckets: buckets of the queries, integers [B, N, R, T] in [0, bucket_limit(T + S)).
      k_buckets: buckets of the keys, integers [B, N, R, S] in the same range; S is a multiple of
        the chunk size.
      seen: masks of queries and keys.
      geometry: rules of which slots are neighbors.
    """
    batch, heads, rounds, num_queries = q_buckets.shape
    num_keys = k_buckets.shape[3]
    length = num_keys + num_queries
    item_at, place, segment = _sort_by_position(seen)
    # Keys before queries, everywhere: item i < S is key i, else query i − S. [B, S + T]
    everyone = jnp.concatenate([seen.valid, seen.q_valid], axis=1)
    # [B, N, R, S + T]
    buckets = jnp.concatenate([k_buckets, q_buckets], axis=3)
    bucket, place = sort_by_bucket(buckets, place[:, None, None], everyone[:, None, None])

    def one_round(place, bucket, item_at, segment):
        # [S + T] each, of one row and round, by rank in sorted order
        item = take(item_at, place)
        starts = run_starts(bucket, *(() if segment is None else (take(segment, item),)))
        return _arrange(item, starts, bucket == bucket_limit(length), num_keys, geometry)

    over_heads = jax.vmap(jax.vmap(one_round, (0, 0, None, None)), (0, 0, None, None))
    over_examples = jax.vmap(over_heads, (0, 0, 0, None if segment is None else 0))
    order = over_examples(place, bucket, item_at, segment)
    return jax.tree.map(lambda x: x.reshape(batch * heads, rounds, *x.shape[3:]), order)


def _sort_by_position(seen: CrossVisibility):
    """All items, keys first: who stands at each place, the place of each, and the segments.

    A key stands before a query of the same position, so that the query may see it.
    """
    position = jnp.broadcast_to(jnp.arange(seen.valid.shape[1]), seen.valid.shape)
    # Doubled, so that a query fits between two keys.
    position = 2 * jnp.concatenate([position, seen.q_position], axis=1)
    position = position.at[:, seen.valid.shape[1] :].add(1)
    if seen.segments is None or seen.q_segments is None:
        return *token_order(position), None
    segment = jnp.concatenate([seen.segments, seen.q_segments], axis=1)
    return *token_order(segment, position), segment


def _arrange(item, starts, invalid, num_keys: int, geometry: Geometry) -> Order:
    """One round of one row, everything [T + S] by rank in (bucket, segment, position) order.

    Args:
      item: key (below S) or query (from S on) of each rank.
      starts: booleans by rank, True at the first of each (bucket, segment).
      invalid: booleans by rank, True for items that see nothing.
      num_keys: number of keys, S.
      geometry: window and chunk size.
    """
    length, chunk, window = item.size, geometry.chunk_size, geometry.window
    num_queries, key_chunks = length - num_keys, num_keys // chunk
    query_chunks = -(-num_queries // chunk) + key_chunks
    rank = jnp.arange(length, dtype=jnp.int32)
    is_key = item < num_keys
    one_key = is_key.astype(jnp.int32)
    # Of each rank: the key slot it stands at, or would if it were a key.
    keys_before = jnp.cumsum(one_key, dtype=jnp.int32) - one_key
    queries_before = rank - keys_before

    # Key slots at which the bucket (and segment) of each rank begins and ends.
    bucket_start = lax.cummax(jnp.where(starts, keys_before, 0))
    bucket_stop = lax.cummin(
        jnp.where(run_ends(starts), keys_before + one_key, num_keys), reverse=True
    )
    first = jnp.maximum(keys_before - window, bucket_start)
    stop = keys_before
    if not geometry.causal:
        stop = jnp.minimum(keys_before + window, bucket_stop)
    extent = jnp.where(invalid, 0, stop - first)

    # [S]: the rank of the key in each key slot
    rank_of_key = _scatter(num_keys, jnp.where(is_key, keys_before, num_keys), rank)
    # [S/C − 1]: queries that stand before the last key of each key chunk but the last one. Group c
    # is the queries of home c; group_start [S/C] is where it begins among all queries.
    before_chunk = take(queries_before, rank_of_key[chunk - 1 : -1 : chunk])
    group_start = jnp.concatenate([jnp.zeros(1, jnp.int32), before_chunk])
    group_size = jnp.diff(group_start, append=jnp.int32(num_queries))
    # [S/C]: query chunks of each home; their sum is at most ⌈T/C⌉ + S/C.
    chunks_in_group = -(-group_size // chunk)
    group_end = jnp.cumsum(chunks_in_group, dtype=jnp.int32)
    group_first_chunk = group_end - chunks_in_group

    home = jnp.minimum(keys_before // chunk, key_chunks - 1)
    in_group = queries_before - take(group_start, home)
    # A slot for each query: its group's chunks, then its number within the group.
    query_slot = take(group_first_chunk, home) * chunk + in_group
    no_slot = query_chunks * chunk
    # [query slots]: the rank of the query there; −1 = the slot is empty.
    rank_at = _scatter(no_slot, jnp.where(is_key, no_slot, query_slot), rank, empty=-1)
    filled, rank_at = rank_at >= 0, jnp.maximum(rank_at, 0)
    # [S + T] by item: key slots of the keys, query slots of the queries
    slot_of = jnp.zeros(length, jnp.int32).at[item].set(jnp.where(is_key, keys_before, query_slot))
    # [query chunks]: the group that each belongs to, the number of those that end before it
    ends = jnp.zeros(query_chunks, jnp.int32).at[group_end].add(1, mode="drop")
    chunk_home = jnp.cumsum(ends, dtype=jnp.int32)
    return Order(
        token=jnp.where(filled, take(item, rank_at) - num_keys, 0),
        slot=slot_of[num_keys:],
        first=take(first, rank_at),
        extent=jnp.where(filled, take(extent, rank_at), 0),
        keys=KeyOrder(
            token=take(item, rank_of_key),
            slot=slot_of[:num_keys],
            home=jnp.minimum(chunk_home, key_chunks - 1),
        ),
    )


def _scatter(size: int, index, values, empty: int = 0):
    """An array of `size` with `values` at `index`; an index of `size` is dropped."""
    return jnp.full(size, empty, jnp.int32).at[index].set(values, mode="drop")
