"""Encoder and decoder, and the encoder alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax

from attnlab import masks
from attnlab.core import tokens as tok
from attnlab.core.checks import require, require_instance
from attnlab.models.seq2seq import Seq2Seq, as_pairs
from attnlab.models.transformer.config import TransformerConfig
from attnlab.models.transformer.layers import Inputs, Vocabulary, require_positions
from attnlab.models.transformer.stack import Attention, Stack, pattern_of


class Memory(NamedTuple):
    """What the decoder sees of a source: states [B, S, D], lengths [B], segment ids [B, S]."""

    states: jax.Array
    lengths: jax.Array
    segments: jax.Array | None


class Transformer(Seq2Seq):
    """Encoder and decoder; see `Seq2Seq` for what it is called with and how it decodes.

    Several pairs packed in a row are kept apart by segment ids, from 1; 0 is padding.

    Attributes:
      config: sizes and choices.
      attention: self-attention module of both stacks, copied for each layer, called as
        `attention(x, mask=, deterministic=, decode=)`; the mask says what is causal. A sequence of
        modules is a pattern that the layers repeat. None = `config.attention()`.
      cross_attention: module of the attention over the source, copied for each layer; None =
        `config.cross_attention()`.
    """

    config: TransformerConfig
    attention: Attention | None = None
    cross_attention: nn.Module | None = None

    def setup(self):
        c = self.config
        self.vocabulary = Vocabulary(c.vocab_size, c)
        if not self._shares_source:
            self.source_vocabulary = Vocabulary(c.source_vocab_size or c.vocab_size, c)
        if not c.share_embeddings:
            self.softmax = Vocabulary(c.vocab_size, c)
        attention = pattern_of(c, self.attention)
        cross_attention = self.cross_attention or c.cross_attention()
        is_module = isinstance(cross_attention, nn.Module)
        remedy = " (make it with config.cross_attention(route=…))"
        require_instance("cross_attention", cross_attention, is_module, "a module", remedy)
        self.encoder_inputs, self.decoder_inputs = Inputs(c), Inputs(c)
        self.encoder = Stack(c, attention)
        self.decoder = Stack(c, attention, cross_attention)

    def __call__(
        self,
        source: jax.Array,
        target: jax.Array,
        *,
        source_segments: jax.Array | None = None,
        source_positions: jax.Array | None = None,
        target_segments: jax.Array | None = None,
        target_positions: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits [B, T, V] of the target [B, T] under teacher forcing.

        Args:
          source: source tokens [B, S].
          target: target tokens [B, T].
          source_segments: segment ids [B, S] of several sources packed in a row.
          source_positions: positions [B, S] of the source tokens, restarting with each segment.
          target_segments: segment ids [B, T] of several targets packed in a row.
          target_positions: positions [B, T] of the target tokens, restarting with each segment.
          deterministic: whether dropout is off.
        """
        source, target = as_pairs(source, target)
        memory = self.encode(
            source,
            segments=source_segments,
            positions=source_positions,
            deterministic=deterministic,
        )
        return self.decode(
            memory,
            tok.shift_right(target, target_segments),
            segments=target_segments,
            positions=target_positions,
            deterministic=deterministic,
        )

    def encode(
        self,
        source: jax.Array,
        *,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        deterministic: bool = True,
    ) -> Memory:
        source = tok.as_tokens("source", source)
        require_positions(self.config, segments, positions)
        vocabulary = self.vocabulary if self._shares_source else self.source_vocabulary
        x = self.encoder_inputs(vocabulary.embed(source), positions, deterministic=deterministic)
        lengths = tok.lengths(source)
        mask = _visible(lengths, segments)
        states, _ = self.encoder(x, mask=mask, deterministic=deterministic)
        return Memory(states, lengths, segments)

    def decode(
        self,
        memory: Memory,
        tokens: jax.Array,
        *,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        deterministic: bool = True,
        decode: bool = False,
        return_weights: bool = False,
    ) -> Any:
        """As `Seq2Seq.decode`; the weights are the last layer's, the mean of its heads.

        The weights of all layers and heads are sown: apply with `mutable=["intermediates"]`.
        """
        tokens = tok.as_tokens("tokens", tokens)
        require(
            (segments is None) == (memory.segments is None),
            "packed rows need segments of source and target; got only one of them (give both)",
        )
        require(
            segments is None or not decode,
            "decode=True is for one target a row; got segments (leave them out)",
        )
        require_positions(self.config, segments, positions)
        x = self.decoder_inputs(
            self.vocabulary.embed(tokens), positions, deterministic=deterministic, decode=decode
        )
        mask: masks.Mask = masks.Causal()
        memory_mask: masks.Mask = masks.Padding(memory.lengths)
        if segments is not None:
            mask &= masks.Segments(segments)
            memory_mask = masks.Segments(segments, memory.segments)
        x, weights = self.decoder(
            x,
            memory.states,
            mask=mask,
            memory_mask=memory_mask,
            deterministic=deterministic,
            decode=decode,
            return_weights=return_weights,
        )
        logits = (self.vocabulary if self.config.share_embeddings else self.softmax).logits(x)
        return (logits, weights) if return_weights else logits

    @property
    def _shares_source(self) -> bool:
        c = self.config
        return c.share_embeddings and c.source_vocab_size is None


class TransformerEncoder(nn.Module):
    """The encoder alone: every token sees every token of its sequence.

    Attributes:
      config: sizes and choices.
      attention: self-attention module, copied for each layer, as for `Transformer`.
    """

    config: TransformerConfig
    attention: Attention | None = None

    def setup(self):
        c = self.config
        self.vocabulary = Vocabulary(c.vocab_size, c)
        self.inputs = Inputs(c)
        self.encoder = Stack(c, pattern_of(c, self.attention))

    def __call__(
        self,
        tokens: jax.Array,
        types: jax.Array | None = None,
        *,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """States [B, T, D] of tokens [B, T], padded at the end or packed.

        Args:
          tokens: token ids [B, T].
          types: token types [B, T], less than `config.num_types`; None = all 0.
          segments: segment ids [B, T] of several sequences packed in a row.
          positions: positions [B, T] of the tokens, restarting with each segment.
          deterministic: whether dropout is off.
        """
        tokens = tok.as_tokens("tokens", tokens)
        require_positions(self.config, segments, positions)
        x = self.inputs(
            self.vocabulary.embed(tokens), positions, types, deterministic=deterministic
        )
        mask = _visible(tok.lengths(tokens), segments)
        return self.encoder(x, mask=mask, deterministic=deterministic)[0]


def _visible(lengths: jax.Array, segments: jax.Array | None) -> masks.Mask:
    """What encoders see: the tokens before the padding, or those of the same segment."""
    return masks.Padding(lengths) if segments is None else masks.Segments(segments)
