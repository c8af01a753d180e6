"""What decoding with LSH attention remembers of the tokens so far, beside their keys and values.

Letters: *B batch axes, B all of them merged, N heads, R rounds, L tokens that the cache holds, W
the window, how many tokens of its bucket a query sees.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from attnlab.checks import require
from attnlab.ops.lsh import STRICT, LSHOptions
from attnlab.ops.lsh_order import bucket_limit

__all__ = ["DecodeState", "RunningMean", "empty_state", "latest_of", "next_centres"]


@flax.struct.dataclass
class RunningMean:
    """The sum of the valid tokens so far, to go on with `hashing.running_centre`.

    Attributes:
      total: [*B, N, H] float32.
      count: [*B] int32.
    """

    total: jax.Array
    count: jax.Array


@flax.struct.dataclass
class DecodeState:
    """The state of `lsh_decode`; all zeros before the first token.

    Every array leads with the batch axes, so that a beam search reorders it like keys and values.

    Attributes:
      buckets: [*B, R, L, N] int32, of the tokens so far.
      latest: [*B, N, R, num_buckets, W] int32, for each bucket the last W valid tokens, oldest
        first, each as 1 + its position; 0 = none. A ring buffer that is turned at every entry: it
        is read as a whole anyway, and so needs no count of its entries.
      mean: of what is hashed, where hashing is centred on it; else None.
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
      shape: of the keys in the cache, [*B, L, N, H].
      num_hashes: R.
      num_buckets: of a round.
      chunk_size: as for `lsh_decode`.
      options: likewise.
      running_mean: whether hashing is centred on the mean of the tokens so far.

    Raises:
      NotImplementedError: options that are not strict.
      ValueError: too many buckets for 32-bit sort keys.
    """
    *batch, length, heads, width = shape
    window, limit = options.geometry(chunk_size, causal=True).window, bucket_limit(length)
    if window is None:
        raise NotImplementedError(
            "LSH decodes where the future cannot change what the past sees; got"
            " LSHOptions(strict=False) (use strict=True)"
        )
    require(
        num_buckets <= limit,
        f"(bucket, position) must fit a 32-bit sort key: in a cache of {length} tokens at most"
        f" {limit} buckets; got {num_buckets} (use fewer)",
    )
    mean = None
    if running_mean:
        total = jnp.zeros((*batch, heads, width), jnp.float32)
        mean = RunningMean(total, jnp.zeros(batch, jnp.int32))
    return DecodeState(
        jnp.zeros((*batch, num_hashes, length, heads), jnp.int32),
        jnp.zeros((*batch, heads, num_hashes, num_buckets, window), jnp.int32),
        mean,
    )


def next_centres(
    mean: RunningMean, x: jax.Array, valid: jax.Array | None
) -> tuple[jax.Array, RunningMean]:
    """`hashing.running_centre` of T more tokens, and the mean of all.

    Args:
      mean: of the tokens before.
      x: [*B, T, N, H].
      valid: [*B, T], True for tokens that count; None = all.

    Returns:
      The centres [*B, T, N, H] float32, and the mean after them.
    """
    x = lax.stop_gradient(x).astype(jnp.float32)
    counted = jnp.ones(x.shape[:-2], bool) if valid is None else valid
    total = jnp.cumsum(jnp.where(counted[..., None, None], x, 0), axis=-3)
    total += mean.total[..., None, :, :]
    count = jnp.cumsum(counted, axis=-1, dtype=jnp.int32) + mean.count[..., None]
    after = RunningMean(total[..., -1, :, :], count[..., -1])
    return total / jnp.maximum(count, 1)[..., None, None], after


def latest_of(buckets: jax.Array, valid: jax.Array, num_buckets: int, window: int) -> jax.Array:
    """`DecodeState.latest` after any number of tokens at once.

    Args:
      buckets: [B, R, S, N] of the first S tokens.
      valid: [B, S], False for those that are not entered.
      num_buckets: of a round.
      window: W.

    Returns:
      [B, N, R, num_buckets, W]. One sort, as in the parallel forward: O(R·N·S·log S).
    """
    batch, rounds, length, heads = buckets.shape
    keys = jnp.where(valid[:, None, :, None], buckets, num_buckets).astype(jnp.uint32)
    position = jnp.arange(length, dtype=jnp.uint32)[None, None, :, None]
    keys = lax.sort(
        jnp.moveaxis(keys * jnp.uint32(length) + position, 3, 1), dimension=3, is_stable=False
    )

    def one_round(keys):
        firsts = jnp.arange(num_buckets + 1, dtype=jnp.uint32) * jnp.uint32(length)
        bounds = jnp.searchsorted(keys, firsts).astype(jnp.int32)
        slot = bounds[1:, None] + jnp.arange(-window, 0, dtype=jnp.int32)[None, :]
        token = (jnp.take(keys, slot, mode="clip") % jnp.uint32(length)).astype(jnp.int32)
        return jnp.where(slot >= bounds[:-1, None], token + 1, 0)

    latest = jax.vmap(one_round)(keys.reshape(-1, length))
    return latest.reshape(batch, heads, rounds, num_buckets, window)
