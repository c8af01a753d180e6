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

With `route=routes.Hard()` a query takes one key, which while training is sampled from the rng
stream "sample" (Xu et al. 2015); `log_prob` and `entropy`, [*B, T, 1], are sown where the
collection "choice" is mutable.

    >>> from attnlab import routes
    >>> hard = attention.clone(route=routes.Hard())
    >>> context, sown = hard.apply(variables, target, source, deterministic=False,
    ...                            rngs={"sample": jax.random.key(1)}, mutable=["choice"])
    >>> context.shape, sown["choice"]["log_prob"][0].shape
    ((2, 5, 12), (2, 5, 1))
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Unpack, overload

import flax.linen as nn
import jax

from attnlab.biases import Bias
from attnlab.core.checks import require, require_instance
from attnlab.masks import Mask
from attnlab.modules.conventions import (
    AttentionModule,
    CallOptions,
    as_query_key_value,
    dropout_options,
    name_axes,
)
from attnlab.modules.sampling import sample_route
from attnlab.modules.scores import AdditiveScore, ConcatScore, GeneralScore, LocationScore
from attnlab.ops.attention import Implementation
from attnlab.ops.routes import AllPairs, Exact, Route
from attnlab.scores import Score

__all__ = [
    "AdditiveAttention",
    "ConcatAttention",
    "LocationAttention",
    "MultiplicativeAttention",
    "SingleHead",
]


class SingleHead(AttentionModule, kw_only=True):
    """What the single-head modules share: their options, all keywords, and their call.

    A subclass chooses the score by which queries and keys meet. The keywords of `AttentionModule`
    (dropout_rate, dtype, …) belong to it too.

    Attributes:
      route: a value of `attnlab.routes` that does not hash; `routes.Hard()` samples.
      implementation: None, a name, or `Pallas(...)`, as for `attnlab.attention`; with a route other
        than all pairs it belongs to that.
    """

    route: Route = AllPairs()
    implementation: Implementation = None

    @overload
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        return_weights: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> jax.Array: ...

    @overload
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        return_weights: Literal[True],
        **options: Unpack[CallOptions],
    ) -> tuple[jax.Array, jax.Array]: ...

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        bias: Bias | jax.Array | None = None,
        deterministic: bool | None = None,
        return_weights: bool = False,
    ):
        """The context [*B, T, Dv]; see the page of these modules for the shapes.

        Args:
          query: queries [*B, T, Dq].
          key: keys [*B, S, Dk]; None = query.
          value: values [*B, S, Dv]; None = key.
          mask: a mask or a boolean array that broadcasts to [*B, 1, T, S]; True = may attend.
          bias: term added to the logits: a bias (`attnlab.biases`) or an array that broadcasts to
            [*B, 1, T, S].
          deterministic: whether dropout is off, and nothing is sampled; needed if dropout_rate > 0
            and by a route that samples.
          return_weights: whether to return the weights [*B, T, S] too.
        """
        route, deterministic = self._route(), self.is_deterministic(deterministic)
        query, key, value = as_query_key_value(self, query, key, value)
        score_module, query, key = self._meet(query, key)
        q = query[..., None, :]
        k = key[..., None, :]
        v = value[..., None, :]
        score = score_module(q, k)
        attend, sampling = sample_route(self, route, deterministic)
        options = {"mask": mask, "bias": bias, "precision": self.precision, **sampling}
        dropout = dropout_options(self, deterministic)
        context = attend(score, q, k, v, **options, **dropout)[..., 0, :]
        sows = self.is_mutable_collection("intermediates") and route.sows_weights
        if not return_weights and not sows:
            return context
        weights = route.weights(score, q, k, **options)[..., 0, :, :]
        self.sow("intermediates", "attention_weights", weights)
        return (context, weights) if return_weights else context

    @nn.nowrap
    def _route(self) -> Route:
        wanted = "a value that does not hash, such as routes.Hard()"
        require_instance("route", self.route, isinstance(self.route, Exact), wanted)
        if self.implementation is None:
            return self.route
        require(
            self.route == AllPairs(),
            f"implementation= is that of all pairs; got {self.implementation!r} and a route,"
            f" {type(self.route).__name__} (give it to the route, if that takes one)",
        )
        return AllPairs(self.implementation)

    @nn.nowrap
    def _meet(self, query: jax.Array, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """The score or a module that makes it, and the queries and keys that it compares."""
        raise NotImplementedError


class AdditiveAttention(SingleHead):
    """softmax(w·tanh(W query_i + U key_j)) over values: Bahdanau et al. 2014, §3.1 and §A.1.2.

    The matrices are W [Dq, features] and U [Dk, features], with axes ("embed", "hidden").

    Cost: T·S·features tanh evaluations, O(T + S) memory, also backward.

    The keywords of `SingleHead` belong to it too.

    Attributes:
      features: the hidden width, the number of columns of W and U.
      normalize: whether to use the weight-normalized form with a gain and a bias (Salimans & Kingma
        2016, §2).
    """

    features: int
    _: dataclasses.KW_ONLY
    normalize: bool = False

    @nn.nowrap
    def _meet(self, query, key):
        query = self._dense(self.features, "query", "embed", "hidden")(query)
        key = self._dense(self.features, "key", "embed", "hidden")(key)
        score = AdditiveScore(self.normalize, param_dtype=self.param_dtype, name="score")
        return score, query, key


class MultiplicativeAttention(SingleHead):
    """softmax(score(query_i, key_j)) over values, with a score made of products: Luong et al. 2015.

    | score                   | logits                      |
    | ----------------------- | --------------------------- |
    | None = `GeneralScore()` | query·W·key, "general"      |
    | `scores.Dot(1.0)`       | query·key, "dot"            |
    | `scores.Dot()`          | query·key / √width          |
    | `CosineScore()`         | scale · cos(query, key)     |

    With `features` the matrices are the projections [Dq, features] and [Dk, features], with axes
    ("embed", "hidden"); the score has an initializer of its own.

    Cost: T·S·width products, O(T + S) memory, also backward.

    The keywords of `SingleHead` belong to it too.

    Attributes:
      score: a score module, or a value of `attnlab.scores`; None = `GeneralScore()`.
      features: width to which query and key are projected first (Britz et al. 2017, Eq. 7); None =
        they are not projected.
    """

    score: nn.Module | Score | None = None
    features: int | None = None

    @nn.nowrap
    def _meet(self, query, key):
        if self.features is not None:
            query = self._dense(self.features, "query", "embed", "hidden")(query)
            key = self._dense(self.features, "key", "embed", "hidden")(key)
        score = self.score
        if score is None:
            score = GeneralScore(param_dtype=self.param_dtype, name="score")
        return score, query, key


class ConcatAttention(SingleHead):
    """softmax(w·tanh(W [query_i; key_j])) over values: Luong et al. 2015, §3.1, "concat".

    The same function as `AdditiveAttention`: W, one piece in the paper, is two halves here,
    [1, Dq, features] and [1, Dk, features], with axes (None, "embed", "hidden").

    The keywords of `SingleHead` belong to it too.

    Attributes:
      features: number of rows of the paper's W; None = the width of the queries.
    """

    features: int | None = None

    @nn.nowrap
    def _meet(self, query, key):
        kernel_init = name_axes(self, self.kernel_init, None, "embed", "hidden")
        score = ConcatScore(self.features, kernel_init, self.param_dtype, name="score")
        return score, query, key


class LocationAttention(SingleHead):
    """softmax(W query_i) over positions, without looking at keys: Luong et al. 2015, §3.1.

    The matrix W is [1, Dq, max_length], with axes (None, "embed", None).

    The keywords of `SingleHead` belong to it too.

    Attributes:
      max_length: number of keys that have a logit; later ones get no weight.
    """

    max_length: int

    @nn.nowrap
    def _meet(self, query, key):
        kernel_init = name_axes(self, self.kernel_init, None, "embed", None)
        score = LocationScore(self.max_length, kernel_init, self.param_dtype, name="score")
        return score, query, key
