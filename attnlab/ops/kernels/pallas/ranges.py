"""The function that the kernels compute: attention over the keys in a range, a range a query.

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


class Seen(NamedTuple):
    """Where E other orders of the same tokens show a pair: then it does not count again here.

    Attributes:
      slot: slot of each key in the other order, [V, E, S] int32.
      first: first slot there that each query may see, [V, E, T] int32.
      extent: number of slots from there on, [V, E, T] int32; 0 = none.
    """

    slot: jax.Array
    first: jax.Array
    extent: jax.Array


class Visible(NamedTuple):
    """Which keys each query sees. Row m of the queries sees by row m // (M / V).

    Attributes:
      first: first key that each query sees, [V, T] int32.
      extent: number of keys from there on, [V, T] int32; 0 = the query sees nothing.
      seen: pairs in the range that do not count, or None.
    """

    first: jax.Array
    extent: jax.Array
    seen: Seen | None = None


class Inputs(NamedTuple):
    """The arrays of one call, padded to whole blocks.

    Attributes:
      q: queries [M, T, H]; for the additive score projected already.
      k: keys [M / group, S, H]; row m of q meets row m // group of k and v.
      v: values [M / group, S, D].
      w: weights of the hidden units in the additive score w·tanh(q + k), [M, H]; None: the score is
        the dot product q·k · scale.
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
      block_q: number of queries in a tile; divides T.
      block_k: number of keys in a tile; divides S.
      back: number of keys before its own index that a query can see at most: none before i − back;
        None = all there are.
      ahead: number of keys after its own index that a query can see at most: none after i + ahead;
        None = all there are.
      dtype: dtype of the context, and of a GPU's gradients of the dot product.
      precision: precision of the matrix products, as in `jax.lax.dot_general`.
      interpret: whether to simulate the kernel on the CPU.
      scale: factor of the dot product, on the float32 logits, as q in bfloat16 would be rounded; 1
        for the additive score.
    """

    block_q: int
    block_k: int
    back: int | None
    ahead: int | None
    dtype: Any
    precision: Any
    interpret: bool
    scale: float = 1.0


class Blocks(NamedTuple):
    """Which blocks of the other side a block visits.

    Attributes:
      start: index of the first block visited, [V, blocks] int32; a valid block also where the count
        is 0.
      number: number of blocks visited from there on, [V, blocks] int32.
      most: largest number of blocks that can be; static.
    """

    start: jax.Array
    number: jax.Array
    most: int


def query_blocks(visible: Visible, config: Config, num_keys: int) -> Blocks:
    """The key blocks that each query block visits: exactly those in which it may see a key."""
    rows, num_queries = visible.first.shape
    bq, bk = config.block_q, config.block_k
    first = visible.first.reshape(rows, num_queries // bq, bq)
    extent = visible.extent.reshape(rows, num_queries // bq, bq)
    # [V, blocks, bq]; a query that sees nothing must not widen the range of its block.
    sees = extent > 0
    # [V, blocks]: rounded down and up to whole blocks of keys
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
    # [S / bk]: query i can see key j only if j − ahead ≤ i ≤ j + back.
    lowest = jnp.zeros_like(begin) if config.ahead is None else begin - config.ahead
    highest = jnp.full_like(begin, last) if config.back is None else begin + bk - 1 + config.back
    start = jnp.clip(lowest, 0, num_queries) // bq
    stop = jnp.clip(highest, -1, last) // bq + 1
    count = jnp.maximum(stop - start, 0)
    start = jnp.minimum(start, num_queries // bq - 1)
    most = _most(config.ahead, config.back, bk, bq, num_queries)
    start = jnp.broadcast_to(start[None], (rows, start.size))
    count = jnp.broadcast_to(count[None], (rows, count.size))
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
