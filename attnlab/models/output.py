"""From the state of a decoder to the logits of its vocabulary."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.models.cells import Initializer
from attnlab.modules.conventions import lecun_normal

__all__ = ["Logits"]


class Logits(nn.Module):
    """W x (+ b) over the vocabulary, summed and returned in at least float32.

    Attributes:
      vocab_size: number of ids, V.
      use_bias: whether to add b.
      dtype: dtype of the factors of the product; None = that of inputs and parameters.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of W.
    """

    vocab_size: int
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Initializer = lecun_normal

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits [..., V] of x [..., D]."""
        x = x if self.dtype is None else x.astype(self.dtype)
        return nn.Dense(
            self.vocab_size,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=self.kernel_init,
            dot_general=functools.partial(
                jax.lax.dot_general,
                preferred_element_type=jnp.promote_types(x.dtype, jnp.float32),
            ),
            name="vocabulary",
        )(x)
