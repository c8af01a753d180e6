"""Masks: who may see whom, as values.

A mask is a small pytree. It combines with `&`, also with a boolean array, passes through `jit`,
`vmap` and `grad`, and stays lazy: an attention engine asks for one block of it at a time (`block`),
and first asks which keys a block of queries can see at all (`key_range`), so that blocks nobody
looks at are never visited.

True means "may attend". Drawn for 4 queries and 4 keys (`x` = may attend):

    Causal()      Window(1, 0)   Chunks(2)     Padding(3)    Segments([0, 0, 1, 1])
    x . . .       x . . .        x x . .       x x x .       x x . .
    x x . .       x x . .        x x . .       x x x .       x x . .
    x x x .       . x x .        x x x x       x x x .       . . x x
    x x x x       . . x x        x x x x       x x x .       . . x x

Letters: *B batch axes, T queries, S keys, N query heads, K key/value heads, G = N / K.

    >>> mask = Causal() & Padding(3)
    >>> mask.as_array(4, 4)[0].astype(int)
    Array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 0]], dtype=int32)
"""

from attnlab.masks.by_example import Padding, Segments
from attnlab.masks.by_position import Causal, Chunks, Window
from attnlab.masks.mask import Both, Explicit, Mask, as_mask, combine, first_position, from_padding

__all__ = [
    "Both",
    "Causal",
    "Chunks",
    "Explicit",
    "Mask",
    "Padding",
    "Segments",
    "Window",
    "as_mask",
    "combine",
    "first_position",
    "from_padding",
]
