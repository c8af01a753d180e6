"""The objective of classifiers: of sequences, of tokens, and of places in a sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from attnlab.core.tokens import PAD
from attnlab.training.objective import Batch, divisor, require_shape_of


@dataclasses.dataclass(frozen=True)
class ClassCrossEntropy:
    """−log p(label), the mean over labels; a negative label is not counted.

    The model is called with all of the batch but `batch["label"]`, int32 [*B], and returns logits
    [*B, C] of C classes, whatever is labelled:

        label [B]       a class of each sequence
        label [B, T]    a tag of each token
        label [B, 2]    the first and the last token of a span: the classes are the T places

    Rows that only fill a batch have negative labels. "tokens", which rates are shown of, counts
    those of `batch["tokens"]`, [B, T], that are not PAD.
    """

    over = "labels"
    headline = "loss"
    shown = ("loss", "accuracy")

    def inputs(self, batch: Batch) -> Batch:
        """All of the batch but the labels."""
        return {name: x for name, x in batch.items() if name != "label"}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens that are read, and labels."""
        return {
            "tokens": (batch["tokens"] != PAD).sum(dtype=jnp.float32),
            "labels": (batch["label"] >= 0).sum(dtype=jnp.float32),
        }

    def sums(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """The loss in nats, and the number of labels that no other class is likelier than.

        Args:
          outputs: logits [*B, C]; −inf = a class that cannot be.
          batch: batch with "label" [*B].

        Raises:
          ValueError: labels of another shape.
        """
        label = batch["label"]
        require_shape_of("label", label, outputs)
        logits = outputs.astype(jnp.float32)
        of_label = jnp.take_along_axis(logits, jnp.maximum(label, 0)[..., None], axis=-1)[..., 0]
        loss = jax.nn.logsumexp(logits, axis=-1) - of_label
        sums = {"loss": loss, "correct": of_label >= logits.max(-1)}
        return {
            name: jnp.where(label >= 0, x, 0).sum(dtype=jnp.float32) for name, x in sums.items()
        }

    def loss(self, sums: Mapping[str, jax.Array], shares: Mapping[str, jax.Array]) -> jax.Array:
        """The summed loss."""
        del shares
        return sums["loss"]

    def means(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Loss a label in nats, and accuracy."""
        labels = divisor(counts, "labels")
        return {"loss": sums["loss"] / labels, "accuracy": sums["correct"] / labels}
