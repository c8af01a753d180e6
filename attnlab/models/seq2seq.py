"""What a sequence-to-sequence model is, so that one training step and one search serve them all."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from attnlab.tokens import shift_right

__all__ = ["Seq2Seq"]


class Seq2Seq(nn.Module):
    """p(target | source) = Π_t p(y_t | y_1 … y_{t−1}, source).

    Source [B, S] and target [B, T] are int32 token ids with the padding `tokens.PAD` at the end;
    the target ends with EOS and has no BOS. Dropout draws from the "dropout" rng stream.

    A subclass defines `encode` and `decode`. What it makes once of a source goes into the memory
    that `encode` returns, a pytree whose arrays lead with the batch.

    Decoding token by token: `decode(memory, tokens, decode=True)` with `mutable=["cache"]` takes
    the tokens that follow those of the calls before, whose state is in the collection "cache". A
    first call finds no such state and begins with the memory's. What only depends on the memory and
    costs more than to read it (projected keys and values) belongs into the collection "static",
    which the first call makes (`mutable=["cache", "static"]`) and later ones read.
    """

    @property
    def attends(self) -> bool:
        """Whether `decode` has attention weights to return."""
        return True

    @property
    def weights_follow_input(self) -> bool:
        """Whether step t's weights are about y_{t−1}, which it reads, not about y_t."""
        return False

    def encode(self, source: jax.Array, *, deterministic: bool = True) -> Any:
        """The memory of a source [B, S]."""
        raise NotImplementedError

    def decode(
        self,
        memory: Any,
        tokens: jax.Array,
        *,
        deterministic: bool = True,
        decode: bool = False,
        return_weights: bool = False,
    ) -> Any:
        """Logits [B, T, V] float32 of the tokens that follow each of `tokens` [B, T].

        Args:
          memory: of the source.
          tokens: what the decoder reads, beginning with BOS.
          deterministic: no dropout.
          decode: continue after the tokens in the cache.
          return_weights: also return the attention weights over the source, [B, T, S].
        """
        raise NotImplementedError

    def __call__(
        self, source: jax.Array, target: jax.Array, *, deterministic: bool = True
    ) -> jax.Array:
        """Logits [B, T, V] of the target [B, T] under teacher forcing."""
        memory = self.encode(source, deterministic=deterministic)
        return self.decode(memory, shift_right(target), deterministic=deterministic)
