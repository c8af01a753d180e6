"""How much the gradient of a training differs from one batch, and one draw, to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from attnlab.training.objective import Batch, Objective
from attnlab.training.step import divisors, gradients_of


def gradient_noise(
    model: nn.Module, objective: Objective, batches: Sequence[Batch], *, streams: Sequence[str]
) -> Callable[[Any], dict[str, float]]:
    """(variables) → variance and norm of the gradient over batches, for `Task.watch`.

    With g_i the mean gradient of batch i, drawn with a key of its own, and ḡ their mean:

        gradient_variance = Σ_i ‖g_i − ḡ‖² / (n − 1),     mean_gradient_norm = ‖ḡ‖.

    Keys and batches are the same at each call, so that a curve shows the parameters' part.

    The batches, two at least, have equal shapes.
    """
    if len(batches) < 2:
        raise ValueError(f"a variance takes at least 2 batches; got {len(batches)}")
    take = gradients_of(model, objective, streams)

    @jax.jit
    def mean_gradient(variables, batch, key):
        collections = dict(variables)
        params = collections.pop("params")
        over, shares = divisors(objective.counts(batch), objective.over)
        (gradient, _), _ = take(params, collections, batch, shares, key)
        return jax.tree.map(lambda g: g / over, gradient)

    def watch(variables: Any) -> dict[str, float]:
        total, squares = None, 0.0
        for i, batch in enumerate(batches):
            key = jax.random.fold_in(jax.random.key(0), i)
            gradient = mean_gradient(variables, batch, key)
            squares += float(optax.tree.norm(gradient, squared=True))
            total = gradient if total is None else jax.tree.map(jnp.add, total, gradient)
        n = len(batches)
        of_mean = float(optax.tree.norm(total, squared=True)) / n**2
        return {
            "gradient_variance": (squares - n * of_mean) / (n - 1),
            "mean_gradient_norm": of_mean**0.5,
        }

    return watch
