"""The oracle: attention in float64 NumPy, written from the papers' equations.

It shares no code with the library and is slow on purpose: every equation stands as printed, over
explicit [B, T, S, N, …] arrays. Gradients are written by hand; the tests hold them to central
differences.

Arrays are the public ones with one batch axis: q [B, T, N, Hq], k [B, S, K, Hk], v [B, S, K, D];
query head n uses key/value head n // (N/K). Logits and weights are [B, N, T, S].
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from ml_dtypes import finfo

# ------------------------------------------------------------------------------------------ scores
# Each takes q [B, T, N, Hq], k [B, S, N, Hk] and parameters that lead with [N], and returns the
# logits and the function from their gradient to the gradients of every argument.


def dot(q, k, scale=1.0):
    """Luong et al. 2015, §3.1: h_tᵀ h_s; with a scale, Vaswani et al. 2017, eq. 1."""
    logits = scale * np.einsum("btnh,bsnh->bnts", q, k)

    def pull_back(g):
        return (
            scale * np.einsum("bnts,bsnh->btnh", g, k),
            scale * np.einsum("bnts,btnh->bsnh", g, q),
        )

    return logits, pull_back


def scaled_dot(q, k):
    """Vaswani et al. 2017, eq. 1: h_tᵀ h_s / √H."""
    return dot(q, k, 1 / np.sqrt(q.shape[-1]))


def general(q, k, w):
    """Luong et al. 2015, §3.1: h_tᵀ W h_s."""
    logits = np.einsum("btnh,nhg,bsng->bnts", q, w, k)

    def pull_back(g):
        return (
            np.einsum("bnts,nhg,bsng->btnh", g, w, k),
            np.einsum("bnts,nhg,btnh->bsng", g, w, q),
            np.einsum("bnts,btnh,bsng->nhg", g, q, k),
        )

    return logits, pull_back


def cosine(q, k, scale):
    """scale · cos(q, k)."""
    q_norm, k_norm = (np.sqrt((x * x).sum(-1, keepdims=True)) for x in (q, k))
    q_unit, k_unit = q / q_norm, k / k_norm
    similarity = np.einsum("btnh,bsnh->bnts", q_unit, k_unit)

    def pull_back(g):
        g_scaled = g * scale[:, None, None]
        dq = np.einsum("bnts,bsnh->btnh", g_scaled, k_unit)
        dk = np.einsum("bnts,btnh->bsnh", g_scaled, q_unit)
        return (
            (dq - q_unit * (q_unit * dq).sum(-1, keepdims=True)) / q_norm,
            (dk - k_unit * (k_unit * dk).sum(-1, keepdims=True)) / k_norm,
            (g * similarity).sum((0, 2, 3)),
        )

    return similarity * scale[:, None, None], pull_back


def additive(q, k, w):
    """Bahdanau et al. 2014, §A.1.2, with both projections done: w·tanh(q + k)."""
    tanh = np.tanh(q[:, :, None] + k[:, None])

    def pull_back(g):
        dsum = np.einsum("bnts,nh,btsnh->btsnh", g, w, 1 - tanh**2)
        return dsum.sum(2), dsum.sum(1), np.einsum("bnts,btsnh->nh", g, tanh)

    return np.einsum("btsnh,nh->bnts", tanh, w), pull_back


def normalized_additive(q, k, w, gain, bias):
    """gain · w/‖w‖ · tanh(q + k + bias); Salimans & Kingma 2016, eq. 2 and 3 for the gradients."""
    norm = np.sqrt((w * w).sum(-1, keepdims=True))
    direction = w / norm
    logits, of_additive = additive(q + bias, k, gain[:, None] * direction)

    def pull_back(g):
        dq, dk, dv = of_additive(g)
        dgain = (dv * direction).sum(-1)
        dw = gain[:, None] / norm * (dv - dgain[:, None] * direction)
        return dq, dk, dw, dgain, dq.sum((0, 1))

    return logits, pull_back


def concat(q, k, w, wq, wk):
    """Luong et al. 2015, §3.1: vᵀ tanh(W [h_t; h_s]), the concatenation done."""
    pairs = np.broadcast_shapes(q[:, :, None, :, :1].shape, k[:, None, :, :, :1].shape)[:-1]
    both = np.concatenate(
        [np.broadcast_to(x, (*pairs, x.shape[-1])) for x in (q[:, :, None], k[:, None])], -1
    )
    matrix = np.concatenate([wq, wk], 1)
    tanh = np.tanh(np.einsum("btsnh,nhm->btsnm", both, matrix))

    def pull_back(g):
        dsum = np.einsum("bnts,nm,btsnm->btsnm", g, w, 1 - tanh**2)
        dboth = np.einsum("btsnm,nhm->btsnh", dsum, matrix)
        dmatrix = np.einsum("btsnm,btsnh->nhm", dsum, both)
        width = q.shape[-1]
        return (
            dboth[..., :width].sum(2),
            dboth[..., width:].sum(1),
            np.einsum("bnts,btsnm->nm", g, tanh),
            dmatrix[:, :width],
            dmatrix[:, width:],
        )

    return np.einsum("btsnm,nm->bnts", tanh, w), pull_back


def location(q, k, w):
    """Luong et al. 2015, eq. 8: a_t = softmax(W_a h_t)."""
    num_keys = k.shape[1]

    def pull_back(g):
        dw = np.zeros_like(w)
        dw[..., :num_keys] = np.einsum("bnts,btnh->nhs", g, q)
        return np.einsum("bnts,nhs->btnh", g, w[..., :num_keys]), np.zeros_like(k), dw

    return np.einsum("btnh,nhs->bnts", q, w[..., :num_keys]), pull_back


# How many axes each parameter has when all heads share it.
PARAMETER_RANKS: dict[Callable, tuple[int, ...]] = {
    dot: (),
    scaled_dot: (),
    general: (2,),
    cosine: (0,),
    additive: (1,),
    normalized_additive: (1, 0, 1),
    concat: (1, 2, 2),
    location: (2,),
}

# --------------------------------------------------------------------------------------- attention


class Gradients(NamedTuple):
    """Gradients of a context's scalar loss, each in its argument's shape; None without argument."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    parameters: tuple[np.ndarray, ...]
    bias: np.ndarray | None
    factor: np.ndarray | None


class Attention(NamedTuple):
    """What attention computes.

    Attributes:
      weights: weights [B, N, T, S].
      context: context [B, T, N, D].
      pull_back: dcontext -> its gradients.
    """

    weights: np.ndarray
    context: np.ndarray
    pull_back: Callable[[np.ndarray], Gradients]


def attention(score, q, k, v, parameters=(), *, mask=None, bias=None, factor=None) -> Attention:
    """Vaswani et al. 2017, eq. 1, with any score.

    `mask` (True = may attend), `bias` (added to the logits) and `factor` (times the weights, after
    the softmax: local-p) broadcast to [B, N, T, S]. A query that may see nothing gets zero.
    """
    q, k, v, *parameters = (np.asarray(x, np.float64) for x in (q, k, v, *parameters))
    num_heads, num_kv_heads = q.shape[2], k.shape[2]
    group = num_heads // num_kv_heads
    k_all, v_all = (np.repeat(x, group, axis=2) for x in (k, v))
    ranks = PARAMETER_RANKS[score]
    per_head = [
        p if p.ndim > rank else np.broadcast_to(p, (num_heads, *p.shape))
        for p, rank in zip(parameters, ranks, strict=True)
    ]
    logits, of_logits = score(q, k_all, *per_head)
    if bias is not None:
        logits = logits + np.asarray(bias, np.float64)
    if mask is not None:
        logits = np.where(mask, logits, -np.inf)
    largest = logits.max(-1, keepdims=True)
    exp = np.exp(logits - np.where(np.isfinite(largest), largest, 0))
    total = exp.sum(-1, keepdims=True)
    softmax = exp / np.where(total == 0, 1, total)
    weights = softmax if factor is None else softmax * factor
    context = np.einsum("bnts,bsnd->btnd", weights, v_all)

    def pull_back(dcontext):
        dcontext = np.asarray(dcontext, np.float64)
        dweights = np.einsum("btnd,bsnd->bnts", dcontext, v_all)
        dsoftmax = dweights if factor is None else dweights * factor
        dlogits = softmax * (dsoftmax - (softmax * dsoftmax).sum(-1, keepdims=True))
        dv = np.einsum("bnts,btnd->bsnd", weights, dcontext)
        dq, dk, *dparameters = of_logits(dlogits)
        dk, dv = (x.reshape(*x.shape[:2], num_kv_heads, group, -1).sum(3) for x in (dk, dv))
        return Gradients(
            dq,
            dk,
            dv,
            tuple(sum_to(d, p.shape) for d, p in zip(dparameters, parameters, strict=True)),
            bias=None if bias is None else sum_to(dlogits, np.shape(bias)),
            factor=None if factor is None else sum_to(dweights * softmax, np.shape(factor)),
        )

    return Attention(weights, context, pull_back)


def local_attention(score, q, k, v, centers, half_width, parameters=(), *, gaussian, lengths):
    """Luong et al. 2015, §3.2: keys s in [p_t − D, p_t + D], local-p times exp(−(s − p_t)²/2σ²).

    Returns the attention and the function from its `Gradients.factor` to the centers' gradient.
    """
    centers = np.asarray(centers, np.float64)
    distance = np.arange(k.shape[1]) - centers[..., None]  # [B, T, S]
    mask = np.abs(distance) <= half_width
    mask &= np.arange(k.shape[1]) < np.asarray(lengths)[:, None, None]
    sigma = half_width / 2
    factor = np.exp(-(distance**2) / (2 * sigma**2))[:, None] if gaussian else None
    found = attention(score, q, k, v, parameters, mask=mask[:, None], factor=factor)

    def centers_gradient(dfactor):
        return (dfactor[:, 0] * factor[:, 0] * distance / sigma**2).sum(-1)

    return found, centers_gradient


def sum_to(x, shape):
    """The transpose of broadcasting from `shape`."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, size in enumerate(shape) if size == 1), keepdims=True)


# ------------------------------------------------------------------------------------------- masks
# One example each, [T, S], a pair at a time.


def pairs(num_queries, num_keys, may_attend) -> np.ndarray:
    """`may_attend(i, j)` of every query i and key j."""
    return np.array([[may_attend(i, j) for j in range(num_keys)] for i in range(num_queries)], bool)


def causal(num_queries, num_keys, offset=0):
    """j ≤ i + offset."""
    return pairs(num_queries, num_keys, lambda i, j: j <= i + offset)


def window(num_queries, num_keys, left, right, offset=0):
    """i + offset − left ≤ j ≤ i + offset + right; None is unbounded."""
    return pairs(
        num_queries,
        num_keys,
        lambda i, j: (
            (left is None or j >= i + offset - left) and (right is None or j <= i + offset + right)
        ),
    )


def padding(num_queries, num_keys, kv_length, q_length=None):
    """j < kv_length, and i < q_length."""
    return pairs(
        num_queries,
        num_keys,
        lambda i, j: j < kv_length and (q_length is None or i < q_length),
    )


def segments(q_ids, kv_ids):
    """q_ids[i] = kv_ids[j]."""
    return pairs(len(q_ids), len(kv_ids), lambda i, j: q_ids[i] == kv_ids[j])


# ------------------------------------------------------------------------------------------ budget


def error(got, true) -> float:
    """The largest absolute error; infinite where `got` is not a number."""
    return float(errors(got, true).max(initial=0.0))


def errors(got, true) -> np.ndarray:
    """The absolute errors; infinite where `got` is not a number."""
    got = np.asarray(got, np.float64)
    assert got.shape == true.shape, (got.shape, true.shape)
    return np.nan_to_num(np.abs(got - true), nan=np.inf)


def rms(x) -> float:
    """Root mean square: of many errors it is as steady as their largest is not."""
    return float(np.sqrt((x * x).mean()))


def budget(plain, true, eps: float) -> float:
    """The rms error that is allowed: twice that of the plain version of this dtype, + rounding."""
    return 2 * rms(errors(plain, true)) + eps * rms(true)


def assert_within_budget(got, plain, true, dtype, what=""):
    """The error of `got` is at most twice that of the plain version of this dtype, + rounding."""
    allowed = budget(plain, true, float(finfo(dtype).eps))
    found = rms(errors(got, true))
    assert found <= allowed, f"{what}: error {found:.3g} over {allowed:.3g}"
