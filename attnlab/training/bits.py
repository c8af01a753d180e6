"""Bits per byte: what language models of bytes, characters and subwords are compared in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from attnlab.training.objective import Batch, TokenCrossEntropy, divisor, predicted

__all__ = ["BitsPerByte"]


@dataclasses.dataclass(frozen=True)
class BitsPerByte(TokenCrossEntropy):
    """Cross entropy as `TokenCrossEntropy` minimizes it, shown as bits per byte of the text.

        bits per byte = Σ_t −log₂ p(y_t | y_1 … y_{t−1}) / Σ_t bytes of y_t

    So the length of the text in the model's code, whatever its tokens are: the sums are over all
    batches before they are divided, and over a whole split it is exact.

    Attributes:
      bytes_of: numbers of bytes that the ids stand for, one for each id; 0 for the special ones.
    """

    bytes_of: tuple[int, ...] = ()

    headline = "bits_per_byte"
    shown = ("bits_per_byte", "perplexity", "accuracy")

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens and bytes that are predicted, as much as they count, and sentences."""
        of_token = jnp.asarray(self.bytes_of, jnp.float32)[predicted(batch)]
        return super().counts(batch) | {"bytes": (of_token * batch.get("weights", 1)).sum()}

    def means(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """As `TokenCrossEntropy`, and bits per byte."""
        bits = sums["nll"] / math.log(2) / divisor(counts, "bytes")
        return super().means(sums, counts) | {"bits_per_byte": bits}
