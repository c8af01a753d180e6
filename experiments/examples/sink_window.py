"""Attention sinks: the first keys, and a window of the last ones.

    query i sees key j   if   j ≤ i   and   (j < sinks   or   i − j < size)

Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", §3.2. There positions
are those in a cache of sinks + size tokens; here they are those in the text.

Cost: O(T) memory. Time is that of all earlier keys: a mask says one range of keys to look at, and
this one begins at the sinks.
"""

import flax.struct
import jax.numpy as jnp

from attnlab import masks


class SinkWindow(masks.Mask):
    """The first keys, and a window of the last ones."""

    sinks: int = flax.struct.field(pytree_node=False, default=4)
    size: int = flax.struct.field(pytree_node=False, default=128)

    def visible(self, i, j):
        return (j <= i) & ((j < self.sinks) | (i - j < self.size))

    def key_range(self, q_positions, num_keys):
        return 0, jnp.clip(q_positions[-1] + 1, 0, num_keys)

    @property
    def reach(self):
        return None, 0  # any number of keys before a query, none after it
