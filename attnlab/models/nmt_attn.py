"""NMTAttn: multi-head attention between LSTMs, after trax's `LSTMSeq2SeqAttn`.

    h = LSTMⁿ(embed(source))                            keys and values
    q = LSTM(embed(y_0 … y_{T−1}))                      pre-attention decoder: queries
    x = q + MultiHead(q, h, h)                          source padding masked
    logits = W LSTMⁿ(x) + b

No query depends on a context, so that attention is one call for all target positions.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.core import tokens as tok
from attnlab.core.checks import require_sizes
from attnlab.models.cells import LSTMCell
from attnlab.models.output import Logits
from attnlab.models.recurrent import Embed, Stack, keep_carry, read_carry
from attnlab.models.seq2seq import Seq2Seq
from attnlab.modules.multi_head import MultiHeadAttention


class NMTAttn(Seq2Seq):
    """LSTM encoder and decoder with multi-head attention in a residual between them.

    Its three modes are calls: `model(source, target, deterministic=False)` trains, with True it
    evaluates, and `decode(…, decode=True)` predicts, some tokens at a time. It returns logits;
    trax's log-softmax is left to the loss. The weights are the mean of all heads. The forget gates
    begin at 0, where trax's begin at 1.

    Attributes:
      source_vocab_size: number of ids of the source.
      target_vocab_size: number of ids of the target.
      features: width d_model of embeddings, of states and of all heads together.
      num_heads: number of heads, a divisor of `features`.
      num_encoder_layers: number of LSTM layers over the source.
      num_decoder_layers: number of LSTM layers after the attention.
      dropout_rate: rate of dropout on the input of each LSTM layer; trax has none.
      attention_dropout_rate: rate of dropout on the attention weights.
      dtype: dtype of the computation; None = that of the parameters. States and logits are float32.
      param_dtype: dtype of the parameters.
    """

    source_vocab_size: int = 33300
    target_vocab_size: int = 33300
    _: dataclasses.KW_ONLY
    features: int = 1024
    num_heads: int = 4
    num_encoder_layers: int = 2
    num_decoder_layers: int = 2
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def setup(self):
        require_sizes(self, "source_vocab_size", "target_vocab_size", "features")
        require_sizes(self, "num_encoder_layers", "num_decoder_layers")
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.source_embed = Embed(self.source_vocab_size, self.features, **types)
        self.target_embed = Embed(self.target_vocab_size, self.features, **types)

        def lstm(num_layers: int) -> Stack:
            return Stack(
                LSTMCell, self.features, num_layers, dropout_rate=self.dropout_rate, **types
            )

        self.encoder = lstm(self.num_encoder_layers)
        attention = MultiHeadAttention(
            self.num_heads, dropout_rate=self.attention_dropout_rate, **types
        )
        self.decoder = _Decoder(lstm(1), attention, lstm(self.num_decoder_layers))
        self.logits = Logits(self.target_vocab_size, **types)

    def encode(self, source: jax.Array, *, deterministic: bool = True) -> _Memory:
        lengths = tok.lengths(source)
        x = self.source_embed(source)
        states, _ = self.encoder(x, lengths, deterministic=deterministic)
        return _Memory(states, lengths)

    def decode(
        self, memory, tokens, *, deterministic=True, decode=False, return_weights=False
    ) -> Any:
        x, weights = self.decoder(
            memory,
            self.target_embed(tokens),
            deterministic=deterministic,
            decode=decode,
            return_weights=return_weights,
        )
        logits = self.logits(x)
        return (logits, weights) if return_weights else logits


class _Memory(NamedTuple):
    """What is kept of a source."""

    states: jax.Array  # [B, S, D]
    lengths: jax.Array  # [B]


class _Decoder(nn.Module):
    """Queries, attention in a residual, LSTM: [B, T, D], and the weights [B, T, S] or None."""

    queries: Stack
    attention: MultiHeadAttention
    after: Stack

    @nn.compact
    def __call__(
        self,
        memory: _Memory,
        x: jax.Array,
        *,
        deterministic: bool,
        decode: bool,
        return_weights: bool,
    ):
        before, after = read_carry(self, (None, None), len(x), decode)
        x, before = self.queries(x, states=before, deterministic=deterministic)
        context, weights = self._attend(x, memory, deterministic, decode, return_weights)
        x, after = self.after(x + context, states=after, deterministic=deterministic)
        keep_carry(self, (before, after), decode)
        return x, weights

    def _attend(self, queries, memory: _Memory, deterministic, decode, return_weights):
        attended = self.attention(
            queries,
            memory.states,
            mask=masks.Padding(memory.lengths),
            deterministic=deterministic,
            decode=decode,
            return_weights=return_weights,
        )
        return (attended[0], attended[1].mean(-3)) if return_weights else (attended, None)
