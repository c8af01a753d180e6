"""A function to check on a device, and how its numbers are judged.

The inputs are numbers that bfloat16 can hold, so that one truth in float64 serves every dtype.

An output passes if its rms error is at most twice that of the plain version, which computes the
same function densely in the same dtype on the same device, plus one rounding of the result. The
plain version itself is held to eight times the error of exact arithmetic on inputs that are rounded
as the device's matrix products round them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import oracle

Arrays = dict[str, Any]

# How default precision rounds a float32 operand: to itself, TF32's 10 bits, bfloat16's 7.
_ROUNDINGS = {"cpu": 2.0**-24, "gpu": 2.0**-11, "tpu": 2.0**-8}


@dataclasses.dataclass(frozen=True)
class Problem:
    """One function, its arguments, and the truth.

    Attributes:
      arrays: the arguments by name; integers get no gradient.
      dcontext: the cotangent of the context.
      truth: (arrays, dcontext) -> "context" and "d_NAME" in float64.
      apply: (implementation, arrays) -> context.
      plain: arrays -> context, densely.
      plain_is: the implementation that `plain` is, if it is one.
      other_future: (arrays, t) -> arrays that differ at positions ≥ t; None if not causal.
    """

    arrays: Arrays
    dcontext: np.ndarray
    truth: Callable[[Arrays, np.ndarray], Arrays]
    apply: Callable[[str, Arrays], jax.Array]
    plain: Callable[[Arrays], jax.Array]
    plain_is: str | None
    other_future: Callable[[Arrays, int], Arrays] | None

    def given(self, arrays: Arrays, dtype: str) -> tuple[Arrays, Arrays, jax.Array]:
        """The arguments of `program` on the device."""
        real = {k: jnp.asarray(x, dtype) for k, x in arrays.items() if x.dtype.kind == "f"}
        whole = {k: jnp.asarray(x) for k, x in arrays.items() if x.dtype.kind != "f"}
        return real, whole, jnp.asarray(self.dcontext, dtype)

    @property
    def cut(self) -> int:
        """t of `other_future`: in the middle, and at no block's edge."""
        return self.dcontext.shape[1] // 2 + 3


def program(apply: Callable[[Arrays], jax.Array]) -> Any:
    """(reals, integers, dcontext) -> the context and the gradients by name, jitted."""

    def run(real: Arrays, whole: Arrays, dcontext: jax.Array) -> Arrays:
        context, pull_back = jax.vjp(lambda real: apply(real | whole), real)
        grads = pull_back(dcontext.astype(context.dtype))[0]
        return {"context": context} | {f"d_{name}": x for name, x in grads.items()}

    return jax.jit(run)


def representable(x: Any) -> np.ndarray:
    """The nearest numbers that bfloat16 can hold, in float64; integers as they are."""
    x = np.asarray(x)
    return x if x.dtype.kind != "f" else x.astype(jnp.bfloat16).astype(np.float64)


def moved(arrays: Arrays, by: float) -> Arrays:
    """Every number off by up to a fraction `by` of it."""
    signs = np.random.default_rng(2)
    return {
        name: x * (1 + by * signs.choice([-1, 1], x.shape)) if x.dtype.kind == "f" else x
        for name, x in arrays.items()
    }


def rounding(dtype: str, platform: str) -> float:
    """How much of an operand a matrix product may round away, relative to it."""
    half = float(jnp.finfo(dtype).eps) / 2
    return half if dtype != "float32" else _ROUNDINGS.get(platform, half)


def judge(got: Arrays, plain: Arrays, true: Arrays, dtype: str) -> dict[str, float]:
    """rms error over budget of every output; at most 1 passes."""
    eps = float(jnp.finfo(dtype).eps)
    return {
        name: over(oracle.rms(oracle.errors(got[name], x)), oracle.budget(plain[name], x, eps))
        for name, x in true.items()
    }


def judge_plain(plain: Arrays, off: Arrays, true: Arrays, dtype: str) -> dict[str, float]:
    """The same for the plain version; `off` is the truth of `moved` inputs."""
    eps = float(jnp.finfo(dtype).eps)
    return {
        name: over(
            oracle.rms(oracle.errors(plain[name], x)),
            4 * oracle.budget(off[name], x, eps / 4),
        )
        for name, x in true.items()
    }


def past_moved(before: Any, after: Any, cut: int, dtype: str, platform: str) -> float:
    """How far another future moved the past, over eight roundings of the largest number there."""
    before, after = (np.asarray(x, np.float64)[:, :cut] for x in (before, after))
    return over(oracle.error(after, before), 8 * rounding(dtype, platform) * np.abs(before).max())


def over(error: float, budget: float) -> float:
    """error / budget; 0 where there is no error, and finite so that JSON can hold it."""
    if error == 0:
        return 0.0
    return float(min(error / budget, 1e30)) if budget > 0 else 1e30
