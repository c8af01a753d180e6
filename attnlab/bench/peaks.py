"""The default device's peaks, measured: large products, and functions in its caches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attnlab.bench.measure import SAMPLE_SECONDS, WAKE_SECONDS, sample
from attnlab.bench.roofline import PRODUCTS, Peak, Unit

# The fastest is the peak. On a CPU arrays stay in its caches.
_ROWS = {"cpu": (512, 1024), "": (4096, 8192)}  # and columns, of a matrix
_NUMBERS = {"cpu": (2**18, 2**20), "": (2**22, 2**24)}
_CHAIN = 4  # of a function, computed in one loop: each number is read and written once
_STEPS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "exp": lambda y, x: jnp.exp(-y) + x,
    "tanh": lambda y, x: jnp.tanh(y) + x,
    "div": lambda y, x: x / (y + x),
}


def measure(unit: Unit, *, repeats: int) -> Peak:
    """The peak of a unit, the best of `repeats` timed samples of each size."""
    device = jax.local_devices()[0]
    sizes = _ROWS if unit.name == PRODUCTS else _NUMBERS
    rates: list[float] = []
    for size in sizes.get(device.platform, sizes[""]):
        program, arguments, operations = _program(unit, size)
        compiled = jax.jit(program).lower(*arguments).compile()
        began = time.perf_counter()
        while time.perf_counter() - began < WAKE_SECONDS:
            start = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
        calls = max(1, math.ceil(SAMPLE_SECONDS / (time.perf_counter() - start)))
        for _ in range(repeats):
            block_each = device.platform == "cpu"
            rates.append(operations / sample(compiled, arguments, calls, block_each=block_each))
    return Peak(unit, max(rates), tuple(rates))


def _program(unit: Unit, size: int) -> tuple[Callable[..., jax.Array], tuple[jax.Array, ...], int]:
    """A program, its arguments and its operations."""
    if unit.name == PRODUCTS:
        matrix = jax.random.normal(jax.random.key(0), (size, size)).astype(unit.dtype)
        return jnp.matmul, (matrix, matrix), 2 * size**3
    numbers = jax.random.uniform(jax.random.key(0), (size,), minval=0.5).astype(unit.dtype)

    def chain(x: jax.Array) -> jax.Array:
        y = x
        for _ in range(_CHAIN):
            y = _STEPS[unit.name](y, x)
        return y

    return chain, (numbers,), _CHAIN * size
