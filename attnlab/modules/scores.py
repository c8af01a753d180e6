"""Scores with parameters: Linen modules that look at q and k and return a score value.

`scores.Dot` has none, and stands where one of these does, as any value of `attnlab.scores` may.
Each is called with q [*B, T, N, Hq] and k [*B, S, K, Hk] and makes its parameters for N query heads
in `param_dtype`. With N = 1 the published single-head mechanisms come out. A score that is given to
`MultiHeadAttention` keeps its own `param_dtype`, and its parameters carry no logical axes.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import scores
from attnlab.modules.conventions import Initializer, lecun_normal_per_head


def _normal_over_width(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Unit-variance logits from w·x where the entries of x have unit variance."""
    return jax.random.normal(key, shape, dtype) / jnp.sqrt(jnp.asarray(shape[-1], dtype))


class ScoreModule(nn.Module):
    """The base of modules that make a score, `module(q, k)`: of those here, and of your own."""


class CosineScore(ScoreModule):
    """`scores.Cosine` with one learned scale a head.

    Attributes:
      init_scale: scale to begin with; cosines alone lie in [−1, 1], too flat to attend sharply.
      param_dtype: dtype of the parameters.
    """

    init_scale: float = 10.0
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> scores.Score:
        """The score, with parameter `scale` [N]."""
        init = nn.initializers.constant(self.init_scale)
        return scores.Cosine(self.param("scale", init, (q.shape[-2],), self.param_dtype))


class GeneralScore(ScoreModule):
    """`scores.General`, q·W·k (Luong et al. 2015, §3.1).

    Attributes:
      kernel_init: initializer of W [N, Hq, Hk].
      param_dtype: dtype of the parameters.
    """

    kernel_init: Initializer = lecun_normal_per_head
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> scores.Score:
        """The score, with parameter `kernel` [N, Hq, Hk]."""
        shape = (q.shape[-2], q.shape[-1], k.shape[-1])
        return scores.General(self.param("kernel", self.kernel_init, shape, self.param_dtype))


class AdditiveScore(ScoreModule):
    """`scores.Additive`, w·tanh(q + k) (Bahdanau et al. 2014, §A.1.2), or its normalized form.

    Attributes:
      normalize: whether to learn the direction and the size of w apart, and a bias inside the tanh.
      kernel_init: initializer of w [N, H].
      param_dtype: dtype of the parameters.
    """

    normalize: bool = False
    kernel_init: Initializer = _normal_over_width
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> scores.Score:
        """The score, with parameter `kernel` [N, H]; normalized also `gain` [N], `bias` [N, H]."""
        num_heads, width = q.shape[-2:]
        w = self.param("kernel", self.kernel_init, (num_heads, width), self.param_dtype)
        if not self.normalize:
            return scores.Additive(w)
        gain_init = nn.initializers.constant(width**-0.5)
        return scores.NormalizedAdditive(
            w,
            self.param("gain", gain_init, (num_heads,), self.param_dtype),
            self.param("bias", nn.initializers.zeros, (num_heads, width), self.param_dtype),
        )


class ConcatScore(ScoreModule):
    """`scores.Concat`, w·tanh(W [q; k]) (Luong et al. 2015, §3.1).

    Attributes:
      features: the hidden width, the rows of W; None = the width of q.
      kernel_init: initializer of the two halves of W, [N, Hq, features] and [N, Hk, features].
      param_dtype: dtype of the parameters.
    """

    features: int | None = None
    kernel_init: Initializer = lecun_normal_per_head
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> scores.Score:
        """The score, with parameters `kernel` [N, features], `query_kernel`, `key_kernel`."""
        num_heads, width = q.shape[-2:]
        features = self.features or width

        def half(name: str, rows: int) -> jax.Array:
            shape = (num_heads, rows, features)
            return self.param(name, self.kernel_init, shape, self.param_dtype)

        w = self.param("kernel", _normal_over_width, (num_heads, features), self.param_dtype)
        return scores.Concat(w, half("query_kernel", width), half("key_kernel", k.shape[-1]))


class LocationScore(ScoreModule):
    """`scores.Location`, logits W q over positions, no keys (Luong et al. 2015, §3.1).

    Attributes:
      max_length: number of keys that have a logit, S_max; later ones get no weight.
      kernel_init: initializer of W [N, Hq, S_max].
      param_dtype: dtype of the parameters.
    """

    max_length: int
    kernel_init: Initializer = lecun_normal_per_head
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, q: jax.Array, k: jax.Array) -> scores.Score:
        """The score, with parameter `kernel` [N, Hq, S_max]."""
        shape = (q.shape[-2], q.shape[-1], self.max_length)
        return scores.Location(self.param("kernel", self.kernel_init, shape, self.param_dtype))
