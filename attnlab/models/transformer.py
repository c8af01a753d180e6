"""The Transformer (Vaswani et al. 2017): encoder–decoder, encoder alone, decoder alone.

One stack of layers serves all three, with any attention: `attention=` is a module that is copied
for each layer, so that a window, LSH or an additive score need no model of their own.

    >>> import jax, jax.numpy as jnp
    >>> from attnlab import routes
    >>> config = TransformerConfig(17, num_layers=2, width=8, hidden=16, num_heads=2)
    >>> model = Transformer(config, attention=config.attention(routes.Window(3, 3)))
    >>> source, target = jnp.full((1, 5), 4), jnp.full((1, 7), 5)
    >>> variables = model.init(jax.random.key(0), source, target)
    >>> model.apply(variables, source, target).shape
    (1, 7, 17)

Parameters: "vocabulary" (of the target; also of the source and the softmax, where they are shared;
else "source_vocabulary", "softmax"), "encoder_inputs" and "decoder_inputs" (learned positions),
"encoder" and "decoder" (`Stack`). At first embeddings are N(0, 1/D), so that times √D, and as
logits, they have unit variance; all other matrices are Glorot-uniform, biases 0.

Letters: B batch, S source length, T target length, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax

from attnlab import masks
from attnlab import tokens as tok
from attnlab.checks import require
from attnlab.models.seq2seq import Decoder, Seq2Seq
from attnlab.models.transformer_config import TransformerConfig
from attnlab.models.transformer_layers import Inputs, Stack, Vocabulary

__all__ = ["Memory", "Transformer", "TransformerConfig", "TransformerEncoder", "TransformerLM"]


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
        `attention(x, mask=, deterministic=, decode=)`; the mask says what is causal. None =
        `config.attention()`.
      cross_attention: module of the attention over the source, copied for each layer; None =
        `config.cross_attention()`.
    """

    config: TransformerConfig
    attention: nn.Module | None = None
    cross_attention: nn.Module | None = None

    def setup(self):
        c = self.config
        self.vocabulary = Vocabulary(c.vocab_size, c)
        if not self._shares_source:
            self.source_vocabulary = Vocabulary(c.source_vocab_size or c.vocab_size, c)
        if not c.share_embeddings:
            self.softmax = Vocabulary(c.vocab_size, c)
        attention = _attention(c, self.attention)
        cross_attention = self.cross_attention or c.cross_attention()
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
        _require_positions(self.config, segments, positions)
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
        require(
            (segments is None) == (memory.segments is None),
            "packed rows need segments of source and target; got only one of them",
        )
        require(
            segments is None or not decode,
            "decode=True is for one target a row; got segments (leave them out)",
        )
        _require_positions(self.config, segments, positions)
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
    attention: nn.Module | None = None

    def setup(self):
        c = self.config
        self.vocabulary = Vocabulary(c.vocab_size, c)
        self.inputs = Inputs(c)
        self.encoder = Stack(c, _attention(c, self.attention))

    def __call__(
        self,
        tokens: jax.Array,
        *,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """States [B, T, D] of tokens [B, T], padded at the end or packed.

        Args:
          tokens: token ids [B, T].
          segments: segment ids [B, T] of several sequences packed in a row.
          positions: positions [B, T] of the tokens, restarting with each segment.
          deterministic: whether dropout is off.
        """
        _require_positions(self.config, segments, positions)
        x = self.inputs(self.vocabulary.embed(tokens), positions, deterministic=deterministic)
        mask = _visible(tok.lengths(tokens), segments)
        return self.encoder(x, mask=mask, deterministic=deterministic)[0]


class TransformerLM(Decoder):
    """The decoder alone: p(tokens) = Π_t p(y_t | y_1 … y_{t−1}), a language model.

    Attributes:
      config: sizes and choices.
      attention: self-attention module, copied for each layer, as for `Transformer`.
    """

    config: TransformerConfig
    attention: nn.Module | None = None

    def setup(self):
        c = self.config
        self.vocabulary = Vocabulary(c.vocab_size, c)
        if not c.share_embeddings:
            self.softmax = Vocabulary(c.vocab_size, c)
        self.inputs = Inputs(c)
        self.decoder = Stack(c, _attention(c, self.attention))

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
        _require_positions(self.config, segments, positions)
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
        return self._logits(tokens, None, None, deterministic, decode=decode)

    def _logits(self, tokens, segments, positions, deterministic, *, decode: bool):
        x = self.inputs(
            self.vocabulary.embed(tokens), positions, deterministic=deterministic, decode=decode
        )
        mask = masks.combine(masks.Causal(), None if segments is None else masks.Segments(segments))
        x, _ = self.decoder(x, mask=mask, deterministic=deterministic, decode=decode)
        return (self.vocabulary if self.config.share_embeddings else self.softmax).logits(x)


def _attention(config: TransformerConfig, given: nn.Module | None) -> nn.Module:
    """The template that was given, or the config's."""
    if given is None:
        return config.attention()
    rotary = getattr(given, "rotary", False)
    require(
        rotary == (config.positions == "rotary"),
        "rotary positions are set in the config and in the attention alike; got "
        f"positions={config.positions!r} and {type(given).__name__}(rotary={rotary}) "
        "(derive it with config.attention(…))",
    )
    return given


def _visible(lengths: jax.Array, segments: jax.Array | None) -> masks.Mask:
    """What encoders see: the tokens before the padding, or those of the same segment."""
    return masks.Padding(lengths) if segments is None else masks.Segments(segments)


def _require_positions(config: TransformerConfig, segments, positions) -> None:
    added = config.positions in ("sinusoid", "learned")
    require(
        segments is None or positions is not None or not added,
        "positions restart with each packed sequence; got segments without positions",
    )
