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
from typing import Literal, Unpack, overload

import flax.linen as nn
import jax

from attnlab.biases import Bias
from attnlab.masks import Mask
from attnlab.modules.conventions import AttentionModule, CallOptions, require_module_sizes
from attnlab.modules.one_head import Additive, Concat, Location, Multiplicative, OneHead
from attnlab.ops.attention import Implementation
from attnlab.ops.routes import AllPairs, Route
from attnlab.scores import Score


class SingleHead(OneHead, AttentionModule, kw_only=True):
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
        require_module_sizes(self)
        return self._attend(
            self,
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            deterministic=deterministic,
            return_weights=return_weights,
        )


class AdditiveAttention(Additive, SingleHead):
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


class MultiplicativeAttention(Multiplicative, SingleHead):
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


class ConcatAttention(Concat, SingleHead):
    """softmax(w·tanh(W [query_i; key_j])) over values: Luong et al. 2015, §3.1, "concat".

    The same function as `AdditiveAttention`: W, one piece in the paper, is two halves here,
    [1, Dq, features] and [1, Dk, features], with axes (None, "embed", "hidden").

    The keywords of `SingleHead` belong to it too.

    Attributes:
      features: number of rows of the paper's W; None = the width of the queries.
    """

    features: int | None = None


class LocationAttention(Location, SingleHead):
    """softmax(W query_i) over positions, without looking at keys: Luong et al. 2015, §3.1.

    The matrix W is [1, Dq, max_length], with axes (None, "embed", None).

    The keywords of `SingleHead` belong to it too.

    Attributes:
      max_length: number of keys that have a logit; later ones get no weight.
    """

    max_length: int
