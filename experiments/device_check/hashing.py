"""`hash_buckets` on a device against float64.

A bucket is the axis that a projection is nearest to, so where two axes are equally near to rounding
either is right. The device sums H products in float32, in any order: an error of at most
(H + 1)·2⁻²⁴·Σ|x_h r_h| a projection. A bucket is wrong if another axis is nearer than its own by
more than the two of them may be off.
"""

from typing import Any

import jax
import numpy as np

from attnlab.ops.lsh.hashing import Rotations, hash_buckets, make_rotations
from experiments.device_check.problem import over, representable

_SHAPE = (2, 1024, 4, 64)  # [B, L, N, H]
_ROUNDS, _BUCKETS = 8, 512  # two factors: 16 · 32


def lowered(dtype: str) -> jax.stages.Lowered:
    """The program, of `arguments`."""
    return jax.jit(hash_buckets).lower(*arguments(dtype))


def arguments(dtype: str) -> tuple[jax.Array, Rotations]:
    """Normal tokens, and rotations for them."""
    x = representable(np.random.default_rng(0).normal(size=_SHAPE))
    rotations = make_rotations(
        jax.random.key(0),
        num_heads=_SHAPE[2],
        head_dim=_SHAPE[3],
        num_hashes=_ROUNDS,
        num_buckets=_BUCKETS,
    )
    return jax.numpy.asarray(x, dtype), rotations


def judge(buckets: Any, x: Any, rotations: Rotations) -> float:
    """How much nearer than its own another axis is, over rounding; at most 1 is right.

    Args:
      buckets: [B, R, L, N], to be judged.
      x: [B, L, N, H].
      rotations: of N heads.
    """
    left, x = np.asarray(buckets), np.asarray(x, np.float64)
    worst = 0.0
    for factor in rotations.factors:
        r = np.asarray(factor, np.float64)  # [N, R, B_f/2, H]
        half = r.shape[2]
        left, digit = np.divmod(left, 2 * half)
        y = np.einsum("nrah,blnh->brlna", r, x)
        rounding = (x.shape[-1] + 1) * 2.0**-24 * np.einsum("nrah,blnh->brlna", abs(r), abs(x))
        nearest = np.abs(y).argmax(-1)[..., None]
        axis = (digit % half)[..., None]
        own = np.take_along_axis(y, axis, -1) * np.where(digit < half, 1, -1)[..., None]
        short = np.take_along_axis(np.abs(y), nearest, -1) - own
        allowed = sum(np.take_along_axis(rounding, i, -1) for i in (nearest, axis))
        worst = max(worst, over(short, allowed))
    return worst if not left.any() else over(1.0, 0.0)  # no such bucket
