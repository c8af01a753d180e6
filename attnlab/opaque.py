"""What keeps XLA:CPU from computing a product wrongly."""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["opaque"]


def opaque(x: jax.Array) -> jax.Array:
    """x itself, as a value of which the compiler knows nothing, and so its gradient.

    XLA:CPU (jax 0.10.2 to 0.12.0.1) fuses a reduction of 4096 elements and more with the product
    before it. In that fusion a batched product with a factor that is a constant, or one number a
    row, comes out wrong: `(weights @ jnp.ones(…)).sum()` is infinite. Behind a `select` no factor
    is either. An `optimization_barrier` of x alone is taken away before the fusion; taken from a
    predicate it is too late for the `select` to be simplified. `tests/test_reduced.py` tells if
    that changes.

    Cost: x is copied on a CPU, nothing elsewhere.
    """
    return jnp.where(jax.lax.optimization_barrier(True), x, 0)
