"""What keeps XLA:CPU from computing a product wrongly, and a look at whether it does."""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["opaque", "opaque_gradient", "reductions_are_right"]


def opaque(x: jax.Array) -> jax.Array:
    """x itself, as a value that no reduction is fused across.

    XLA:CPU (jax 0.10.2 to 0.12.0.1) fuses a reduction of 4096 elements and more with what leads to
    it. A batched product with a factor that is constant, or one number a row, is wrong in there:
    `(weights @ jnp.ones(…)).sum()` is off by factors, or infinite. The fusion ends at a `select`
    whose predicate is not known. (It does not at an `optimization_barrier`, which is gone by then;
    but one around the predicate goes too late for the `select` to be simplified.)

    Cost: x is copied on a CPU, nothing elsewhere.
    """
    return jax.lax.platform_dependent(x, cpu=_selected, default=lambda x: x)


def _selected(x: jax.Array) -> jax.Array:
    return jnp.where(jax.lax.optimization_barrier(True), x, 0)


@jax.custom_jvp
def opaque_gradient(x: jax.Array) -> jax.Array:
    """x itself, whose gradient is `opaque`: the products of a backward pass end in it."""
    return x


@opaque_gradient.defjvp
def _(primals, tangents):
    return primals[0], opaque(tangents[0])


def reductions_are_right() -> bool:
    """Whether `opaque` does what it should with this compiler, on JAX's default device."""
    weights = jnp.ones((2, 3, 67, 61))
    total = jax.jit(lambda x: opaque(x @ jnp.ones((2, 3, 61, 17))).sum())(weights)
    return bool(jnp.isclose(total, 61 * 2 * 3 * 67 * 17, rtol=1e-4))
