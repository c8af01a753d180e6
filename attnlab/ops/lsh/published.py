"""LSH attention as published implementations have it: the borders of chunks say who is seen.

A query sees its own chunk of sorted order and the chunks beside it. These borders depend on all
tokens, so the future changes what the past sees: this is for parity, for tables that compare, and
for weights that were trained so. It is the NumPy page of `attnlab.ops.lsh` in `jax.numpy`, with the
gradient that JAX finds; it is neither fast nor decodable, and under `attnlab.over` devices share no
rounds of a head. `LSHOptions` are what to train with.

Letters: R rounds, L tokens, a multiple of C slots in a chunk, n = L / C chunks a round, E chunks
that each visits, H width of queries, D of values.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from attnlab.core.checks import as_count, require, require_choice
from attnlab.ops.kernels.pallas.tiles import MASKED
from attnlab.ops.layout import slice_heads
from attnlab.ops.lsh.inputs import KeyOptions
from attnlab.ops.lsh.order import Geometry
from attnlab.ops.lsh.rows import (
    CallSettings,
    Operands,
    at,
    count_known_rows,
    keep_weights,
    largest_divisor,
    map_together,
    multiply_or_zero,
    row_of,
    unit_keys,
)

_WEIGHTS_AT_ONCE = 2**22  # of the rows that are computed together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published(KeyOptions):
    """What published implementations of LSH attention disagree about.

    | field       | TRAX (= Hugging Face) | LUCIDRAINS (reformer-pytorch) | PAPER |
    | ----------- | --------------------- | ----------------------------- | ----- |
    | same_bucket | False                 | False                         | True  |
    | union       | False                 | False                         | True  |
    | wrap        | True                  | True                          | False |
    | logit_scale | 1                     | 1/√H                          | 1/√H  |
    | key_norm    | "rms"                 | "l2"                          | "l2"  |

    Attributes:
      union: whether a pair that several rounds show counts once, as for `LSHOptions`.
      logit_scale: factor c of the logits, as for `LSHOptions`.
      key_norm: norm that keys are divided by, as for `LSHOptions`.
      look_back: number of chunks visited before a query's own.
      look_ahead: number of chunks visited after a query's own.
      same_bucket: whether only keys in the query's bucket are visible.
      wrap: whether the chunks of all rounds form a ring, so that the first chunk of a round looks
        back at the last chunk of the round before. Published code does that; it makes a round
        depend on the others.
    """

    look_ahead: int = 0
    same_bucket: bool = True
    wrap: bool = False

    def __post_init__(self):
        super().__post_init__()
        as_count("look_ahead counts chunks,", self.look_ahead)
        for name in ("same_bucket", "wrap"):
            require_choice(name, getattr(self, name), (True, False))
        require(
            not (self.wrap and (self.same_bucket or self.union)),
            "wrap=True shows keys of other rounds, so it needs same_bucket=False and union=False;"
            f" got {self.same_bucket} and {self.union} (set wrap=False)",
        )

    def geometry(self, chunk_size: int, causal: bool, length: int) -> Geometry:
        """The neighborhood of a chunk; no window."""
        del length
        reach = self.look_back * chunk_size
        return Geometry(chunk_size, self.look_back, self.look_ahead, reach, causal, self.union)


TRAX = Published(same_bucket=False, union=False, wrap=True)
LUCIDRAINS = dataclasses.replace(TRAX, logit_scale=None, key_norm="l2")
PAPER = Published(logit_scale=None, key_norm="l2")


def attend_published(settings: CallSettings, options: Published, given: Operands) -> jax.Array:
    """The context [B, L, N, D].

    Time and memory O(R·L·E·C) a row, as many rows at a time as 2²² weights are for; what is in
    between is computed again for the gradient.
    """
    length, factor, geometry = given.qk.shape[1], given.factor, settings.geometry
    # Whole chunks: [B, n·C, …], [B, R, n·C, N]
    given = given.in_chunks(geometry.chunk_size)
    batch, slots, heads, _ = given.qk.shape
    rounds = given.buckets.shape[1]
    valid, segments = given.valid, given.segments
    valid = jnp.ones((batch, slots), bool) if valid is None else valid
    segments = jnp.zeros((batch, slots), jnp.int32) if segments is None else segments
    # By row: [B·N, R, n·C] and [B·N, 2]
    buckets = jnp.moveaxis(given.buckets, 3, 1).reshape(-1, rounds, slots)
    seeds = given.seeds.reshape(-1, 2)

    @jax.checkpoint
    def attend_row(index):
        example, head = jnp.divmod(index, heads)
        row = Operands(
            at(buckets, index),
            row_of(given.qk, index),
            row_of(given.v, index),
            at(valid, example),
            at(segments, example),
            slice_heads(given.pairs, example, head),
            at(seeds, index),
            None,
        )
        return _attend_row(settings, options, row)

    weights = rounds * slots * geometry.span * geometry.chunk_size
    most = largest_divisor(count_known_rows(batch, heads), _WEIGHTS_AT_ONCE // weights)
    out = map_together(attend_row, batch, heads, settings.rows_at_once or most)
    return multiply_or_zero(out[:, :length].astype(given.v.dtype), factor)


def _attend_row(settings: CallSettings, options: Published, row: Operands) -> jax.Array:
    """[L, D] of one row, of `Operands` without the axes of examples and heads."""
    buckets, qk, v, valid, segments, mask, seed, _ = row
    assert valid is not None and segments is not None
    geometry, chunk = settings.geometry, settings.geometry.chunk_size
    rounds, length = buckets.shape
    # Sort: padding last, then by bucket, segment and position. [R, L]
    buckets = jnp.where(valid, buckets, jnp.iinfo(buckets.dtype).max)
    token = jax.vmap(lambda bucket: jnp.lexsort((segments, bucket)))(buckets)
    slot = jnp.argsort(token, axis=1)
    # Chunk: of all rounds, one after another. [R·n, C]
    own = token.reshape(-1, chunk)
    number = jnp.arange(len(own))[:, None]
    # [R·n, E] numbers of the chunks that each visits, and [R·n, E·C] the tokens there
    visited = number + jnp.arange(-geometry.look_back, geometry.look_ahead + 1)[None, :]
    near = own[visited % len(own)].reshape(len(own), -1)

    def by_pair(x, y):  # [R·n, C] of queries and [R·n, E·C] of keys, to be compared
        return x[:, :, None], y[:, None, :]

    # [R·n, C, E·C]: True where the query may see the key
    query, key = by_pair(own, near)
    visible = valid[key] & (segments[query] == segments[key])
    visible &= key < query if geometry.causal else key != query
    if mask is not None:
        visible &= mask.visible(query, key)
    chunks_a_round = length // chunk
    if not options.wrap:  # a round's first and last chunk are its ends
        inside = visited // chunks_a_round == number // chunks_a_round
        visible &= jnp.repeat(inside, chunk, axis=1)[:, None, :]
    if options.same_bucket:
        here = buckets[number // chunks_a_round, own], buckets[number // chunks_a_round, near]
        query_bucket, key_bucket = by_pair(*here)
        visible &= query_bucket == key_bucket

    # Attend: [R·n, C, E·C] logits, [R·n, C, D] sums of values
    keys = unit_keys(qk, options.scale(qk.shape[1]), options.key_norm)
    logits = settings.einsum("cqh,ckh->cqk", qk[own], keys[near])
    if options.union:
        times = _count_rounds(options, slot // chunk, buckets, query, key)
        logits -= jnp.log(jnp.maximum(times, 1).astype(logits.dtype))
    logits = jnp.where(visible, logits, MASKED)
    largest = jnp.maximum(lax.stop_gradient(jnp.max(logits, axis=2)), MASKED / 2)
    weights = jnp.exp(logits - largest[:, :, None])
    total = jnp.sum(weights, axis=2)
    if settings.dropout_rate > 0:
        weights *= keep_weights(settings, seed, query, key, weights.dtype)
    sums = settings.einsum("cqk,ckd->cqd", weights.astype(v.dtype), v[near])

    # Merge: back in the order of positions, [R, L] and [R, L, D], and summed over the rounds.
    largest = jnp.take_along_axis(largest.reshape(rounds, length), slot, axis=1)
    total = jnp.take_along_axis(total.reshape(rounds, length), slot, axis=1)
    sums = jnp.take_along_axis(sums.reshape(rounds, length, -1), slot[:, :, None], axis=1)
    share = jnp.exp(largest - jnp.max(largest, axis=0, keepdims=True))
    total = jnp.sum(total * share, axis=0)
    context = jnp.sum(sums * share[:, :, None], axis=0) / jnp.where(total > 0, total, 1)[:, None]
    # A token that no round shows another one has its own value.
    position = jnp.arange(length)
    own_weight = jnp.ones(length, context.dtype)
    if mask is not None:
        own_weight *= mask.visible(position, position)
    if settings.dropout_rate > 0:
        own_weight *= keep_weights(settings, seed, position, position, context.dtype)
    own_value = v.astype(context.dtype) * own_weight[:, None]
    return jnp.where(total[:, None] > 0, context, own_value)


def _count_rounds(
    options: Published, chunk_of: jax.Array, buckets: jax.Array, query: jax.Array, key: jax.Array
) -> jax.Array:
    """In how many rounds each pair meets, by `chunk_of` and `buckets`, [R, L], masks aside."""
    times = jnp.zeros((), jnp.int32)
    for chunks, bucket in zip(chunk_of, buckets, strict=True):
        ahead = chunks[key] - chunks[query]
        meets = (ahead >= -options.look_back) & (ahead <= options.look_ahead)
        if options.same_bucket:
            meets &= bucket[key] == bucket[query]
        times += meets
    return times
