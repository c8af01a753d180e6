"""Masks: who may see whom, as values.

A mask is a small pytree. It combines with `&`, also with a boolean array, passes through `jit`,
`vmap` and `grad`, and stays lazy: an attention engine asks for some pairs of it at a time
(`visible`, or `block` where they are a block), and first asks which keys a block of queries can see
at all (`key_range`), so that blocks nobody looks at are never visited.

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

A mask of your own says of query i and key j whether i sees j, and works wherever masks do; what is
fast for some masks only (kernels, sorting) asks what it knows of them: `Mask.band` and the like.
Its arrays lead with the batch axes, and `visible` has those of one example:

    >>> import jax
    >>> class Dilated(Mask):
    ...     step: jax.Array  # a number for each example, [*B]
    ...
    ...     def visible(self, i, j):
    ...         return (i - j) % self.step == 0
    >>> from attnlab import attention, scores
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 7, 4, 8))
    >>> attention(scores.Dot(), q, k, v, mask=Dilated(jax.numpy.array([2, 3])) & Causal()).shape
    (2, 7, 4, 8)
"""

from attnlab.masks.by_example import Padding, Segments
from attnlab.masks.by_position import Causal, Chunks, Window
from attnlab.masks.keys import visible_keys
from attnlab.masks.mask import (
    Band,
    Both,
    Explicit,
    Lengths,
    Mask,
    SegmentIds,
    as_mask,
    combine,
    first_position,
    from_padding,
)

__all__ = [
    "Band",
    "Both",
    "Causal",
    "Chunks",
    "Explicit",
    "Lengths",
    "Mask",
    "Padding",
    "SegmentIds",
    "Segments",
    "Window",
    "as_mask",
    "combine",
    "first_position",
    "from_padding",
    "visible_keys",
]
