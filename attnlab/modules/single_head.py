"""The published single-head mechanisms: the context of each query over keys and values.

All are called as `module(query, key=None, value=None)` with query [*B, T, Dq], key [*B, S, Dk] and
value [*B, S, Dv] (*B batch axes, T queries, S keys). key=None attends over the queries themselves;
value=None takes the keys as values, as the papers do. They return the context [*B, T, Dv], and with
`return_weights=True` also the weights [*B, T, S]. Applied with `mutable=["intermediates"]` they sow
the weights as "attention_weights". Weights are dense, O(T·S); nothing else here is.

    >>> import jax, jax.numpy as jnp
    >>> from attnlab import masks
    >>> source, target = jnp.ones((2, 7, 12)), jnp.ones((2, 5, 8))
    >>> attention = AdditiveAttention(features=16)
    >>> variables = attention.init(jax.random.key(0), target, source)
    >>> attention.apply(variables, target, source, mask=masks.Padding(jnp.array([7, 3]))).shape
    (2, 5, 12)
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.masks import Mask
from attnlab.modules.conventions import (
    Initializer,
    as_query_key_value,
    dropout_options,
    lecun_normal,
    lecun_normal_per_head,
    partitioned,
)
from attnlab.modules.scores import AdditiveScore, ConcatScore, GeneralScore, LocationScore
from attnlab.ops.attention import Implementation, attention, attention_weights

__all__ = [
    "AdditiveAttention",
    "ConcatAttention",
    "LocationAttention",
    "MultiplicativeAttention",
]


class AdditiveAttention(nn.Module):
    """softmax(w·tanh(W query_i + U key_j)) over values: Bahdanau et al. 2014, §3.1 and §A.1.2.

    Cost: T·S·features tanh evaluations, O(T + S) memory, also backward.

    Attributes:
      features: the hidden width, the rows of W and U.
      normalize: the weight-normalized form with a gain and a bias (Salimans & Kingma 2016, §2).
      dropout_rate: on the weights; the "dropout" rng stream.
      implementation: as for `attnlab.attention`.
      dtype: of the computation; None = that of inputs and parameters.
      param_dtype: of the parameters.
      precision: of the matrix products.
      kernel_init: for W [Dq, features] and U [Dk, features].
      logical_axes: name the axes of the kernels ("embed", "hidden") for partitioning.
    """

    features: int
    normalize: bool = False
    dropout_rate: float = 0.0
    implementation: Implementation = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = lecun_normal
    logical_axes: bool = False

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        bias: jax.Array | None = None,
        deterministic: bool | None = None,
        return_weights: bool = False,
    ):
        """The context [*B, T, Dv]; see the module's docstring for the shapes."""
        query, key, value = as_query_key_value(self, query, key, value)
        q = _project(self, self.features, "query")(query)
        k = _project(self, self.features, "key")(key)
        score = AdditiveScore(self.normalize, param_dtype=self.param_dtype, name="score")
        return _attend(self, score, q, k, value, mask, bias, deterministic, return_weights)


class MultiplicativeAttention(nn.Module):
    """softmax(score(query_i, key_j)) over values, with a score made of products: Luong et al. 2015.

    | score                   | logits                      |
    | ----------------------- | --------------------------- |
    | None = `GeneralScore()` | query·W·key, "general"      |
    | `DotScore(scale=1.0)`   | query·key, "dot"            |
    | `DotScore()`            | query·key / √width          |
    | `CosineScore()`         | scale · cos(query, key)     |

    Cost: T·S·width products, O(T + S) memory, also backward.

    Attributes:
      score: a score module; None = `GeneralScore()`.
      features: project query and key to this width first (Britz et al. 2017, §3.3); None = not.
      dropout_rate: as for `AdditiveAttention`, like all below.
      implementation: how to compute it.
      dtype: of the computation.
      param_dtype: of the parameters.
      precision: of the matrix products.
      kernel_init: for the projections.
      logical_axes: name the axes of the kernels.
    """

    score: nn.Module | None = None
    features: int | None = None
    dropout_rate: float = 0.0
    implementation: Implementation = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = lecun_normal
    logical_axes: bool = False

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        bias: jax.Array | None = None,
        deterministic: bool | None = None,
        return_weights: bool = False,
    ):
        """The context [*B, T, Dv]; see the module's docstring for the shapes."""
        query, key, value = as_query_key_value(self, query, key, value)
        if self.features is not None:
            query = _project(self, self.features, "query")(query)
            key = _project(self, self.features, "key")(key)
        score = self.score
        if score is None:
            score = GeneralScore(param_dtype=self.param_dtype, name="score")
        return _attend(self, score, query, key, value, mask, bias, deterministic, return_weights)


class ConcatAttention(nn.Module):
    """softmax(w·tanh(W [query_i; key_j])) over values: Luong et al. 2015, §3.1, "concat".

    The same function as `AdditiveAttention`: W, one piece in the paper, is two halves here.

    Attributes:
      features: the rows of W; None = the width of the queries.
      dropout_rate: as for `AdditiveAttention`, like all below.
      implementation: how to compute it.
      dtype: of the computation.
      param_dtype: of the parameters.
      precision: of the matrix products.
      kernel_init: for the two halves of W, [1, Dq, features] and [1, Dk, features].
      logical_axes: name their axes (None, "embed", "hidden") for partitioning.
    """

    features: int | None = None
    dropout_rate: float = 0.0
    implementation: Implementation = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = lecun_normal_per_head
    logical_axes: bool = False

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        bias: jax.Array | None = None,
        deterministic: bool | None = None,
        return_weights: bool = False,
    ):
        """The context [*B, T, Dv]; see the module's docstring for the shapes."""
        query, key, value = as_query_key_value(self, query, key, value)
        kernel_init = partitioned(self, self.kernel_init, None, "embed", "hidden")
        score = ConcatScore(self.features, kernel_init, self.param_dtype, name="score")
        return _attend(self, score, query, key, value, mask, bias, deterministic, return_weights)


class LocationAttention(nn.Module):
    """softmax(W query_i) over positions, without looking at keys: Luong et al. 2015, §3.1.

    Attributes:
      max_length: keys that have a logit; later ones get no weight.
      dropout_rate: as for `AdditiveAttention`, like all below.
      implementation: how to compute it.
      dtype: of the computation.
      param_dtype: of the parameters.
      precision: of the matrix products.
      kernel_init: for W [1, Dq, max_length].
      logical_axes: name its axes (None, "embed", None) for partitioning.
    """

    max_length: int
    dropout_rate: float = 0.0
    implementation: Implementation = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = lecun_normal_per_head
    logical_axes: bool = False

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        bias: jax.Array | None = None,
        deterministic: bool | None = None,
        return_weights: bool = False,
    ):
        """The context [*B, T, Dv]; see the module's docstring for the shapes."""
        query, key, value = as_query_key_value(self, query, key, value)
        kernel_init = partitioned(self, self.kernel_init, None, "embed", None)
        score = LocationScore(self.max_length, kernel_init, self.param_dtype, name="score")
        return _attend(self, score, query, key, value, mask, bias, deterministic, return_weights)


def _project(module, features: int, name: str) -> nn.Dense:
    return nn.Dense(
        features,
        use_bias=False,
        dtype=module.dtype,
        param_dtype=module.param_dtype,
        precision=module.precision,
        kernel_init=partitioned(module, module.kernel_init, "embed", "hidden"),
        name=name,
    )


def _attend(module, score_module, q, k, v, mask, bias, deterministic, return_weights):
    """One head: adds its axis, attends, drops it again."""
    q, k, v = (x[..., None, :] for x in (q, k, v))
    score = score_module(q, k)
    context = attention(
        score,
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        implementation=module.implementation,
        precision=module.precision,
        **dropout_options(module, deterministic),
    )[..., 0, :]
    if not return_weights and not module.is_mutable_collection("intermediates"):
        return context
    weights = attention_weights(score, q, k, mask=mask, bias=bias, precision=module.precision)
    weights = weights[..., 0, :, :]
    module.sow("intermediates", "attention_weights", weights)
    return (context, weights) if return_weights else context
