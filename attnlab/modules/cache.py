"""The caches of a module that decodes: "cache" of the tokens so far, "static" of the source."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.biases import as_bias
from attnlab.core.axes import HeadLayout
from attnlab.core.checks import require
from attnlab.core.shapes import fit
from attnlab.modules.conventions import Host
from attnlab.ops.routes import StatefulRoute


def tokens_before(host: Host, count: int) -> jax.Array:
    """How many tokens are in the cache, to which the call adds `count`.

    A module has one cache: called twice for each token, as a shared layer is, it would go on in
    one call where the other ended. Linen's `init` shows that, where no call goes on after another.

    Raises:
      ValueError: another call of the same `init` made the cache.
    """
    before = host.get_variable("cache", "cache_index")
    if isinstance(host, nn.Module) and host.is_initializing():
        _require_first(host, before is None)
    if before is None:
        before = jnp.zeros((), jnp.int32)
    host.put_variable("cache", "cache_index", before + (0 if host.is_initializing() else count))
    return before


def _require_first(module: nn.Module, is_first: bool) -> None:
    name = type(module).__name__
    require(
        is_first,
        f"{name} keeps one cache and one source; got a second call of {'/'.join(module.path)} where"
        f" they are made (make a {name} for each call; layers share parameters, not caches, by"
        ' nn.scan with variable_broadcast="params", variable_axes={"cache": 0, "static": 0})',
    )


def append_to_cache(
    host: Host, before: ArrayLike, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Writes T new keys and values behind the cached ones; returns all, in the new ones' dtypes.

    Args:
      host: host that keeps keys and values; while it is initialized, their length becomes the
        length of the cache.
      before: number of tokens in the cache before them.
      k: new keys [*B, T, K, H].
      v: new values [*B, T, K, D].

    Raises:
      ValueError: there is no cache, it is too short, or of another batch or other heads.
    """
    new = {"cached_key": k, "cached_value": v}
    if host.is_initializing():
        for name, x in new.items():
            host.put_variable("cache", name, jnp.zeros(x.shape, x.dtype))
        return k, v
    cached = {name: host.get_variable("cache", name) for name in new}
    require(
        cached["cached_key"] is not None,
        "decode=True needs a cache; got none (init with decode=True and inputs as long as the"
        ' cache should be, and apply with mutable=["cache"]; in NNX call init_cache with their'
        " shape)",
    )
    remedy = "make the cache for this batch and module"
    for name, x in new.items():
        what = name.removeprefix("cached_") + "s"
        fit(f"cached {what}: *B S K H", cached[name], f"new {what}: *B T K H", x, remedy=remedy)
        most, count = cached[name].shape[-3], x.shape[-3]
        require(
            count <= most,
            f"a call has no more tokens than the cache holds, {most}; got {count} (make the cache"
            " as long as the sequence will be)",
        )
        cached[name] = jax.lax.dynamic_update_slice_in_dim(
            cached[name], x.astype(cached[name].dtype), before, x.ndim - 3
        )
        host.put_variable("cache", name, cached[name])
    return cached["cached_key"].astype(k.dtype), cached["cached_value"].astype(v.dtype)


def keep_static(
    host: Host, make: Callable[[], tuple[jax.Array, jax.Array]]
) -> tuple[jax.Array, jax.Array]:
    """`make()`, keys and values that never change: computed by the first call, read by later ones.

    While the module is initialized nothing is kept: what it is given then is not the source of
    later calls. In Linen a second call of this module by the one that has it, where the first made
    them, is refused: it may have another source. Where a compact layer that has it is called twice,
    or inside `nn.jit`, `nn.remat` and their like, that is not seen.
    """
    if host.is_initializing():
        return make()
    k = host.get_variable("static", "source_key")
    if isinstance(host, nn.Module):
        _require_one_source(host, makes=k is None)
    if k is not None:
        return k, host.get_variable("static", "source_value")
    k, v = make()
    host.put_variable("static", "source_key", k)
    host.put_variable("static", "source_value", v)
    return k, v


def _require_one_source(module: nn.Module, *, makes: bool) -> None:
    assert module.scope is not None
    caller, mark = module.scope.parent, f"{module.name} made"
    _require_first(module, caller is None or not caller.name_reserved(mark, "static"))
    if makes and caller is not None:
        caller.reserve(mark, "static")


def cut_to_queries(mask, bias, offset, q: jax.Array, k: jax.Array, *, causal: bool):
    """The rows of the whole sequence's mask and bias that belong to the new tokens.

    Args:
      mask: mask of the whole sequence.
      bias: bias of the whole sequence.
      offset: position of the first new token.
      q: queries of the new tokens [*B, T, N, H].
      k: keys of all tokens [*B, S, K, H].
      causal: whether the keys are those of the cache, so that there are as many rows as keys.

    Raises:
      ValueError: mask or bias does not have the rows of all tokens that the cache holds.
    """
    mask, bias, count = masks.as_mask(mask), as_bias(bias), q.shape[-3]
    if causal:
        _require_whole(mask, bias, q, k)
    if mask is not None:
        mask = mask.for_queries(offset, count)
    if bias is not None:
        bias = bias.for_queries(offset, count, k.shape[-3])
    return masks.combine(masks.Causal(offset) if causal else None, mask), bias


def _require_whole(mask: masks.Mask | None, bias, q: jax.Array, k: jax.Array) -> None:
    length = k.shape[-3]
    layout = HeadLayout.of(q, k)._replace(num_queries=length)
    try:  # a slice of too few rows would begin where it still fits
        if mask is not None:
            mask.in_layout(layout)
        if bias is not None:
            bias.in_layout(layout)
    except ValueError as error:
        raise ValueError(
            f"decode=True takes mask and bias of the whole sequence, {length} tokens as in the"
            f" cache: {error}"
        ) from None


def decode_with_state(host: Host, route: StatefulRoute, score, q, k, v, **options) -> jax.Array:
    """`route.decode` with its state in the cache, as "route_state"; the new tokens' context.

    Args:
      host: host that keeps the state.
      route: route of the module.
      score: score, as for `route.decode`.
      q: queries of the new tokens.
      k: keys of all tokens in the cache.
      v: values of all tokens in the cache.
      **options: other keywords of `route.decode`.
    """
    before = host.get_variable("cache", "route_state")
    if before is None:
        before = route.empty_state(k)
    context, after = route.decode(score, q, k, v, before, **options)
    host.put_variable("cache", "route_state", before if host.is_initializing() else after)
    return context
