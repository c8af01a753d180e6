"""The objective of BERT's pre-training: masked language model, and next-sentence prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from attnlab.core.tokens import PAD
from attnlab.models.bert import Pretraining
from attnlab.training.classes import ClassCrossEntropy
from attnlab.training.objective import Batch, divisor, perplexity, token_sums


@dataclasses.dataclass(frozen=True)
class MaskedCrossEntropy:
    """The mean of −log p over masked tokens, plus the mean of −log p(next) over pairs.

    Each mean is over the whole batch, as in the released code (Devlin et al. 2018, §A.2). A batch
    has, beside the model's "tokens" [B, T], "types" [B, T] and "masked" [B, M], the masked tokens
    "target" [B, M], where PAD fills rows with fewer, and "next" [B]: 1 where the second segment
    follows the first, 0 where not, negative in a row that only fills the batch.

    Attributes:
      next_sentence: whether pairs are part of the loss; their accuracy is shown either way.
    """

    next_sentence: bool = True

    over = "masked"
    headline = "loss"

    @property
    def shown(self) -> tuple[str, ...]:
        """The loss, and the accuracies that it is made for."""
        return ("loss", "masked_accuracy", *(["next_accuracy"] if self.next_sentence else []))

    def inputs(self, batch: Batch) -> Batch:
        """Tokens, types and the positions of the masked tokens."""
        return {name: batch[name] for name in ("tokens", "types", "masked")}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens, masked tokens and pairs."""
        return {
            "tokens": (batch["tokens"] != PAD).sum(dtype=jnp.float32),
            "masked": (batch["target"] != PAD).sum(dtype=jnp.float32),
            "pairs": (batch["next"] >= 0).sum(dtype=jnp.float32),
        }

    def sums(self, outputs: Pretraining, batch: Batch) -> dict[str, jax.Array]:
        """Sums over masked tokens, and over pairs."""
        masked = token_sums(outputs.masked, batch["target"])
        pairs = ClassCrossEntropy().sums(outputs.next, {"label": batch["next"]})
        return {
            "masked_nll": masked["nll"],
            "masked_correct": masked["correct"],
            "next_nll": pairs["loss"],
            "next_correct": pairs["correct"],
        }

    def loss(self, sums: Mapping[str, jax.Array], shares: Mapping[str, jax.Array]) -> jax.Array:
        """The two means, times the number of masked tokens."""
        if not self.next_sentence:
            return sums["masked_nll"]
        return sums["masked_nll"] + sums["next_nll"] / shares["pairs"]

    def means(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """The loss, and loss and accuracy of both tasks; of pairs only where there are some."""
        masked, pairs = divisor(counts, "masked"), counts["pairs"]
        masked_nll = sums["masked_nll"] / masked
        means = {
            "loss": masked_nll,
            "masked_nll": masked_nll,
            "masked_perplexity": perplexity(masked_nll),
            "masked_accuracy": sums["masked_correct"] / masked,
        }
        if not pairs:
            return means
        next_nll = sums["next_nll"] / pairs
        return means | {
            "loss": masked_nll + next_nll * self.next_sentence,
            "next_nll": next_nll,
            "next_accuracy": sums["next_correct"] / pairs,
        }
