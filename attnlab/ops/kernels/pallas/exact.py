"""`implementation="pallas"`: exact attention by this project's kernels.

They serve the dot product and the additive score under masks that show each query one range of
keys: causal, window, padding and these with `&`. The kernel itself is that of `tpu` or `gpu`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp

from attnlab.core.axes import pad_to_multiple
from attnlab.devices.platforms import Platform
from attnlab.masks import Mask
from attnlab.ops.kernels.call import Call
from attnlab.ops.kernels.pallas import block_sizes, kernels_for, why_not_on
from attnlab.ops.kernels.pallas.ranges import Config, Inputs, Visible
from attnlab.ops.layout import Prepared, merge_output, over_heads
from attnlab.scores import Additive, Dot, Score


def refusal(call: Call) -> str | None:
    """Why the kernels do not serve the call; None where they do."""
    if call.bias is not None or call.dropout_rate > 0.0:
        return "takes no bias and no dropout"
    for part in call.parts:
        if part.band is None and part.lengths is None:
            return f"takes masks of one range a query only, not {type(part).__name__}"
    if reason := why_not_on(call.platform, call.pallas.interpret):
        return reason
    x = jax.eval_shape(call.prepared)
    if type(x.score) not in (Additive, Dot) or x.k.shape[2] != 1:
        return f"computes dot products and the additive score, not {type(call.score).__name__}"
    config = _config(call, x.score)
    inputs, visible = jax.eval_shape(lambda: _operands(call.prepared(), config))
    return kernels_for(call.platform).refusal(inputs, visible, config)


def attend(call: Call) -> jax.Array:
    """The context [*B, T, N, D]."""
    x = call.prepared()
    config = _config(call, x.score)

    def of_rows(x: Prepared) -> jax.Array:
        context = _attend(config, call.platform, *_operands(x, config))
        return context[:, : x.q.shape[3]].reshape(*x.q.shape[:-1], x.v.shape[-1])

    return merge_output(over_heads(of_rows, x), call.q.shape[:-3])


def _config(call: Call, score: Score) -> Config:
    """Of a prepared score: the scale of a dot product is what q does not have already."""
    back, ahead = _reach(call)
    kind, scale = ("dot", cast(float, score.scale)) if isinstance(score, Dot) else ("additive", 1.0)
    blocks = block_sizes(call.pallas, call.platform, kind, (back, ahead))
    dtype, interpret = call.q.dtype, call.pallas.interpret
    return Config(*blocks, back, ahead, dtype, call.precision, interpret, scale)


def _operands(x: Prepared, config: Config) -> tuple[Inputs, Visible]:
    """Rows of whole blocks: [B, K, G, …] flat; queries that are padding see nothing."""
    num_queries, num_keys = x.q.shape[3], x.k.shape[3]
    rows = math.prod(x.q.shape[:3])
    w = None
    if isinstance(x.score, Additive):
        hidden = x.q.shape[4]
        # [1, K|1, G|1, H] to [B, K, G, H], and a row of it for each row of the queries
        w = jnp.broadcast_to(jnp.asarray(x.score.w), (*x.q.shape[:3], hidden))
        w = w.reshape(rows, hidden).astype(jnp.float32)
    # [B or 1, T]: heads share them, so V is B or 1.
    first, stop = _range(x.mask, num_queries, num_keys)
    extent = jnp.maximum(stop - first, 0)
    # [M, T, H], [M / G, S, H], [M / G, S, D] with M = B·K·G, padded to whole blocks
    inputs = Inputs(
        pad_to_multiple(x.q.reshape(rows, *x.q.shape[3:]), 1, config.block_q),
        pad_to_multiple(x.k.reshape(-1, *x.k.shape[3:]), 1, config.block_k),
        pad_to_multiple(x.v.reshape(-1, *x.v.shape[3:]), 1, config.block_k),
        w,
    )
    first = pad_to_multiple(first, 1, config.block_q)
    extent = pad_to_multiple(extent, 1, config.block_q)
    return inputs, Visible(first, extent)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(config: Config, platform: Platform, x: Inputs, visible: Visible) -> jax.Array:
    return _forward(config, platform, x, visible)[0]


def _forward(config, platform, x, visible):
    context, lse = kernels_for(platform).forward(x, visible, config)
    return context, (x, visible, context, lse)


def _backward(config, platform, residuals, dout):
    x, visible, context, lse = residuals
    # [M, T]
    delta = jnp.sum(dout.astype(lse.dtype) * context.astype(lse.dtype), axis=-1)
    grads = kernels_for(platform).backward(x, visible, config, dout, lse, delta)
    grads = jax.tree.map(lambda grad, primal: grad.astype(primal.dtype), Inputs(*grads), x)
    return grads, None


_attend.defvjp(_forward, _backward)


def _range(mask: Mask | None, num_queries: int, num_keys: int) -> tuple[jax.Array, jax.Array]:
    """[B or 1, T]: the first key that each query sees, and one past the last."""
    i = jnp.arange(num_queries, dtype=jnp.int32)[None]  # [1, T]
    first, stop = jnp.zeros_like(i), jnp.full_like(i, num_keys)

    def of_each_example(x: Any) -> jax.Array:
        """[B|1, 1] in layout to [B|1, 1] beside i, int32; of a number too."""
        return jnp.asarray(x, jnp.int32).reshape(-1, 1)

    for part in () if mask is None else mask.parts():
        if part.band is not None:
            band = part.band._replace(q_offset=of_each_example(part.band.q_offset))
            start, end = band.key_range(i, i, num_keys)
            first, stop = jnp.maximum(first, start), jnp.minimum(stop, end)
        if part.lengths is not None:
            kv_lengths, q_lengths = part.lengths
            stop = jnp.minimum(stop, of_each_example(kv_lengths))
            if q_lengths is not None:
                stop = jnp.where(i < of_each_example(q_lengths), stop, 0)
    first, stop = jnp.broadcast_arrays(first, stop)
    return jnp.clip(first, 0, num_keys), jnp.clip(stop, 0, num_keys)


def _reach(call: Call) -> tuple[int | None, int | None]:
    """How far before and after its own index a query sees, where that is known while tracing."""
    offsets: list[Any] = [part.band.q_offset for part in call.parts if part.band is not None]
    if call.mask is None or not all(isinstance(x, int) and x == offsets[0] for x in offsets):
        return None, None
    offset = offsets[0] if offsets else 0
    left, right = call.mask.reach
    # Reach is counted from a query's position, `back` and `ahead` from its index.
    num_queries, num_keys = call.lengths
    back = None if left is None else min(max(left - offset, 0), num_queries)
    ahead = None if right is None else min(max(right + offset, 0), num_keys)
    return back, ahead
