"""What the kernels compute: attention of a score over the keys in a range, a range a query.

Every query sees the keys first ≤ j < first + extent, in the order that the arrays stand in. Causal,
window and padding masks are such ranges in the order of positions; LSH attention is in hash-sorted
order, where in each round a query sees some slots of its bucket. The kernels differ by device
(`tpu`, `gpu`), not in this.

Letters: M rows (example × head), T queries, S keys, H width, D value width, bq × bk a tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Blocks", "Config", "Inputs", "Seen", "Visible", "key_blocks", "query_blocks"]


class Seen(NamedTuple):
    """Where E other orders of the same tokens show a pair: then it does not count again here.

    Attributes:
      slot: [V, E, S] int32, each key's slot in the other order.
      first: [V, E, T] int32, the first slot there that each query may see.
      extent: [V, E, T] int32, how many slots from there on; 0 = none.
    """

    slot: jax.Array
    first: jax.Array
    extent: jax.Array


class Visible(NamedTuple):
    """Which keys each query sees. Row m of the queries sees by row m // (M / V).

    Attributes:
      first: [V, T] int32.
      extent: [V, T] int32; 0 = it sees nothing.
      seen: pairs in the range that do not count, or None.
    """

    first: jax.Array
    extent: jax.Array
    seen: Seen | None = None


class Inputs(NamedTuple):
    """The arrays of one call, padded to whole blocks.

    Attributes:
      q: [M, T, H]; for a dot product scaled already, for the additive score projected already.
      k: [M / group, S, H]; row m of q meets row m // group of k and v.
      v: [M / group, S, D].
      w: [M, H] of the additive score w·tanh(q + k); None: the score is the dot product q·k.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    w: jax.Array | None

    @property
    def group(self) -> int:
        """Query rows that share a row of keys."""
        return self.q.shape[0] // self.k.shape[0]


class Config(NamedTuple):
    """What is static in a kernel.

    Attributes:
      block_q: queries of a tile; divides T.
      block_k: keys of a tile; divides S.
      back: a query at i sees no key before i − back; None = as far as there are keys.
      ahead: nor one after i + ahead.
      dtype: of the forward's output.
      precision: of the matrix products, as in `jax.lax.dot_general`.
      interpret: simulate on the CPU.
    """

    block_q: int
    block_k: int
    back: int | None
    ahead: int | None
    dtype: Any
    precision: Any
    interpret: bool


class Blocks(NamedTuple):
    """Which blocks of the other side a block visits.

    Attributes:
      start: [V, blocks] int32, the first of them; a valid block also where the count is 0.
      number: [V, blocks] int32, how many from there on.
      most: the largest count that can be; static.
    """

    start: jax.Array
    number: jax.Array
    most: int


def query_blocks(visible: Visible, config: Config, num_keys: int) -> Blocks:
    """The key blocks that each query block visits: exactly those in which it may see a key."""
    rows, num_queries = visible.first.shape
    bq, bk = config.block_q, config.block_k
    first, extent = (
        x.reshape(rows, num_queries // bq, bq) for x in (visible.first, visible.extent)
    )
    sees = extent > 0
    start = jnp.min(jnp.where(sees, first, num_keys), axis=2) // bk
    stop = jnp.max(jnp.where(sees, first + extent, 0) + bk - 1, axis=2) // bk
    count = jnp.maximum(stop - start, 0)
    most = _most(config.back, config.ahead, bq, bk, num_keys)
    return Blocks(jnp.minimum(start, num_keys // bk - 1), count, most)


def key_blocks(visible: Visible, config: Config, num_keys: int) -> Blocks:
    """The query blocks that may visit each key block, from `back` and `ahead` alone."""
    rows, num_queries = visible.first.shape
    bq, bk = config.block_q, config.block_k
    begin = jnp.arange(0, num_keys, bk, dtype=jnp.int32)
    last = num_queries - 1
    lowest = jnp.zeros_like(begin) if config.ahead is None else begin - config.ahead
    highest = jnp.full_like(begin, last) if config.back is None else begin + bk - 1 + config.back
    start = jnp.clip(lowest, 0, num_queries) // bq
    stop = jnp.clip(highest, -1, last) // bq + 1
    count = jnp.maximum(stop - start, 0)
    start = jnp.minimum(start, num_queries // bq - 1)
    most = _most(config.ahead, config.back, bk, bq, num_queries)
    start, count = (jnp.broadcast_to(x[None], (rows, x.size)) for x in (start, count))
    return Blocks(start, count, most)


def _most(back: int | None, ahead: int | None, block: int, other: int, length: int) -> int:
    """The most blocks of `other` that [i − back, i + block − 1 + ahead] can touch."""
    everything = length // other
    if back is None or ahead is None:
        return everything
    if block % other == 0:  # then i is where a block of `other` begins
        touched = -(-back // other) + block // other - (-ahead // other)
    else:
        touched = -(-(back + block + ahead - 1) // other) + 1
    return min(everything, touched)
