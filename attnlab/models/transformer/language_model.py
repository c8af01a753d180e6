"""Language models: what all of them are, and the Transformer's decoder alone."""

from __future__ import annotations

from typing import Any

import jax

from attnlab import masks
from attnlab.core import tokens as tok
from attnlab.core.checks import require
from attnlab.models.seq2seq import Decoder
from attnlab.models.transformer.config import TransformerConfig
from attnlab.models.transformer.layers import Inputs, Vocabulary, require_positions
from attnlab.models.transformer.stack import Attention, Stack, pattern_of


class LanguageModel(Decoder):
    """p(tokens) = Π_t p(y_t | y_1 … y_{t−1}): embeddings, a causal stack, logits.

    A subclass defines `setup`, with `vocabulary` and `inputs`, and `logits_of`.

    Attributes:
      config: sizes and choices.
      attention: self-attention module, copied for each layer, or the pattern of modules that the
        layers repeat, as for `Transformer`.
    """

    config: TransformerConfig
    attention: Attention | None = None

    def __call__(
        self,
        tokens: jax.Array,
        *,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits [B, T, V] of each of the tokens [B, T], given those before it.

        Args:
          tokens: token ids [B, T].
          segments: segment ids [B, T] of several sequences packed in a row.
          positions: positions [B, T] of the tokens, restarting with each segment.
          deterministic: whether dropout is off.
        """
        tokens = tok.as_tokens("tokens", tokens)
        require_positions(self.config, segments, positions)
        shifted = tok.shift_right(tokens, segments)
        return self._logits(shifted, segments, positions, deterministic, decode=False)

    def encode(self, source: None = None, *, deterministic: bool = True) -> None:
        """Nothing: a language model has no source."""
        require(source is None, "a language model has no source; got one (give it as a prompt)")

    def decode(
        self,
        memory: Any,
        tokens: jax.Array,
        *,
        deterministic: bool = True,
        decode: bool = False,
    ) -> jax.Array:
        """Logits [B, T, V] of the tokens that follow each of `tokens`, as in `Decoder.decode`.

        Make the cache with `init(…, decode=True, method="decode")` and as many tokens as it should
        hold.
        """
        tokens = tok.as_tokens("tokens", tokens)
        return self._logits(tokens, None, None, deterministic, decode=decode)

    def _logits(self, tokens, segments, positions, deterministic, *, decode: bool):
        x = self.inputs(
            self.vocabulary.embed(tokens), positions, deterministic=deterministic, decode=decode
        )
        mask = masks.combine(masks.Causal(), None if segments is None else masks.Segments(segments))
        return self.logits_of(x, mask=mask, deterministic=deterministic, decode=decode)

    def logits_of(self, x: jax.Array, **options: Any) -> jax.Array:
        """Logits [B, T, V] of inputs x [B, T, D], with the options of a stack."""
        raise NotImplementedError


class TransformerLM(LanguageModel):
    """The Transformer's decoder alone; see `LanguageModel` for its attributes and its calls."""

    def setup(self):
        c = self.config
        self.vocabulary = Vocabulary(c.vocab_size, c)
        if not c.share_embeddings:
            self.softmax = Vocabulary(c.vocab_size, c)
        self.inputs = Inputs(c)
        self.decoder = Stack(c, pattern_of(c, self.attention))

    def logits_of(self, x: jax.Array, **options: Any) -> jax.Array:
        x, _ = self.decoder(x, **options)
        return (self.vocabulary if self.config.share_embeddings else self.softmax).logits(x)
