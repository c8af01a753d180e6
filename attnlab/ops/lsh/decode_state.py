"""The memory of decoding with LSH attention: the tokens so far, beside their keys and values.

Letters: *B batch axes, B all of them merged, N heads, R rounds, L tokens that the cache holds, W
the window, how many tokens of its bucket a query sees (L, where that is less).
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from attnlab.core.checks import as_size, require, require_instance
from attnlab.ops.lsh.inputs import require_options
from attnlab.ops.lsh.options import STRICT, LSHOptions
from attnlab.ops.lsh.order import require_sortable
from attnlab.ops.lsh.running_mean import RunningMean

__all__ = ["DecodeState", "empty_state", "latest_of", "require_state"]


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


def require_state(
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


def latest_of(buckets: jax.Array, valid: jax.Array, num_buckets: int, window: int) -> jax.Array:
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
    # [B, R, S, N]: what is not entered gets a bucket behind all.
    keys = jnp.where(valid[:, None, :, None], buckets, num_buckets).astype(jnp.uint32)
    position = jnp.arange(length, dtype=jnp.uint32)[None, None, :, None]
    keys = lax.sort(
        jnp.moveaxis(keys * jnp.uint32(length) + position, 3, 1), dimension=3, is_stable=False
    )

    def one_round(keys):
        sizes = jnp.zeros(num_buckets + 1, jnp.int32)
        sizes = sizes.at[keys // jnp.uint32(length) + 1].add(1, mode="drop")
        # [buckets + 1]: where each bucket begins among the sorted keys [S]
        bounds = jnp.cumsum(sizes, dtype=jnp.int32)
        # [buckets, W]: the last W of each; those before its start belong to another one.
        slot = bounds[1:, None] + jnp.arange(-window, 0, dtype=jnp.int32)[None, :]
        token = (jnp.take(keys, slot, mode="clip") % jnp.uint32(length)).astype(jnp.int32)
        return jnp.where(slot >= bounds[:-1, None], token + 1, 0)

    latest = jax.vmap(one_round)(keys.reshape(-1, length))
    return latest.reshape(batch, heads, rounds, num_buckets, window)
