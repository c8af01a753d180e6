"""A tile of LSH attention: some chunks of one round of one row, gathered, with masked logits.

Tiles are held as [chunk, key, query], queries last: the ranges of visible slots then vary along the
vector lanes. Letters: g chunks in the tile, C slots in a chunk, E chunks visited by each.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attnlab.ops.kernels.pallas.tiles import MASKED
from attnlab.ops.lsh.order import Geometry, Order, in_range, take
from attnlab.ops.lsh.rows import CallSettings, Row, keep_weights


class Tile(NamedTuple):
    """The chunks of one tile.

    Attributes:
      own: tokens of the queries, [g, C].
      q: queries [g, C, H].
      k: keys [g, E·C, H].
      v: values [g, E·C, D].
      g: cotangents of the context behind k and v in `Row.kv`, [g, C, D] or [g, C, 0]; None where
        the keys are not the queries.
      logits: logits [g, E·C, C], at least float32; MASKED where not visible.
      keep: factors of dropout [g, E·C, C], 0 where a weight is dropped, else 1 / (1 − rate); None
        without dropout.
    """

    own: jax.Array
    q: jax.Array
    k: jax.Array
    v: jax.Array
    g: jax.Array | None
    logits: jax.Array
    keep: jax.Array | None


def make_tile(settings: CallSettings, row: Row, r: jax.Array, c0: jax.Array, size: int) -> Tile:
    """Chunks c0 … c0 + size of round r."""
    geometry = settings.geometry
    chunk = geometry.chunk_size
    order = row.order
    home = home_chunks(order, r, c0, size)
    back, span, width = geometry.look_back, geometry.span, row.k.shape[1]
    with jax.named_scope("lsh_gather"):
        if order.keys is None:
            # Chunks visited stand one after another, [g + E − 1, C]: each is taken once, and what a
            # query chunk visits is E of them, [g, E·C].
            chunks = c0 - back + jnp.arange(size + span - 1, dtype=jnp.int32)
            tokens = chunk_tokens(order.token, r, chunks, chunk)
            k, v, g = jnp.split(take(row.kv, tokens), [width, width + row.v.shape[1]], axis=2)
            own = tokens[back : back + size]
            own_k = k[back : back + size]
            g = g[back : back + size]

            def windows(x):
                return jnp.concatenate([x[e : e + size] for e in range(span)], axis=1)

            near = windows(tokens)
            k, v = windows(k), windows(v)
        else:
            own = chunk_tokens(order.token, r, c0 + jnp.arange(size, dtype=jnp.int32), chunk)
            # [g, E·C]: of each query chunk the tokens of the chunks it visits, one after another.
            near = jnp.concatenate(
                [chunk_tokens(order.keys.token, r, home + e - back, chunk) for e in range(span)],
                axis=1,
            )
            # [g, E·C, H] and [g, E·C, D]
            k, v, g = take(row.k, near), take(row.v, near), None
        # [g, C, H]
        if row.q_over_k is None:
            q = take(row.q, own)
        else:  # the own chunk among the keys at hand, keys being scaled queries (`select_row`)
            q = own_k * take(row.q_over_k, own)[..., None]
    # [g, E·C, C]; with queries last, see `rounds` for why.
    logits = settings.einsum("ckh,cqh->ckq", k, q)
    logits = jnp.where(_visible(geometry, row, r, c0, home, own, near), logits, MASKED)
    keep = None
    if settings.dropout_rate > 0:
        keep = keep_weights(settings, row.seed, own[:, None, :], near[:, :, None], logits.dtype)
    return Tile(own, q, k, v, g, logits, keep)


def chunk_tokens(tokens: jax.Array, r: jax.Array, chunks: jax.Array, chunk_size: int) -> jax.Array:
    """[n, C] the tokens [R, L] in some chunks of round r; beside its ends, any tokens."""
    # [R·L/C, C]: the chunks of all rounds, one after another
    by_chunk = tokens.reshape(-1, chunk_size)
    chunks_a_round = by_chunk.shape[0] // tokens.shape[0]
    return take(by_chunk, (r * chunks_a_round + chunks) % by_chunk.shape[0])


def home_chunks(order: Order, r: jax.Array, c0: jax.Array, size: int) -> jax.Array:
    """[g] the key chunks in the middle of what query chunks c0 … c0 + size visit."""
    if order.keys is None:
        return c0 + jnp.arange(size, dtype=jnp.int32)
    return lax.dynamic_slice(order.keys.home, (r, c0), (1, size))[0]


def _visible(geometry: Geometry, row: Row, r, c0, home, own, near) -> jax.Array:
    """[g, E·C, C] (or an axis of 1): True where the query may see the key."""
    order = row.order
    size, chunk = own.shape
    # [E·C] slots from the home chunk on, [g, E·C] in the round; below 0 and from L on they lie in
    # other rounds, which no range reaches.
    offset = jnp.arange(near.shape[1], dtype=jnp.int32) - geometry.look_back * chunk
    slot = (home * chunk)[:, None] + offset[None, :]

    def queries(x):  # by slot, [R, L]
        x = lax.dynamic_slice(x, (r, c0 * chunk), (1, size * chunk))
        return x.reshape(size, 1, chunk)

    # [g, E·C, 1] slots against the ranges [g, 1, C] of the queries
    visible = in_range(slot[:, :, None], queries(order.first), queries(order.extent))
    if not geometry.causal and order.keys is None:
        # Not causal, a range holds the query's own slot; [E·C, C] is the same for all g.
        visible &= (offset[:, None] != jnp.arange(chunk, dtype=jnp.int32)[None, :])[None]
    if order.pairs is not None:  # by position: [g, 1, C] of queries, [g, E·C, 1] of keys
        visible &= order.pairs.visible(own[:, None, :], near[:, :, None])
    if row.seen_by is not None:
        visible &= ~_seen_before(row.seen_by, r, own, near)
    return visible


def _seen_before(seen_by, r, own, near) -> jax.Array:
    """True where an earlier round shows the same pair."""
    slot, first, extent = seen_by
    # by token, [S, R] and [T, R] → [g, E·C, R] and [g, C, R]
    slot, first, extent = take(slot, near), take(first, own), take(extent, own)
    seen = jnp.zeros((1, 1, 1), bool)
    for other in range(slot.shape[-1] - 1):
        # Tested in every round, to be fused into one pass; rounds not earlier are emptied.
        earlier = jnp.where(other < r, extent[:, None, :, other], 0)
        seen |= in_range(slot[:, :, None, other], first[:, None, :, other], earlier)
    return seen
