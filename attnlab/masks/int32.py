"""Positions in int32, whose sums do not overflow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: The last position that int32 holds. No array is as long, so whatever is beyond counts as there.
LARGEST = 2**31 - 1


def as_position(x: Any) -> Any:
    """Integers as Python's int or int32; what int32 does not hold becomes the nearest it does."""
    if isinstance(x, int | np.integer):
        return max(-LARGEST, min(int(x), LARGEST))
    # JAX cuts 64 bits to 32. A list of a mask that is an argument of `jit` is one of tracers.
    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))
    lib = np if isinstance(x, list | tuple | np.ndarray) and not is_traced else jnp
    x = lib.asarray(x)
    if x.dtype == jnp.int32:
        return x
    if jnp.iinfo(x.dtype).bits >= 32:
        x = lib.clip(x, max(-LARGEST, jnp.iinfo(x.dtype).min), LARGEST)
    return jnp.asarray(x, jnp.int32)


def shift(x: Any, n: Any) -> Any:
    """x + n, each of them `as_position`, and so is the sum."""
    x, n = as_position(x), as_position(n)
    if isinstance(x, int) and isinstance(n, int):
        return as_position(x + n)
    n = jnp.asarray(n, jnp.int32)
    return jnp.where(n > 0, jnp.minimum(x, LARGEST - n), jnp.maximum(x, -LARGEST - n)) + n
