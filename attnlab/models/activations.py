"""The arrays that the layers of a model give their attention, to be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.core.checks import require

_NAMES = ("query_key", "value")


def shared_projections(
    model: nn.Module, variables: Mapping[str, Any], tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Queries, which are the keys, and values of the layers where these two are one projection.

    Args:
      model: model of tokens, whose layers are modules of their own (`scan_layers=False`).
      variables: variables of the model.
      tokens: token ids [B, L].

    Returns:
      Two arrays [layers, B, L, N, H], the lowest layer first.

    Raises:
      ValueError: no layer has a shared projection.
    """

    def is_projection(module: nn.Module, _: str) -> bool:
        return module.name in _NAMES

    _, kept = model.apply(variables, tokens, capture_intermediates=is_projection)
    layers = list(_with_both(kept.get("intermediates", {})))
    require(bool(layers), "no layer has queries that are its keys; give a model with routes.LSH")

    def stack(name: str) -> jax.Array:
        return jnp.stack([layer[name]["__call__"][0] for layer in layers])

    return stack("query_key"), stack("value")


def _with_both(tree: Any):
    """The parts of a tree that have both projections, in the order of the layers' numbers."""
    if not isinstance(tree, Mapping):
        return
    if all(name in tree for name in _NAMES):
        yield tree
        return
    for name in sorted(tree, key=_number):
        yield from _with_both(tree[name])


def _number(name: str) -> tuple[str, int]:
    """A name that ends with a number, so that layer_10 comes after layer_9."""
    stem, _, number = name.rpartition("_")
    return (stem, int(number)) if number.isdigit() else (name, 0)
