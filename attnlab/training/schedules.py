"""Learning rates over steps: functions of the step, counted from 0, as optax takes them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from attnlab.core.checks import require


def fitted_warmup(warmup_steps: int, total_steps: int, least: int = 1) -> int:
    """The warm-up of a recipe that is trained for fewer steps: half of them at most, or `least`.

    >>> fitted_warmup(100, 1000), fitted_warmup(100, 7), fitted_warmup(100, 1)
    (100, 3, 1)
    """
    return max(least, min(warmup_steps, total_steps // 2))


def rsqrt(peak: float, warmup_steps: int) -> optax.Schedule:
    """Rises linearly to `peak` at the `warmup_steps`-th step, then falls as step^−½.

    Vaswani 2017, §5.3, is the peak (d_model · warmup_steps)^−½.
    """
    require(warmup_steps >= 1, f"warmup_steps must be at least 1; got {warmup_steps}")
    return _warmed_up(peak, warmup_steps, lambda step: jnp.sqrt(warmup_steps / step))


def linear(peak: float, warmup_steps: int, total_steps: int) -> optax.Schedule:
    """Rises linearly to `peak` at the `warmup_steps`-th step, then falls linearly.

    It would be 0 one step after the last. Devlin et al. 2018, §A.2; in the released code the fall
    counts from the first step, so that the rate drops where the warm-up ends, by warmup_steps /
    total_steps of the peak.
    """
    _require_fall(warmup_steps, total_steps)

    def falling(step):
        return jnp.maximum((total_steps + 1 - step) / (total_steps + 1 - warmup_steps), 0)

    return _warmed_up(peak, warmup_steps, falling)


def cosine(peak: float, warmup_steps: int, total_steps: int) -> optax.Schedule:
    """Rises linearly to `peak` at the `warmup_steps`-th step, then falls as half a cosine.

    It would be 0 one step after the last. Without restarts: Loshchilov & Hutter 2017, Eq. 5.
    """
    _require_fall(warmup_steps, total_steps)

    def falling(step):
        done = jnp.clip((step - warmup_steps) / (total_steps + 1 - warmup_steps), 0, 1)
        return (1 + jnp.cos(jnp.pi * done)) / 2

    return _warmed_up(peak, warmup_steps, falling)


def constant(peak: float, warmup_steps: int = 0) -> optax.Schedule:
    """Rises linearly to `peak` at the `warmup_steps`-th step and stays there."""
    return _warmed_up(peak, warmup_steps, lambda step: 1.0)


def _warmed_up(
    peak: float, warmup_steps: int, after: Callable[[jax.Array], ArrayLike]
) -> optax.Schedule:
    """`peak` times a linear rise over the warm-up, or what comes after it where that is less."""

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1
        return peak * jnp.minimum(step / max(warmup_steps, 1), after(step))

    return schedule


def _require_fall(warmup_steps: int, total_steps: int) -> None:
    require(
        total_steps >= warmup_steps,
        f"the learning rate falls after its warm-up: total_steps must be at least warmup_steps; "
        f"got {total_steps} and {warmup_steps}",
    )
