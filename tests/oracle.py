"""The oracle of the tests: `attnlab.bench.oracle`, and what only tests need of it."""

import jax.numpy as jnp
import numpy as np

from attnlab.bench.oracle import (
    PARAMETER_RANKS,
    Attention,
    Gradients,
    additive,
    attention,
    budget,
    causal,
    concat,
    cosine,
    dot,
    error,
    errors,
    general,
    location,
    normalized_additive,
    padding,
    pairs,
    rms,
    scaled_dot,
    segments,
    sum_to,
    window,
)

__all__ = [
    "Attention",
    "Gradients",
    "PARAMETER_RANKS",
    "additive",
    "assert_within_budget",
    "attention",
    "budget",
    "causal",
    "concat",
    "cosine",
    "dot",
    "error",
    "errors",
    "general",
    "local_attention",
    "location",
    "normalized_additive",
    "padding",
    "pairs",
    "rms",
    "scaled_dot",
    "segments",
    "sum_to",
    "window",
]


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


def assert_within_budget(got, plain, true, dtype, what=""):
    """The error of `got` is at most twice that of the plain version of this dtype, + rounding."""
    allowed = budget(plain, true, float(jnp.finfo(dtype).eps))
    found = rms(errors(got, true))
    assert found <= allowed, f"{what}: error {found:.3g} over {allowed:.3g}"
