"""Losses that look at where a model looks: REINFORCE, and sources that are read evenly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.core.checks import as_number, require, require_instance
from attnlab.core.tokens import PAD
from attnlab.models.alignment import Attended
from attnlab.training.objective import Batch, TokenCrossEntropy, predicted_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttendedCrossEntropy(TokenCrossEntropy):
    """Cross entropy, and terms of the attention weights α of a model that returns `Attended`.

    With s_t the key taken at step t, R the log-likelihood of a target and b the moving baseline,

        loss − λ_r Σ stop_gradient(R − b) log α_{t, s_t} − λ_e Σ_t H[α_t] + λ Σ_s (1 − Σ_t α_ts)²

    summed over sentences. The second term is REINFORCE: its gradient is on average that of the
    expected log-likelihood with respect to what α is made of. The fourth, doubly stochastic
    attention, asks that every source word be read once, which is possible only where the target has
    as many words as the source. (The paper's model also multiplies the context by a gate β_t,
    §4.2.1, which models here do not have.) Over tokens or sentences as the loss.

    The keywords of `TokenCrossEntropy` belong to it too.

    Attributes:
      reinforce: factor λ_r.
      entropy: factor λ_e.
      doubly_stochastic: factor λ.

    Source: Xu et al. 2015, §4.1 (Eq. 12) and §4.2.1 (Eq. 14).
    """

    reinforce: float = 0.0
    entropy: float = 0.0
    doubly_stochastic: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        for name in ("reinforce", "entropy", "doubly_stochastic"):
            factor = as_number(name, getattr(self, name))
            require(factor >= 0, f"{name} must be at least 0; got {factor}")

    def inputs(self, batch: Batch) -> Batch:
        """The batch, and the request for the attention.

        Raises:
          ValueError: the batch has "weights" of tokens, which the reward does not know.
        """
        require(
            "weights" not in batch,
            'terms of the attention are of whole sentences; got a batch with "weights" of tokens',
        )
        return super().inputs(batch) | {"return_attention": True}

    def sums(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """The sums of `token_sums`, and those of the three terms, of an `Attended`."""
        fits = isinstance(outputs, Attended)
        require_instance("the model's output", outputs, fits, "Attended, as RNNSearch returns it")
        real = (predicted_tokens(batch) != PAD)[..., None]
        weights = jnp.where(real, outputs.weights, 0)
        score = jax.lax.stop_gradient(outputs.advantage)[:, None] * outputs.log_prob
        logs = jnp.log(jnp.where(weights > 0, weights, 1))
        unread = jnp.where(batch["source"] != PAD, 1 - weights.sum(1), 0)
        summands = {
            "reinforce": jnp.where(real[..., 0], -score, 0),
            "entropy": -weights * logs,
            "doubly_stochastic": unread**2,
        }
        terms = {name: x.sum(dtype=jnp.float32) for name, x in summands.items()}
        return super().sums(outputs.logits, batch) | terms

    def loss(self, sums: Mapping[str, jax.Array], shares: Mapping[str, jax.Array]) -> jax.Array:
        """The summed loss with its terms."""
        return (
            super().loss(sums, shares)
            + self.reinforce * sums["reinforce"]
            - self.entropy * sums["entropy"]
            + self.doubly_stochastic * sums["doubly_stochastic"]
        )

    def means(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Those of `TokenCrossEntropy`; the entropy of α a token; the fourth term a sentence."""
        return super().means(sums, counts) | {
            "entropy": sums["entropy"] / counts["tokens"],
            "doubly_stochastic": sums["doubly_stochastic"] / counts["sentences"],
        }
