"""The named mechanisms: `attention` with one score each, and its keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack

import jax
from jax.typing import ArrayLike

from attnlab.biases import Bias
from attnlab.masks import Mask
from attnlab.ops.attention import Implementation, attention, of_masks
from attnlab.scores import Additive, Concat, Cosine, Dot, General, Location

_Function = TypeVar("_Function", bound=Callable[..., jax.Array])


class Options(TypedDict, total=False):
    """The keywords of `attention`, which says what each of them is."""

    mask: Mask | ArrayLike | None
    bias: Bias | ArrayLike | None
    dropout_rate: float
    dropout_key: jax.Array | None
    implementation: Implementation
    precision: jax.lax.PrecisionLike


@of_masks
def dot_product_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Scaled dot-product attention, softmax(q kᵀ · scale) v: `attention` with `scores.Dot`.

    Args:
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      scale: factor of the logits; None = 1/√H (Vaswani et al. 2017, §3.2.1); 1.0 = Luong et al.
        2015, §3.1, "dot".
      mask: mask or boolean array, as for `attention`.
      bias: term added to the logits, as for `attention`.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      implementation: None, a name or `Pallas(...)`, as for `attention`.
      precision: precision of the matrix products.

    Returns:
      [*B, T, N, D].
    """
    return attention(
        Dot(scale),
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        implementation=implementation,
        precision=precision,
    )


@of_masks
def cosine_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: ArrayLike = 1.0,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Cosine attention, logits scale · cos(q, k): `attention` with `scores.Cosine`.

    q [*B, T, N, H], k [*B, S, K, H] and v [*B, S, K, D] give the context [*B, T, N, D]. The scale
    is a number or a learned array [] or [N]; with 1.0 no weight is more than e² times another. The
    other keywords are those of `attention`.
    """
    return attention(
        Cosine(scale),
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        implementation=implementation,
        precision=precision,
    )


def _with_keywords(function: _Function) -> _Function:
    """Decorates what hands **options to `attention`: its signature shows these keywords."""
    signature = inspect.signature(function)
    arguments = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
    parameters = inspect.signature(attention).parameters.values()
    keywords = [x for x in parameters if x.kind is x.KEYWORD_ONLY]
    described: Any = function
    described.__signature__ = signature.replace(parameters=[*arguments, *keywords])
    return of_masks(function)


@_with_keywords
def general_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, w: ArrayLike, **options: Unpack[Options]
) -> jax.Array:
    """Multiplicative attention, logits q W kᵀ: `attention` with `scores.General`.

    q [*B, T, N, Hq], k [*B, S, K, Hk], v [*B, S, K, D] and the matrix w, [Hq, Hk] or [N, Hq, Hk],
    give the context [*B, T, N, D]. The keywords are those of `attention`.

    Source: Luong et al. 2015, §3.1, "general".
    """
    return attention(General(w), q, k, v, **options)


@_with_keywords
def additive_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, w: ArrayLike, **options: Unpack[Options]
) -> jax.Array:
    """Additive attention, logits w·tanh(q_i + k_j): `attention` with `scores.Additive`.

    Projected q [*B, T, N, hidden] and k [*B, S, K, hidden], v [*B, S, K, D] and the weights w of
    the hidden units, [hidden] or [N, hidden], give the context [*B, T, N, D]. The keywords are
    those of `attention`.

    Neither [T, S, hidden] nor, blockwise, [T, S] is ever in memory. Cost: T·S·hidden tanh
    evaluations. Source: Bahdanau et al. 2014, §A.1.2.
    """
    return attention(Additive(w), q, k, v, **options)


@_with_keywords
def concat_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    w: ArrayLike,
    wq: ArrayLike,
    wk: ArrayLike,
    **options: Unpack[Options],
) -> jax.Array:
    """Concat attention, logits w·tanh(W [q; k]), W = [wq; wk]: `attention` with `scores.Concat`.

    q [*B, T, N, Hq], k [*B, S, K, Hk], v [*B, S, K, D], the weights w of the hidden units, [hidden]
    or [N, hidden], and the parts of W that meet the query and the key, wq and wk, [Hq|Hk, hidden]
    or [N, Hq|Hk, hidden], give the context [*B, T, N, D]. The keywords are those of `attention`.

    Source: Luong et al. 2015, §3.1, "concat".
    """
    return attention(Concat(w, wq, wk), q, k, v, **options)


@_with_keywords
def location_attention(
    q: jax.Array, v: jax.Array, w: ArrayLike, **options: Unpack[Options]
) -> jax.Array:
    """Location attention, logits (q W)_j: `attention` with `scores.Location`, which needs no keys.

    q [*B, T, N, Hq], v [*B, S, K, D] and the matrix w, [Hq, S_max] or [N, Hq, S_max], give the
    context [*B, T, N, D]; keys beyond S_max get no weight. The keywords are those of `attention`.

    Source: Luong et al. 2015, §3.1, "location".
    """
    return attention(Location(w), q, v, v, **options)
