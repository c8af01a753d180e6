"""The token ids that every tokenizer, batch and model of attnlab agree on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.core.axes import widen
from attnlab.core.checks import as_array, require
from attnlab.core.shapes import fit

PAD, BOS, EOS, UNK = 0, 1, 2, 3
NUM_SPECIAL = 4


def as_tokens(name: str, tokens: Any) -> jax.Array:
    """Token ids [B, T], of one token at least.

    Raises:
      ValueError: they are other than that, or known and not padded at the end alone.
    """
    ids = as_array(name, tokens)
    fit(f"{name}: B T", ids, remedy=f"give one sequence as {name}[None]")
    require(
        ids.shape[1] > 0 and jnp.issubdtype(ids.dtype, jnp.integer),
        f"{name} must be token ids, integers [B, T] with T ≥ 1; got {ids.dtype} {ids.shape}",
    )
    require_padding_at_end(name, ids)
    return ids


def require_padding_at_end(name: str, ids: jax.Array) -> None:
    """Refuses known ids with padding before a token: masks and positions would not see it."""
    if isinstance(ids, jax.core.Tracer):
        return
    real = np.asarray(ids) != PAD
    wrong = (real[..., 1:] & ~real[..., :-1]).any(-1)
    require(
        not wrong.any(),
        f"{name} must be padded at the end: no id {PAD} stands before a token; got {wrong.sum()} of"
        f" {wrong.size} rows where one does (move the padding behind the tokens)",
    )


def lengths(tokens: jax.Array) -> jax.Array:
    """How many tokens of each row [*B, T] are there before the padding at its end; [*B] int32.

    Raises:
      ValueError: known tokens that are not padded at the end alone.
    """
    require_padding_at_end("tokens", tokens)
    return (tokens != PAD).sum(-1, dtype=jnp.int32)


def rows_of(table: jax.Array, ids: jax.Array) -> jax.Array:
    """table[ids]; NaN for an id that is negative or has no row.

    Raises:
      ValueError: ids are not integers.
    """
    rows = jnp.take(widen(table), row_numbers(ids, len(table)), axis=0, mode="fill")
    return rows.astype(table.dtype)


def row_numbers(ids: jax.Array, count: int) -> jax.Array:
    """The ids as numbers of `count` rows; `count` or more where there is none, never negative.

    Raises:
      ValueError: ids are not integers.
    """
    ids = as_array("ids", ids)
    require(
        jnp.issubdtype(ids.dtype, jnp.integer), f"ids must be integers; got {ids.dtype} (cast them)"
    )
    ids = ids.astype(int)  # a smaller type may not hold the number of rows
    return jnp.where(ids < 0, count, ids)


def shift_right(tokens: jax.Array, segments: jax.Array | None = None) -> jax.Array:
    """What a decoder reads to predict `tokens`: BOS, then all but the last of them.

    Args:
      tokens: token ids [*B, T].
      segments: segment ids [*B, T] of several sequences packed in a row; each begins with BOS.

    Returns:
      [*B, T].

    Example:
      >>> shift_right(jnp.array([7, 8, 2, 9, 2]), jnp.array([1, 1, 1, 2, 2])).tolist()
      [1, 7, 8, 1, 9]
    """
    before = jnp.roll(tokens, 1, axis=-1).at[..., 0].set(BOS)
    if segments is None:
        return before
    starts = segments != jnp.roll(segments, 1, axis=-1)
    return jnp.where(starts, BOS, before).at[..., 0].set(BOS)
