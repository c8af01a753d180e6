"""From states to the logits of a vocabulary, at once or in blocks; the product of projections."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from attnlab.devices import platforms
from attnlab.modules.conventions import Initializer, lecun_normal


@flax.struct.dataclass
class DeferredLogits:
    """x E^T + b before it is computed: a loss that sums over tokens needs few rows at a time.

    A model returns it in place of its logits, and `training.objective.token_sums` takes it: with
    `block` tokens at a time, whose logits are computed again in the backward pass, a loss takes
    O(block · V) memory in place of O(B · T · V).

    Attributes:
      x: states [*B, T, D].
      embedding: matrix E [V, D].
      bias: biases b [V]; None = none.
      block: number of tokens whose logits exist at once.
    """

    x: jax.Array
    embedding: jax.Array
    bias: jax.Array | None = None
    block: int = flax.struct.field(pytree_node=False, default=1024)

    def logits(self) -> jax.Array:
        """The logits [*B, T, V] of all tokens, in at least float32."""
        logits = jnp.einsum(
            "...d,vd->...v",
            self.x,
            self.embedding.astype(self.x.dtype),
            preferred_element_type=jnp.promote_types(self.x.dtype, jnp.float32),
        )
        if self.bias is None:
            return logits
        return logits + jnp.broadcast_to(self.bias, logits.shape).astype(logits.dtype)


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
            dot_general=wide_product,
            name="vocabulary",
        )(x)


def product(x: jax.Array, kernel: jax.Array, axes: Any, *args: Any, **options: Any) -> jax.Array:
    """`jax.lax.dot_general` of x [..., D] and a kernel [D, F], as a layer of Flax calls it.

    On a CPU of one device the rows are put in one axis first: to sum a kernel's gradient over two
    axes XLA:CPU copies x. On several devices one axis of two could not stay divided.
    """
    if not platforms.is_one_cpu():
        return jax.lax.dot_general(x, kernel, axes, *args, **options)
    # [..., D] to [rows, D], and back
    rows = x.reshape(-1, x.shape[-1])
    axes = ((1,), (0,)), ((), ())
    out = jax.lax.dot_general(rows, kernel, axes, *args, **options)
    return out.reshape(*x.shape[:-1], kernel.shape[1])


def wide_product(x: jax.Array, kernel: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`product`, summed and returned in at least float32, as logits are."""
    options["preferred_element_type"] = jnp.promote_types(x.dtype, jnp.float32)
    return product(x, kernel, *args, **options)
