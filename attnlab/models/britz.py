"""The recurrent sequence-to-sequence model of Britz, Goldie, Luong, Le 2017 and its variations.

    h_j = [stack→(x)_j; stack←(x)_j]                            annotations
    s_i = stack([y_{i−1}; c_{i−1}], s_{i−1}),  s_0 = 0
    e_ij = (W_1 h_j)·(W_2 s_i)         "mul", Eq. 7, unscaled
           (W_1 h_j)·(W_2 s_i) / √d    "scaled-mul", d rows in W_1 and W_2; not in the paper
           v·tanh(W_1 h_j + W_2 s_i)   "add", Eq. 6
    c_i = Σ_j softmax_j(e_i) h_j
    p = softmax(W tanh(W_c [s_i; c_i]))

Where the paper is silent, this follows the authors' code, google/seq2seq (`AttentionSeq2Seq`,
`BasicSeq2Seq`): all projections have biases, the context is fed to the next step, and the decoder
begins with zeros. That reproduces the printed number of parameters of every variation.

| attention    | instead of the above                                                     |
| ------------ | ------------------------------------------------------------------------ |
| "none-state" | s_0 = W_b [last states of the encoder]; no c and no W_c                  |
| "none-input" | c_i = c, the last states of the encoder's top, and the stack reads y + W_x c |
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import scores
from attnlab.core import tokens as tok
from attnlab.core.checks import as_rate, require, require_choice, require_sizes
from attnlab.models.alignment import align, blend
from attnlab.models.cells import CELLS, Cell
from attnlab.models.output import Logits
from attnlab.models.recurrent import (
    Bidirectional,
    Embed,
    Layer,
    Stack,
    StackStep,
    keep_carry,
    read_carry,
    step_by_step,
    time_first,
)
from attnlab.models.seq2seq import Seq2Seq
from attnlab.modules.conventions import Initializer, lecun_normal
from attnlab.modules.scores import AdditiveScore

__all__ = ["Britz"]

WITH_WEIGHTS = ("mul", "scaled-mul", "add")
ATTENTIONS = (*WITH_WEIGHTS, "none-state", "none-input")
DIRECTIONS = ("both", "forward", "backward")


class Britz(Seq2Seq):
    """A recurrent encoder and decoder, the baseline of Britz et al. 2017 unless told otherwise.

    The gates begin at 0, where those of TensorFlow's cells, which the paper used, begin at 1.

    | in the paper    | here                                                                      |
    | --------------- | ------------------------------------------------------------------------- |
    | Mul-128         | attention_features=128                                                    |
    | None-State      | attention="none-state"                                                    |
    | LSTM            | encoder_cell="lstm", decoder_cell="lstm"                                  |
    | Vanilla-Dec     | decoder_cell="tanh"                                                       |
    | Enc-4 (Bidi)    | encoder_layers=2, in each direction                                       |
    | Uni-2, Uni-2R   | direction="forward", "backward" (the source reversed), encoder_layers=2   |
    | Dec-4-Res, ResD | decoder_layers=4, decoder_residual="add", "dense", input_transform=True   |

    Attributes:
      source_vocab_size: number of ids of the source.
      target_vocab_size: number of ids of the target.
      embed_features: width of the embeddings.
      hidden_features: width of every layer's state, n.
      attention: kind of attention: "mul", "scaled-mul", "add", "none-state" or "none-input".
      attention_features: number of rows of W_1 and W_2.
      encoder_cell: name of the cell, one of `attnlab.models.cells.CELLS`: "gru", "lstm" or "tanh".
      decoder_cell: name of the cell, likewise.
      encoder_layers: number of layers of the encoder, in each direction.
      decoder_layers: number of layers of the decoder.
      encoder_residual: kind of residual in the encoder: None, "add" or "dense"; see `Stack`.
      decoder_residual: kind of residual in the decoder: None, "add" or "dense"; around the first
        layer only with `input_transform`.
      input_transform: whether to bring [y; c] to the width n first, as the released code does to
        make room for a residual around the first layer. The counts printed for Dec-8-Res and
        Dec-8-ResD are without it, those for Dec-4-Res and Dec-4-ResD with it.
      direction: direction in which the encoder reads: "both", "forward" or "backward".
      dropout_rate: rate of dropout on the input of each layer; 0.2 in the paper.
      dtype: dtype of the computation; None = that of the parameters. States and logits are float32.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of all kernels but those of embeddings, score and recurrence.
    """

    source_vocab_size: int
    target_vocab_size: int
    _: dataclasses.KW_ONLY
    embed_features: int = 512
    hidden_features: int = 512
    attention: str = "mul"
    attention_features: int = 512
    encoder_cell: str = "gru"
    decoder_cell: str = "gru"
    encoder_layers: int = 1
    decoder_layers: int = 2
    encoder_residual: str | None = None
    decoder_residual: str | None = None
    input_transform: bool = False
    direction: str = "both"
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Initializer = lecun_normal

    @property
    def attends(self) -> bool:
        return self.attention in WITH_WEIGHTS

    def setup(self):
        require_sizes(self, "source_vocab_size", "target_vocab_size", "embed_features")
        require_sizes(self, "hidden_features", "attention_features")
        require_sizes(self, "encoder_layers", "decoder_layers")
        require_choice("attention", self.attention, ATTENTIONS)
        require_choice("direction", self.direction, DIRECTIONS)
        require_choice("encoder_cell", self.encoder_cell, tuple(CELLS))
        require_choice("decoder_cell", self.decoder_cell, tuple(CELLS))
        require(
            not self.input_transform or self.attends,
            "input_transform is of [y; c], which only attention has; "
            f"got it with attention={self.attention!r}",
        )
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.source_embed = Embed(self.source_vocab_size, self.embed_features, **types)
        self.target_embed = Embed(self.target_vocab_size, self.embed_features, **types)
        options = types | {"kernel_init": self.kernel_init}
        encoder = self._stack(self.encoder_cell, self.encoder_layers, self.encoder_residual)
        if self.direction == "both":
            self.encoder: nn.Module = Bidirectional(*encoder, **options)
        else:
            self.encoder = Stack(*encoder, backward=self.direction == "backward", **options)
        stack = self._stack(self.decoder_cell, self.decoder_layers, self.decoder_residual)
        if self.attends:
            self.keys = nn.Dense(self.attention_features, **options)
            self.decoder: nn.Module = _Attending(
                StackStep(*stack, **options),
                self.attention,
                self.attention_features,
                self.input_transform,
                **options,
            )
        else:
            self.decoder = _Remembering(Stack(*stack, **options))
        if self.attention == "none-state":
            num_states = CELLS[self.decoder_cell].num_states * self.decoder_layers
            self.bridge = nn.Dense(num_states * self.hidden_features, **options)
        else:
            self.combine = nn.Dense(self.hidden_features, **options)
        if self.attention == "none-input":
            self.to_input = nn.Dense(self.embed_features, use_bias=False, **options)
        self.logits = Logits(self.target_vocab_size, **options)

    def encode(self, source: jax.Array, *, deterministic: bool = True) -> _Memory:
        lengths = tok.lengths(source)
        x = self.source_embed(source)
        annotations, last = self.encoder(x, lengths, deterministic=deterministic)
        if self.attends:
            return _Memory(annotations, self.keys(annotations), None, lengths)
        if self.attention == "none-state":
            bridged = self.bridge(jnp.concatenate(jax.tree.leaves(last), -1))
            return _Memory(None, None, self._as_states(bridged), lengths)
        tops = [side[-1] for side in (last if self.direction == "both" else (last,))]
        outputs = [top[-1] if isinstance(top, tuple) else top for top in tops]
        context = jnp.concatenate(outputs, -1).astype(x.dtype)[:, None]
        return _Memory(context, None, None, lengths)

    def decode(
        self, memory, tokens, *, deterministic=True, decode=False, return_weights=False
    ) -> Any:
        require(
            self.attends or not return_weights,
            f"attention={self.attention!r} has no weights; got return_weights=True",
        )
        x = self.target_embed(tokens)
        if self.attention == "none-input":
            x += self.to_input(memory.annotations)
        x, weights = self.decoder(memory, x, deterministic=deterministic, decode=decode)
        if self.attention != "none-state":
            contexts = memory.annotations
            if weights is not None:
                contexts = blend(weights, contexts)
            contexts = jnp.broadcast_to(contexts, (*x.shape[:2], contexts.shape[-1]))
            x = jnp.tanh(self.combine(jnp.concatenate([x, contexts], -1)))
        logits = self.logits(x)
        return (logits, weights) if return_weights else logits

    def _stack(
        self, cell: str, layers: int, residual: str | None
    ) -> tuple[type[Cell], int, int, str | None, float]:
        """What a `Stack` is made of."""
        return CELLS[cell], self.hidden_features, layers, residual, self.dropout_rate

    def _as_states(self, x: jax.Array) -> tuple[Any, ...]:
        """The columns of x [B, all states] cut into a state for each layer of the decoder."""
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        each = CELLS[self.decoder_cell].num_states
        parts = jnp.split(x, each * self.decoder_layers, -1)
        if each == 1:
            return tuple(parts)
        return tuple(tuple(parts[i : i + each]) for i in range(0, len(parts), each))


class _Memory(NamedTuple):
    """What is kept of a source; None where a model without attention has no use for it."""

    annotations: Any  # h_j [B, S, 2n]; "none-input": c [B, 1, 2n]
    keys: Any  # W_1 h_j [B, S, attention_features]
    states: tuple[Any, ...] | None  # of the decoder to begin with; None = zero
    lengths: jax.Array  # [B]


class _Remembering(nn.Module):
    """The decoder without attention: outputs [B, T, n], and no weights."""

    stack: Stack

    @nn.compact
    def __call__(self, memory: _Memory, x: jax.Array, *, deterministic: bool, decode: bool):
        states = read_carry(self, memory.states, len(x), decode)
        x, states = self.stack(x, states=states, deterministic=deterministic)
        keep_carry(self, states, decode)
        return x, None


class _Attending(Layer):
    """The decoder with attention: outputs s_i [B, T, n] and weights [B, T, S]."""

    stack: StackStep
    attention: str
    attention_features: int
    input_transform: bool

    @nn.compact
    def __call__(self, memory: _Memory, x: jax.Array, *, deterministic: bool, decode: bool):
        stack = self.stack
        to_gates = stack.cell.num_gates * stack.features
        # The first product of [y; c]: its half for y has no need to wait.
        first = stack.features if self.input_transform else to_gates

        def drop(x):
            return nn.Dropout(as_rate(stack.dropout_rate))(x, deterministic=deterministic)

        def step(self, carry, x, memory):
            states, fed = carry
            x += self._dense(first, "fed", use_bias=False)(drop(fed))
            if self.input_transform:
                gates = self._dense(to_gates, "gates")(drop(x))
                states, output = self.stack(states, gates, x, deterministic=deterministic)
            else:
                states, output = self.stack(states, x, deterministic=deterministic)
            weights = self._align(output[:, None], memory)
            fed = blend(weights, memory.annotations)[:, 0]
            return (states, fed), (output, weights[:, 0])

        x = self._dense(first, "input")(time_first(drop(x)))
        zero = stack.cell.zero_state(stack.features, x[0])
        start = ((zero,) * stack.num_layers, jnp.zeros_like(memory.annotations[:, 0]))
        return step_by_step(self, step, start, x, memory, decode)

    def _align(self, states: jax.Array, memory: _Memory) -> jax.Array:
        queries = self._dense(self.attention_features, "query")(states)
        score: scores.Score = scores.Dot(1.0 if self.attention == "mul" else None)
        if self.attention == "add":
            score = AdditiveScore(param_dtype=self.param_dtype, name="score")(
                queries[:, :, None], memory.keys[:, :, None]
            )
        return align(score, queries, memory.keys, memory.lengths)
