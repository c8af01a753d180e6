"""How work and memory grow with a size: exponents, each measured at two values of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from attnlab.bench.memory import analyze

Sizes = Mapping[str, int]


def measure_exponents(
    work: Callable[[Sizes], float], bases: Mapping[str, Sizes], factor: int
) -> dict[str, float]:
    """The logs of what the work grows by when a size grows by a factor, to its base.

    Args:
      work: work at some sizes.
      bases: all sizes from which a size grows, by its name.
      factor: factor.
    """
    return {
        size: math.log(work(base | {size: factor * base[size]}) / work(base), factor)
        for size, base in bases.items()
    }


def count_bytes_between(function: Callable[..., jax.Array], shapes: Sequence[Any]) -> float:
    """The memory of a function with its backward pass, beside its inputs and outputs, compiled."""

    def with_gradients(*arguments: Any) -> Any:
        out, backward = jax.vjp(function, *arguments)
        return backward(out)

    lowered = jax.jit(with_gradients).lower(*shapes)
    return analyze(lowered, lowered.compile(), jax.default_backend()).temporary_bytes
