"""The protocol of models that write tokens: one training step and one search serve them all."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from attnlab.core.shapes import fit
from attnlab.core.tokens import as_tokens, shift_right


def as_pairs(source: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Token ids of sources [B, S] and of as many targets [B, T].

    Raises:
      ValueError: they are no token ids, or have different numbers of rows.
    """
    source, target = as_tokens("source", source), as_tokens("target", target)
    fit("source: B S", source, "target: B T", target, remedy="each source has one target")
    return source, target


class Decoder(nn.Module):
    """p(tokens | source) = Π_t p(y_t | y_1 … y_{t−1}, source); a language model has no source.

    Source [B, S] and tokens [B, T] are int32 ids with the padding `tokens.PAD` at the end. Dropout
    draws from the "dropout" rng stream.

    A subclass defines `encode` and `decode`. What it makes once of a source goes into the memory
    that `encode` returns, a pytree whose arrays lead with the batch; a language model's is None.

    Decoding token by token: `decode(memory, tokens, decode=True)` with `mutable=["cache"]` takes
    the tokens that follow those of the calls before, whose state is in the collection "cache". A
    first call finds no such state and begins with the memory's. What only depends on the memory and
    costs more than to read it (projected keys and values) belongs into the collection "static",
    which the first call makes (`mutable=["cache", "static"]`) and later ones read.
    """

    def encode(self, source: Any, *, deterministic: bool = True) -> Any:
        """The memory of a source [B, S]; None if there is no source."""
        raise NotImplementedError

    def decode(
        self,
        memory: Any,
        tokens: jax.Array,
        *,
        deterministic: bool = True,
        decode: bool = False,
    ) -> Any:
        """Logits [B, T, V] float32 of the tokens that follow each of `tokens` [B, T].

        Args:
          memory: memory that `encode` made of the source.
          tokens: ids that the decoder reads, beginning with BOS.
          deterministic: whether there is no dropout.
          decode: whether to continue after the tokens in the cache.
        """
        raise NotImplementedError


class Seq2Seq(Decoder):
    """A decoder of a source, with attention weights over it; the target ends with EOS.

    `decode` takes `return_weights=True` besides and returns the weights [B, T, S] after the logits.
    """

    @property
    def attends(self) -> bool:
        """Whether `decode` has attention weights to return."""
        return True

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
        """As `Decoder.decode`; with `return_weights` also the weights over the source [B, T, S]."""
        raise NotImplementedError

    def __call__(
        self, source: jax.Array, target: jax.Array, *, deterministic: bool = True
    ) -> jax.Array:
        """Logits [B, T, V] of the target [B, T] under teacher forcing.

        Raises:
          ValueError: source or target are no token ids, or have different numbers of rows.
        """
        source, target = as_pairs(source, target)
        memory = self.encode(source, deterministic=deterministic)
        return self.decode(memory, shift_right(target), deterministic=deterministic)
