"""Inputs of a module to the hashing of its route: rng stream, vectors, learned center."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attnlab.core.checks import require
from attnlab.modules.conventions import Host
from attnlab.ops.lsh.inputs import read_mask
from attnlab.ops.routes import Route

_MOMENTUM = 0.99


def hash_options(
    host: Host, route: Route, x: jax.Array, mask: Any, *, training: bool, decode: bool
) -> dict[str, Any]:
    """The keywords of the route that say how to hash.

    Args:
      host: host that has the rng stream "hash" and the collection "hash_stats".
      route: route of the module; an exact one needs no such keywords.
      x: queries before rotary, [*B, L, N, H].
      mask: mask of the keys.
      training: whether the learned center may move.
      decode: whether tokens are hashed as those in the cache, by its key where it has one.
    """
    options: dict[str, Any] = {}
    key = host.get_variable("cache", "hash_key") if decode else None
    if key is not None:
        options["hash_key"] = key
    elif "hash_key" in route.hash_keywords and host.has_rng("hash"):
        options["hash_key"] = host.make_rng("hash")
    if "hash_inputs" in route.hash_keywords:
        options["hash_inputs"] = x
    if "center" in route.hash_keywords:
        options["center"] = learned_center(host, x, mask, training=training)
    return options


def learned_center(host: Host, x: jax.Array, mask: Any, *, training: bool) -> jax.Array:
    """The mean of x for each head, [N, H], as far as earlier steps of training have found it.

    It begins at 0 and moves after it was read, so that no token of the step at hand is in it:
    center ← 0.99 · center + 0.01 · (mean of the valid tokens of the batch). It moves only if the
    collection "hash_stats" is mutable, as the statistics of `nn.BatchNorm` do; and, as there, in
    every call of a module that is called twice, as for each part of a batch that is accumulated, so
    that the second reads a center with tokens of the first.

    Args:
      host: host that keeps the center as a variable.
      x: vectors to be averaged, [*B, L, N, H].
      mask: mask whose valid keys count.
      training: whether the center may move.

    Raises:
      ValueError: there is no center, and none may be made.
    """
    before = host.get_variable("hash_stats", "center")
    if before is None:
        require(
            host.is_mutable_collection("hash_stats"),
            'the learned center is in the collection "hash_stats"; got variables without it (give'
            " all that init made, not the parameters alone)",
        )
        before = jnp.zeros(x.shape[-2:], jnp.float32)
        host.put_variable("hash_stats", "center", before)
    moves = training and host.is_mutable_collection("hash_stats")
    if moves and not host.is_initializing():
        tokens = jax.lax.stop_gradient(x).astype(jnp.float32).reshape(-1, *x.shape[-2:])
        valid = read_mask(mask, x.shape[:-1], causal=False).valid
        counted = jnp.ones(len(tokens), bool) if valid is None else valid.ravel()
        count = jnp.sum(counted)
        mean = jnp.sum(jnp.where(counted[:, None, None], tokens, 0), axis=0)
        mean /= jnp.maximum(count, 1).astype(jnp.float32)
        moved = _MOMENTUM * before + (1 - _MOMENTUM) * mean
        host.put_variable("hash_stats", "center", jnp.where(count > 0, moved, before))
    return before
