"""The mean of the tokens so far, kept so that rounding does not tell how they came."""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax


@flax.struct.dataclass
class RunningMean:
    """The mean of the tokens so far, as the sum of their differences from the first of them.

    That sum is exactly zero over equal tokens and small where tokens have much in common, so that
    in whatever pieces they come, rounding is small against how far they are from each other.

    Attributes:
      first: first token that counts, [*B, N, H] float32.
      total: sum Σ (x − first) over the tokens that count, [*B, N, H] float32.
      count: number of tokens that count, [*B] int32.
    """

    first: jax.Array
    total: jax.Array
    count: jax.Array

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> RunningMean:
        """Before the first token, for x of this shape, [*B, L, N, H]."""
        *batch, _, heads, width = shape
        # An array each: a buffer that stands twice in a state cannot be donated.
        first = jnp.zeros((*batch, heads, width), jnp.float32)
        total = jnp.zeros((*batch, heads, width), jnp.float32)
        return cls(first, total, jnp.zeros(batch, jnp.int32))

    def go_on(self, x: jax.Array, valid: jax.Array | None) -> tuple[jax.Array, RunningMean]:
        """The mean after each of T more tokens, and after all of them.

        Args:
          x: vectors of the new tokens, [*B, T, N, H].
          valid: booleans [*B, T], True for tokens that count; None = all.

        Returns:
          The means [*B, T, N, H] float32, zero where nothing has been counted yet, and the state
          after the last token.
        """
        x = lax.stop_gradient(x).astype(jnp.float32)
        counted = jnp.ones(x.shape[:-2], bool) if valid is None else valid
        counted = counted[..., None, None]
        before = self.count[..., None, None, None]
        number = jnp.cumsum(counted, axis=-3, dtype=jnp.int32) + before
        first_counted = jnp.sum(jnp.where(counted & (number == 1), x, 0), axis=-3, keepdims=True)
        first = jnp.where(before > 0, self.first[..., None, :, :], first_counted)
        total = jnp.cumsum(jnp.where(counted, x - first, 0), axis=-3)
        total += self.total[..., None, :, :]
        mean = jnp.where(number > 0, first + total / jnp.maximum(number, 1).astype(x.dtype), 0)
        return mean, RunningMean(first[..., 0, :, :], total[..., -1, :, :], number[..., -1, 0, 0])
