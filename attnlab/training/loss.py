"""Cross entropy, summed over tokens so that sums of any batches add up to weighted means."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attnlab.tokens import PAD

__all__ = ["TokenSums", "token_sums"]


class TokenSums(NamedTuple):
    """Sums over the tokens of one or more batches, float32 scalars.

    Attributes:
      loss: of the smoothed cross entropy, in nats.
      nll: of −log p(token), in nats.
      correct: tokens that are the most likely ones.
      tokens: how many there are.
    """

    loss: jax.Array | float
    nll: jax.Array | float
    correct: jax.Array | float
    tokens: jax.Array | float

    def means(self) -> dict[str, float]:
        """Loss and −log p a token, perplexity exp(nll) and accuracy."""
        loss, nll, correct = (float(x) / float(self.tokens) for x in self[:3])
        perplexity = math.exp(nll) if nll < 700 else math.inf
        return {"loss": loss, "nll": nll, "perplexity": perplexity, "accuracy": correct}


def token_sums(logits: jax.Array, targets: jax.Array, *, label_smoothing: float = 0.0) -> TokenSums:
    """Σ_t H(q_t, p_t) with q_t = (1 − ε)·onehot(target_t) + ε/V, over the tokens that are not PAD.

    Args:
      logits: [*B, T, V].
      targets: [*B, T].
      label_smoothing: ε (Szegedy et al. 2016, §7; Vaswani et al. 2017, §5.4).

    Returns:
      The sums, float32. O(B·T·V) time; log p of all V words is not kept.
    """
    logits = logits.astype(jnp.float32)
    log_normaliser = jax.nn.logsumexp(logits, axis=-1)
    of_target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = log_normaliser - of_target
    loss = nll
    if label_smoothing:
        of_any = log_normaliser - logits.mean(-1)
        loss = (1 - label_smoothing) * nll + label_smoothing * of_any
    correct = logits.argmax(-1) == targets
    counts = targets != PAD

    def over_tokens(x):
        return jnp.where(counts, x, 0).sum(dtype=jnp.float32)

    return TokenSums(*(over_tokens(x) for x in (loss, nll, correct, jnp.ones_like(nll))))
