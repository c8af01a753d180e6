"""Values that keep XLA:CPU from computing a product wrongly, or a loop on one core."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def opaque(x: jax.Array) -> jax.Array:
    """x itself, as a value that no reduction is fused across.

    XLA:CPU (jax 0.10.2 to 0.12.0.1) fuses a reduction of 4096 elements and more with what leads to
    it. A batched product with a factor that is constant, or one number a row, is wrong in there:
    `(weights @ jnp.ones(…)).sum()` is off by factors, or infinite. The fusion ends at a `select`
    whose predicate is not known. (It does not at an `optimization_barrier`, which is gone by then;
    but one around the predicate goes too late for the `select` to be simplified.)

    Cost: x is copied on a CPU, nothing elsewhere.
    """
    return jax.lax.platform_dependent(x, cpu=_select, default=lambda x: x)


def _select(x: jax.Array) -> jax.Array:
    return jnp.where(jax.lax.optimization_barrier(True), x, 0)


def on_all_cores(i: jax.Array) -> jax.Array:
    """i itself, the number of a loop's step; the loop then runs on all cores of a CPU.

    XLA:CPU (jax 0.12.0.1) makes one kernel of a loop that has no product in it, and runs that on
    one core, also where arrays are large. A loop with a sort in it stays a loop of kernels.
    """
    return jax.lax.platform_dependent(i, cpu=_sort, default=lambda i: i)


def _sort(i: jax.Array) -> jax.Array:
    return jax.lax.sort(jnp.stack([i, i]))[0]


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
