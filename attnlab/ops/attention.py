"""Exact attention over all pairs: any score under any mask, and the named mechanisms.

`implementation` says how, never what; every one computes the same function:

| name          | how                                         | memory   | serves                  |
| ------------- | ------------------------------------------- | -------- | ----------------------- |
| `"dense"`     | all logits at once, the textbook            | O(T·S)   | everything              |
| `"blockwise"` | online softmax over blocks, own backward    | O(T + S) | everything              |
| `"cudnn"`     | `jax.nn.dot_product_attention`, cuDNN flash | O(T + S) | NVIDIA GPU: `refusal`   |
| `None`        | the fastest of them here, see below         | O(T + S) | everything              |

`None` is `"cudnn"` on NVIDIA where it serves. Else it is `"dense"` for at most 32 queries or keys
and 2048 of the others, a decoder's step say, where all pairs are but a block and the engine around
it only costs (1.3 to 18 times the time on a CPU); `"blockwise"` beyond. It looks at the default
backend while tracing: when you compile for a device that is not the default one, name the
implementation. `"blockwise"` has a custom backward pass, so it cannot be differentiated twice or
in forward mode; `"dense"` can.

Letters: *B batch axes, T queries, S keys, N query heads, K key/value heads (N a multiple of K;
query head n uses key/value head n // (N/K)), H head width, D value width.
"""

from __future__ import annotations

from typing import Any, TypedDict, Unpack, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.checks import require_choice, require_dropout, require_qkv
from attnlab.masks import Causal, Mask, Window, as_mask
from attnlab.ops import blockwise, dense
from attnlab.ops.layout import merge_output, prepare
from attnlab.scores import Additive, Concat, Cosine, Dot, General, Location, Score

__all__ = [
    "IMPLEMENTATIONS",
    "Options",
    "additive_attention",
    "attention",
    "attention_weights",
    "concat_attention",
    "cosine_attention",
    "dot_product_attention",
    "general_attention",
    "location_attention",
    "refusal",
]


class Options(TypedDict, total=False):
    """The keywords of `attention`, which every named mechanism takes."""

    mask: Mask | ArrayLike | None
    bias: ArrayLike | None
    dropout_rate: float
    dropout_key: jax.Array | None
    implementation: str | None
    precision: jax.lax.PrecisionLike


IMPLEMENTATIONS = (None, "dense", "blockwise", "cudnn")
# Up to here T × S logits are a block's, and the engine around them only costs.
_SHORT, _LONG = 32, 2048


def attention(
    score: Score,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: str | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Exact attention: context_i = Σ_j softmax_j(score(q_i, k_j) + bias_ij) v_j over visible j.

    A query that may see no key gets the context zero, and gradient zero. No finite value at an
    invisible position can change an output or a gradient. Softmax and sums are in at least float32.

    Args:
      score: how alike q_i and k_j are (`attnlab.scores`).
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      mask: a mask (`attnlab.masks`) or a boolean array that broadcasts to [*B, N, T, S];
        True = may attend.
      bias: added to the logits; broadcasts to [*B, N, T, S].
      dropout_rate: probability of dropping a weight; the rest are scaled by 1/(1 − rate).
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      implementation: None, "dense", "blockwise" or "cudnn"; see the table above.
      precision: of the matrix products, as in `jax.lax.dot_general`.

    Returns:
      The context [*B, T, N, D] in the dtype of q.

    Raises:
      ValueError: for arguments that do not fit together.
      NotImplementedError: if the named implementation does not serve them.

    Cost: O(T·S·(H + D)) time per head, less what the mask rules out; memory as in the table.

    Source: Vaswani et al. 2017, §3.2, for the general form; `blockwise` for the algorithm.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attnlab import attention, masks, scores
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 5, 4, 8))
      >>> attention(scores.Dot(), q, k, v, mask=masks.Causal()).shape
      (2, 5, 4, 8)
    """
    require_qkv(q, k, v, same_width=score.same_width)
    require_dropout(dropout_rate, dropout_key)
    require_choice("implementation", implementation, IMPLEMENTATIONS)
    mask = as_mask(mask)
    reason = refusal(score, q, k, v, mask=mask, bias=bias, dropout_rate=dropout_rate)
    if implementation == "cudnn" and reason is not None:
        raise NotImplementedError(
            f'implementation="cudnn" {reason}; use implementation="blockwise" or None'
        )
    if implementation == "cudnn" or (implementation is None and reason is None and _on_nvidia()):
        return _cudnn(cast(Dot, score).scale, q, k, v, mask)
    if implementation is None:
        shorter, longer = sorted((q.shape[-3], k.shape[-3]))
        fits_a_block = shorter <= _SHORT and longer <= _LONG
        implementation = "dense" if fits_a_block else "blockwise"
    attend = dense.attend if implementation == "dense" else blockwise.attend
    context = attend(
        prepare(score, q, k, v, mask, bias, precision),
        dropout_rate=float(dropout_rate),
        dropout_key=dropout_key,
        precision=precision,
    )
    return merge_output(context, q.shape[:-3])


def attention_weights(
    score: Score,
    q: jax.Array,
    k: jax.Array,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """The weights softmax_j(score(q_i, k_j) + bias_ij), for looking at.

    Args: as for `attention`.

    Returns:
      [*B, N, T, S] in at least float32; rows sum to 1, or to 0 where nothing is visible.

    Cost: O(T·S) memory; use it on what a figure can show.
    """
    require_qkv(q, k, None, same_width=score.same_width)
    prepared = prepare(score, q, k, k, as_mask(mask), bias, precision)
    weights = dense.weights(prepared, precision=precision)
    num_queries, num_heads = q.shape[-3:-1]
    return weights.reshape(*q.shape[:-3], num_heads, num_queries, k.shape[-3])


def dot_product_attention(
    q, k, v, *, scale: float | None = None, **options: Unpack[Options]
) -> jax.Array:
    """Scaled dot-product attention, softmax(q kᵀ · scale) v: `attention` with `scores.Dot`.

    Args:
      q: [*B, T, N, H].
      k: [*B, S, K, H].
      v: [*B, S, K, D].
      scale: None = 1/√H (Vaswani et al. 2017, §3.2.1); 1.0 = Luong et al. 2015, §3.1, "dot".
      **options: the keywords of `attention`: mask, bias, dropout_rate, dropout_key,
        implementation, precision. An unknown one raises TypeError.

    Returns:
      [*B, T, N, D].
    """
    return attention(Dot(scale), q, k, v, **options)


def general_attention(q, k, v, w: ArrayLike, **options: Unpack[Options]) -> jax.Array:
    """Multiplicative attention, logits q W kᵀ: `attention` with `scores.General`.

    Args:
      q: [*B, T, N, Hq].
      k: [*B, S, K, Hk].
      v: [*B, S, K, D].
      w: [Hq, Hk] or [N, Hq, Hk].
      **options: the keywords of `attention`.

    Returns:
      [*B, T, N, D]. Source: Luong et al. 2015, §3.1, "general".
    """
    return attention(General(w), q, k, v, **options)


def additive_attention(q, k, v, w: ArrayLike, **options: Unpack[Options]) -> jax.Array:
    """Additive attention, logits w·tanh(q_i + k_j): `attention` with `scores.Additive`.

    Neither [T, S, hidden] nor, blockwise, [T, S] is ever in memory.

    Args:
      q: [*B, T, N, hidden], already projected.
      k: [*B, S, K, hidden], already projected.
      v: [*B, S, K, D].
      w: [hidden] or [N, hidden].
      **options: the keywords of `attention`.

    Returns:
      [*B, T, N, D]. Cost: T·S·hidden tanh evaluations. Source: Bahdanau et al. 2014, §A.1.2.
    """
    return attention(Additive(w), q, k, v, **options)


def concat_attention(
    q, k, v, w: ArrayLike, wq: ArrayLike, wk: ArrayLike, **options: Unpack[Options]
) -> jax.Array:
    """Concat attention, logits w·tanh(W [q; k]), W = [wq; wk]: `attention` with `scores.Concat`.

    Args:
      q: [*B, T, N, Hq].
      k: [*B, S, K, Hk].
      v: [*B, S, K, D].
      w: [hidden] or [N, hidden].
      wq: [Hq, hidden] or [N, Hq, hidden].
      wk: [Hk, hidden] or [N, Hk, hidden].
      **options: the keywords of `attention`.

    Returns:
      [*B, T, N, D]. Source: Luong et al. 2015, §3.1, "concat".
    """
    return attention(Concat(w, wq, wk), q, k, v, **options)


def cosine_attention(q, k, v, *, scale: ArrayLike = 1.0, **options: Unpack[Options]) -> jax.Array:
    """Cosine attention, logits scale · cos(q, k): `attention` with `scores.Cosine`.

    Args:
      q: [*B, T, N, H].
      k: [*B, S, K, H].
      v: [*B, S, K, D].
      scale: a number, or learned [] or [N]; with 1.0 no weight is more than e² times another.
      **options: the keywords of `attention`.

    Returns:
      [*B, T, N, D].
    """
    return attention(Cosine(scale), q, k, v, **options)


def location_attention(q, v, w: ArrayLike, **options: Unpack[Options]) -> jax.Array:
    """Location attention, logits (q W)_j: `attention` with `scores.Location`, which needs no keys.

    Args:
      q: [*B, T, N, Hq].
      v: [*B, S, K, D].
      w: [Hq, S_max] or [N, Hq, S_max], with S ≤ S_max.
      **options: the keywords of `attention`.

    Returns:
      [*B, T, N, D]. Source: Luong et al. 2015, §3.1, "location".
    """
    return attention(Location(w), q, v, v, **options)


def refusal(score: Score, q, k, v, *, mask, bias, dropout_rate) -> str | None:
    """Why cuDNN's attention does not serve these arguments; None where it does."""
    if not isinstance(score, Dot):
        return f"computes the dot score only, not {type(score).__name__}"
    if q.dtype not in (jnp.float16, jnp.bfloat16):
        return f"computes in float16 or bfloat16, not {q.dtype}"
    if q.shape[-1] != v.shape[-1] or q.shape[-1] % 8 or q.shape[-1] > 128:
        return (
            "wants equal widths of q, k and v, a multiple of 8 up to 128; got "
            f"{q.shape[-1]} and {v.shape[-1]}"
        )
    if bias is not None or dropout_rate > 0.0:
        return "takes no bias and no dropout here"
    if isinstance(mask, Causal) and isinstance(mask.q_offset, int) and mask.q_offset == 0:
        return None
    if isinstance(mask, Window) and isinstance(mask.q_offset, int) and mask.q_offset == 0:
        if mask.left is not None and mask.right == 0 and q.shape[-3] == k.shape[-3]:
            return None
        return "takes a window (left, 0) of the past only, with as many queries as keys"
    return None if mask is None else f"takes no mask of type {type(mask).__name__}"


def _on_nvidia() -> bool:
    device = jax.devices()[0]
    return device.platform == "gpu" and "cuda" in device.client.platform_version


def _cudnn(scale: float | None, q, k, v, mask) -> jax.Array:
    window: Any = (mask.left, mask.right) if isinstance(mask, Window) else None
    context = jax.nn.dot_product_attention(
        *(x.reshape(-1, *x.shape[-3:]) for x in (q, k, v)),
        scale=scale,
        is_causal=isinstance(mask, Causal),
        local_window_size=window,
        implementation="cudnn",
    )
    return context.reshape(*q.shape[:-1], v.shape[-1])
