"""The named mechanisms: `attention` with one score each, and its keywords."""

from __future__ import annotations

import jax
from jax.typing import ArrayLike

from attnlab.biases import Bias
from attnlab.masks import Mask
from attnlab.ops.attention import Implementation, attention, of_masks
from attnlab.scores import Additive, Concat, Cosine, Dot, General, Location

__all__ = [
    "additive_attention",
    "concat_attention",
    "cosine_attention",
    "dot_product_attention",
    "general_attention",
    "location_attention",
]


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
def general_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    w: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Multiplicative attention, logits q W kᵀ: `attention` with `scores.General`.

    Args:
      q: queries [*B, T, N, Hq].
      k: keys [*B, S, K, Hk].
      v: values [*B, S, K, D].
      w: matrix of the score, [Hq, Hk] or [N, Hq, Hk].
      mask: mask or boolean array, as for `attention`.
      bias: term added to the logits, as for `attention`.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      implementation: None, a name or `Pallas(...)`, as for `attention`.
      precision: precision of the matrix products.

    Returns:
      [*B, T, N, D]. Source: Luong et al. 2015, §3.1, "general".
    """
    return attention(
        General(w),
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
def additive_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    w: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Additive attention, logits w·tanh(q_i + k_j): `attention` with `scores.Additive`.

    Neither [T, S, hidden] nor, blockwise, [T, S] is ever in memory.

    Args:
      q: projected queries [*B, T, N, hidden].
      k: projected keys [*B, S, K, hidden].
      v: values [*B, S, K, D].
      w: weights of the hidden units, [hidden] or [N, hidden].
      mask: mask or boolean array, as for `attention`.
      bias: term added to the logits, as for `attention`.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      implementation: None, a name or `Pallas(...)`, as for `attention`.
      precision: precision of the matrix products.

    Returns:
      [*B, T, N, D]. Cost: T·S·hidden tanh evaluations. Source: Bahdanau et al. 2014, §A.1.2.
    """
    return attention(
        Additive(w),
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
def concat_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    w: ArrayLike,
    wq: ArrayLike,
    wk: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Concat attention, logits w·tanh(W [q; k]), W = [wq; wk]: `attention` with `scores.Concat`.

    Args:
      q: queries [*B, T, N, Hq].
      k: keys [*B, S, K, Hk].
      v: values [*B, S, K, D].
      w: weights of the hidden units, [hidden] or [N, hidden].
      wq: part of W that meets the query, [Hq, hidden] or [N, Hq, hidden].
      wk: part of W that meets the key, [Hk, hidden] or [N, Hk, hidden].
      mask: mask or boolean array, as for `attention`.
      bias: term added to the logits, as for `attention`.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      implementation: None, a name or `Pallas(...)`, as for `attention`.
      precision: precision of the matrix products.

    Returns:
      [*B, T, N, D]. Source: Luong et al. 2015, §3.1, "concat".
    """
    return attention(
        Concat(w, wq, wk),
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

    Args:
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      scale: factor of the cosine, a number or a learned array [] or [N]; with 1.0 no weight is more
        than e² times another.
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


@of_masks
def location_attention(
    q: jax.Array,
    v: jax.Array,
    w: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Location attention, logits (q W)_j: `attention` with `scores.Location`, which needs no keys.

    Args:
      q: queries [*B, T, N, Hq].
      v: values [*B, S, K, D].
      w: matrix of the logits, [Hq, S_max] or [N, Hq, S_max]; keys beyond S_max get no weight.
      mask: mask or boolean array, as for `attention`.
      bias: term added to the logits, as for `attention`.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      implementation: None, a name or `Pallas(...)`, as for `attention`.
      precision: precision of the matrix products.

    Returns:
      [*B, T, N, D]. Source: Luong et al. 2015, §3.1, "location".
    """
    return attention(
        Location(w),
        q,
        v,
        v,
        mask=mask,
        bias=bias,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        implementation=implementation,
        precision=precision,
    )
