"""Functions of each position alone, computed for some positions at a time, and undone likewise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attnlab.devices.meshes import vary_like


class Undone(NamedTuple):
    """A function's value, and what goes back through it.

    Attributes:
      value: value of the function.
      d_params: gradient of the parameters.
      d_x: gradient of the input.
    """

    value: jax.Array
    d_params: Any
    d_x: jax.Array


def in_chunks(
    function: Callable[[Any, jax.Array, Any, Any], jax.Array],
    size: int | None,
    prepare: Callable[[Any], Any] = lambda params: params,
) -> tuple[Callable[..., jax.Array], Callable[..., Undone]]:
    """The function in chunks, and one that finds its value and its gradient in one pass.

    A reversible layer's backward pass wants both. One after the other they would compute each chunk
    twice, as its hidden units are not kept.

    Args:
      function: function of (parameters, x [*B, n, D], rest, index of the chunk), of each of the n
        positions alone.
      size: number of positions in a chunk; None = all of them.
      prepare: function of the parameters, called before a loop over chunks.

    Returns:
      (parameters, x [*B, T, D], rest) → [*B, T, D], and (parameters, x, rest, cotangent) →
      `Undone`. Both hold what the function keeps of one chunk at a time.
    """

    def forward(params: Any, x: jax.Array, rest: Any) -> jax.Array:
        if size is None or x.shape[-2] <= size:
            return function(params, x, rest, 0)
        params = prepare(params)

        def of_chunk(_, part):
            index, chunk = part
            return None, function(params, chunk, rest, index)

        _, y = lax.scan(of_chunk, None, _cut(size, x))
        return _join(y, x.shape)

    def undo(params: Any, x: jax.Array, rest: Any, cotangent: jax.Array) -> Undone:
        def undo_chunk(params, index, chunk, d_value):
            def call_chunk(params, chunk):
                return function(params, chunk, rest, index)

            value, pull = jax.vjp(call_chunk, params, chunk)
            return Undone(value, *pull(d_value))

        if size is None or x.shape[-2] <= size:
            return undo_chunk(params, 0, x, cotangent)
        params, to_params = jax.vjp(prepare, params)

        def of_chunk(d_params, part):
            undone = undo_chunk(params, *part)
            return jax.tree.map(jnp.add, d_params, undone.d_params), (undone.value, undone.d_x)

        start = vary_like(jax.tree.map(jnp.zeros_like, params), cotangent)
        d_params, (values, d_xs) = lax.scan(of_chunk, start, _cut(size, x, cotangent))
        (d_params,) = to_params(d_params)
        return Undone(_join(values, x.shape), d_params, _join(d_xs, x.shape))

    return forward, undo


def _cut(size: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The indices of the chunks, and the chunks [chunks, *B, size, D] of each array [*B, T, D]."""
    *batch, length, width = arrays[0].shape
    number = -(-length // size)

    def chunks(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0)] * len(batch) + [(0, number * size - length), (0, 0)])
        return jnp.moveaxis(x.reshape(*batch, number, size, width), len(batch), 0)

    return jnp.arange(number), *map(chunks, arrays)


def _join(chunks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `_cut`, to an array of the shape."""
    *batch, length, width = shape
    number, size = chunks.shape[0], chunks.shape[-2]
    x = jnp.moveaxis(chunks, 0, len(batch)).reshape(*batch, number * size, width)
    return x[..., :length, :]
