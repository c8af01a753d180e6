"""Leading axes: from the public [*B, N, ...] to the [B, K, G, ...] that engines compute on.

Letters: *B batch axes, B all of them merged, N query heads, K key/value heads, G = N / K.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.core.checks import as_array
from attnlab.core.shapes import fit


class HeadLayout(NamedTuple):
    """The sizes that an engine works with: all batch axes merged into one, heads split as K x G."""

    batch_shape: tuple[int, ...]
    num_kv_heads: int
    group_size: int
    num_queries: int
    num_keys: int

    @classmethod
    def of(cls, q: jax.Array, k: jax.Array) -> HeadLayout:
        """Of queries [*B, T, N, H] and keys [*B, S, K, H]."""
        *batch, num_queries, num_heads, _ = q.shape
        num_keys, num_kv_heads = k.shape[-3:-1]
        group_size = num_heads // num_kv_heads
        return cls(tuple(batch), num_kv_heads, group_size, num_queries, num_keys)


def lead_with_ones(x: jax.Array, ndim: int) -> jax.Array:
    """Adds leading axes of length 1 up to rank `ndim`: explicit, as NumPy would not be."""
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def split_heads(array: ArrayLike, layout: HeadLayout, name: str, remedy: str = "") -> jax.Array:
    """[*B|1, N|1, T|1, S|1] to [B|1, K|1, G|1, T|1, S|1].

    Axes of 1 stay so, but those of *B only if all are 1: merged, they become one axis.
    """
    array = as_array(name, array)
    fit(
        f"{name}: *B|1 N|1 T|1 S|1",
        array,
        B=layout.batch_shape,
        N=layout.num_kv_heads * layout.group_size,
        T=layout.num_queries,
        S=layout.num_keys,
        remedy=remedy,
    )
    array = lead_with_ones(array, len(layout.batch_shape) + 3)
    *batch, num_heads, rows, columns = array.shape
    split = (1, 1) if num_heads == 1 else (layout.num_kv_heads, layout.group_size)
    if any(size != 1 for size in batch):
        array = jnp.broadcast_to(array, (*layout.batch_shape, *array.shape[-3:]))
    return array.reshape(-1, *split, rows, columns)


def merge_batch(x: ArrayLike, layout: HeadLayout, name: str, rank: int) -> jax.Array:
    """[*B|1, ...] to [B|1, 1, ...]: one batch axis and an axis of 1 for the key/value heads.

    Args:
      x: array with leading batch axes.
      layout: sizes of the attention.
      name: name of x, for the message.
      rank: number of the axes behind those of the batch.
    """
    x = jnp.asarray(x)
    axes = ["*B|1", *(f"axis_{i + 1}" for i in range(rank))]
    fit(f"{name}: {' '.join(axes)}", x, B=layout.batch_shape)
    batch = x.shape[: x.ndim - rank]
    rest = x.shape[x.ndim - rank :]
    if all(size == 1 for size in batch):
        return x.reshape(1, 1, *rest)
    x = lead_with_ones(x, len(layout.batch_shape) + rank)
    x = jnp.broadcast_to(x, (*layout.batch_shape, *rest))
    return x.reshape(-1, 1, *rest)


def pad_to_multiple(x: jax.Array, axis: int, multiple: int) -> jax.Array:
    """Zeros behind x along an axis, up to whole multiples."""
    axis %= x.ndim
    size = x.shape[axis]
    # Not -size % multiple: of a symbolic size `jax.export` would not know the whole for a multiple.
    behind = -(-size // multiple) * multiple - size
    return jnp.pad(x, [(0, behind if i == axis else 0) for i in range(x.ndim)])


def widen(x: jax.Array) -> jax.Array:
    """Numbers in float32 at least, to take entries from and to round these behind that.

    The gradient of an entry is a sum over all that took it. It is added up in the dtype that the
    entry is taken from; 16 bits would stop at 256 or 2,048 times its terms.
    """
    is_real = jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32)) if is_real else x
