"""The "cache" collection of a module that decodes: what it keeps of the tokens so far."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.checks import require
from attnlab.ops.routes import LSH

__all__ = ["append_to_cache", "cache_index", "cut_to_queries", "decode_by_hash"]


def cache_index(module: nn.Module) -> nn.Variable:
    """How many tokens are in the cache."""
    return module.variable("cache", "cache_index", lambda: jnp.zeros((), jnp.int32))


def append_to_cache(
    module: nn.Module, index: nn.Variable, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Writes T new keys and values behind the `index` cached ones; returns all of them.

    Args:
      module: whose variables they are; while it is initialised, their length becomes the cache's.
      index: of the cache, moved on by T.
      k: [*B, T, K, H].
      v: [*B, T, K, D].
    """
    require(
        module.is_initializing() or module.has_variable("cache", "cached_key"),
        "decode=True needs a cache; got none (init with decode=True and inputs as long as the"
        ' cache should be, and apply with mutable=["cache"])',
    )
    cached_k = module.variable("cache", "cached_key", jnp.zeros, k.shape, k.dtype)
    cached_v = module.variable("cache", "cached_value", jnp.zeros, v.shape, v.dtype)
    if module.is_initializing():
        return k, v
    size = cached_k.value.shape[-3]
    require(
        k.shape[-3] <= size,
        f"the cache holds {size} tokens; got {k.shape[-3]} at once (init with longer inputs)",
    )
    for cached, new in ((cached_k, k), (cached_v, v)):
        cached.value = jax.lax.dynamic_update_slice_in_dim(
            cached.value, new.astype(cached.value.dtype), index.value, new.ndim - 3
        )
    index.value += k.shape[-3]
    return cached_k.value, cached_v.value


def cut_to_queries(mask, bias, offset, count: int):
    """The causal rows of the whole sequence's mask and bias that belong to the new tokens."""
    mask = masks.as_mask(mask)
    if mask is not None:
        mask = mask.for_queries(offset, count)
    if bias is not None and bias.shape[-2] != 1:
        bias = jax.lax.dynamic_slice_in_dim(bias, offset, count, bias.ndim - 2)
    return masks.combine(masks.Causal(offset), mask), bias


def decode_by_hash(module: nn.Module, route: LSH, score, q, k, v, **options) -> jax.Array:
    """`route.decode` with its state in the cache, as "hash_state"; the context of the new tokens.

    Args:
      module: whose variable it is.
      route: of the module.
      score: as for `route.decode`, like all below.
      q: of the new tokens.
      k: of all tokens in the cache.
      v: likewise.
      **options: keywords.
    """
    state = module.variable("cache", "hash_state", route.empty_state, k)
    context, after = route.decode(score, q, k, v, state.value, **options)
    if not module.is_initializing():
        state.value = after
    return context
