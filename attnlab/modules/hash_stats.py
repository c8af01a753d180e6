"""Inputs of a module to the hashing of its route: rng stream, vectors, learned center."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.ops.lsh.inputs import read_mask
from attnlab.ops.routes import Route

__all__ = ["hash_options", "learned_center"]

_MOMENTUM = 0.99


def hash_options(
    module: nn.Module, route: Route, x: jax.Array, mask: Any, *, training: bool
) -> dict[str, Any]:
    """The keywords of the route that say how to hash.

    Args:
      module: module that has the rng stream "hash" and the collection "hash_stats".
      route: route of the module; an exact one needs no such keywords.
      x: queries before rotary, [*B, L, N, H].
      mask: mask of the keys.
      training: whether the learned center may move.
    """
    options: dict[str, Any] = {}
    if "hash_key" in route.hash_keywords and module.has_rng("hash"):
        options["hash_key"] = module.make_rng("hash")
    if "hash_inputs" in route.hash_keywords:
        options["hash_inputs"] = x
    if "center" in route.hash_keywords:
        options["center"] = learned_center(module, x, mask, training=training)
    return options


def learned_center(module: nn.Module, x: jax.Array, mask: Any, *, training: bool) -> jax.Array:
    """The mean of x for each head, [N, H], as far as earlier steps of training have found it.

    It begins at 0 and moves after it was read, so that no token of the step at hand is in it:
    center ← 0.99 · center + 0.01 · (mean of the valid tokens of the batch). It moves only if the
    collection "hash_stats" is mutable, as the statistics of `nn.BatchNorm` do; and, as there, in
    every call of a module that is called twice, so that the second reads a center with tokens of
    the first.

    Args:
      module: module that keeps the center as a variable.
      x: vectors to be averaged, [*B, L, N, H].
      mask: mask whose valid keys count.
      training: whether the center may move.
    """
    center = module.variable("hash_stats", "center", jnp.zeros, x.shape[-2:], jnp.float32)
    before = center.value
    moves = training and module.is_mutable_collection("hash_stats")
    if moves and not module.is_initializing():
        tokens = jax.lax.stop_gradient(x).astype(jnp.float32).reshape(-1, *x.shape[-2:])
        valid = read_mask(mask, x.shape[:-1], causal=False).valid
        counted = jnp.ones(len(tokens), bool) if valid is None else valid.ravel()
        count = jnp.sum(counted)
        mean = jnp.sum(jnp.where(counted[:, None, None], tokens, 0), axis=0)
        mean /= jnp.maximum(count, 1).astype(jnp.float32)
        moved = _MOMENTUM * before + (1 - _MOMENTUM) * mean
        center.value = jnp.where(count > 0, moved, before)
    return before
