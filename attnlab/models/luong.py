"""Global and local attention in a stacked LSTM: Luong, Pham, Manning 2015.

With h̄_s the top state of the encoder at source word s and h_t that of the decoder at step t:

    h_t = LSTM([y_{t−1}; h̃_{t−1}], h_{t−1})             input feeding, §3.3; without it no h̃
    a_t = softmax_s(score(h_t, h̄_s))                    the state AFTER the step
    c_t = Σ_s a_t(s) h̄_s
    h̃_t = tanh(W_c [c_t; h_t]),  p = softmax(W_s h̃_t)

| score    | formula                | window  | which source words s are seen               |
| -------- | ---------------------- | ------- | ------------------------------------------- |
| location | (W_a h_t)_s            | global  | all                                         |
| dot      | h_t·h̄_s                | local-m | within D of t                               |
| general  | h_t·W_a h̄_s            | local-p | within D of p_t = S·sigmoid(v·tanh(W_p h_t)), |
| concat   | v·tanh(W_a [h_t; h̄_s]) |         | weights then times exp(−2(s − p_t)²/D²)     |

Without a score there is no attention, and h̃_t = h_t: the baseline of the paper's Table 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import masks, scores
from attnlab.core import tokens as tok
from attnlab.core.checks import as_rate, require, require_choice, require_sizes
from attnlab.models.alignment import align, blend
from attnlab.models.cells import LSTMCell, uniform_around_zero
from attnlab.models.output import Logits
from attnlab.models.recurrent import (
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
from attnlab.modules.conventions import Initializer
from attnlab.modules.scores import AdditiveScore, LocationScore
from attnlab.ops.local import local_attention

__all__ = ["Luong"]

SCORES = ("location", "dot", "general", "concat")
WINDOWS = ("global", "local-m", "local-p")


class Luong(Seq2Seq):
    """Attention from the current state of a stacked LSTM: Luong et al. 2015, §3.

    A reversed source is read from its last word to its first, but positions stay those of the
    source as it is written: the center t of local-m, the position s of "location" and the weights
    all speak of its s-th word. (Counted in the reversed source, local-m would look for the first
    words of the target at the end of the source.) As in the paper, local-p's weights do not sum to
    1; a step of local-m beyond S + D sees nothing and has the context zero.

    Row t of the weights is of the step that predicts word t of the target. Footnote 14 of the paper
    reads those of dot, general and concat as of the word before, which the step has read; in models
    trained here they point at the word that is predicted.

    Cost of a target token: O(layers · n²) + O(S·n), with a local window O(D·n).

    Attributes:
      source_vocab_size: number of ids of the source.
      target_vocab_size: number of ids of the target.
      embed_features: width of the embeddings.
      hidden_features: width of every layer's state, n.
      num_layers: number of layers of the encoder, and also of the decoder, which begins with the
        encoder's last states.
      score: name of the score: "location", "dot", "general" or "concat"; None = no attention, which
        needs input_feeding=False. Here concat learns all of W_a; the paper's authors fixed the half
        that meets the source to the identity (footnote 15).
      window: kind of window: "global", "local-m" or "local-p"; a local window refuses "location".
      half_width: half width D of the local windows.
      max_source_length: number of words that "location" can look at; it ignores later ones.
      input_feeding: whether h̃ is an input of the next step.
      reverse_source: whether to read the source backwards.
      dropout_rate: rate of dropout on the input of each layer and on h̃; 0.2 in the paper's better
        models.
      dtype: dtype of the computation; None = that of the parameters. States and logits are float32.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of all parameters but the biases of the LSTM, the only biases there
        are.
    """

    source_vocab_size: int
    target_vocab_size: int
    _: dataclasses.KW_ONLY
    embed_features: int = 1000
    hidden_features: int = 1000
    num_layers: int = 4
    score: str | None = "general"
    window: str = "global"
    half_width: int = 10
    max_source_length: int = 50
    input_feeding: bool = True
    reverse_source: bool = True
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Initializer = uniform_around_zero(0.1)

    @property
    def attends(self) -> bool:
        """Whether there is a score."""
        return self.score is not None

    def setup(self):
        require_sizes(self, "source_vocab_size", "target_vocab_size", "embed_features")
        require_sizes(self, "hidden_features", "num_layers", "max_source_length")
        if self.attends:
            require_choice("score", self.score, SCORES)
        require_choice("window", self.window, WINDOWS)
        require(
            self.score is not None or (self.window == "global" and not self.input_feeding),
            "score=None has no attention: no window, and no h̃ to feed to the next step; got "
            f"window={self.window!r}, input_feeding={self.input_feeding} (give 'global' and False)",
        )
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        embedding = types | {"features": self.embed_features, "embedding_init": self.kernel_init}
        self.source_embed = Embed(self.source_vocab_size, **embedding)
        self.target_embed = Embed(self.target_vocab_size, **embedding)
        options = types | {"kernel_init": self.kernel_init}
        of_lstm = options | {"recurrent_init": self.kernel_init}
        self.encoder = Stack(
            LSTMCell,
            self.hidden_features,
            self.num_layers,
            dropout_rate=self.dropout_rate,
            backward=self.reverse_source,
            **of_lstm,
        )
        if self.score in ("general", "concat"):
            self.keys = nn.Dense(self.hidden_features, use_bias=False, **options)
        attend = _Attend(
            self.hidden_features,
            self.score,
            self.window,
            self.half_width,
            self.max_source_length,
            use_bias=False,
            **options,
        )
        make_decoder = _Feeding if self.input_feeding else _Stacked
        self.decoder = make_decoder(
            attend, self.hidden_features, self.num_layers, self.dropout_rate, **of_lstm
        )
        self.logits = Logits(self.target_vocab_size, use_bias=False, **options)
        self.dropout = nn.Dropout(as_rate(self.dropout_rate))

    def encode(self, source: jax.Array, *, deterministic: bool = True) -> _Memory:
        lengths = tok.lengths(source)
        x, last = self.encoder(self.source_embed(source), lengths, deterministic=deterministic)
        keys = self.keys(x) if self.score in ("general", "concat") else None
        return _Memory(x, keys, last, lengths)

    def decode(
        self, memory, tokens, *, deterministic=True, decode=False, return_weights=False
    ) -> Any:
        require(
            self.attends or not return_weights,
            "score=None has no weights; got return_weights=True",
        )
        states, weights = self.decoder(
            memory, self.target_embed(tokens), deterministic=deterministic, decode=decode
        )
        logits = self.logits(self.dropout(states, deterministic=deterministic))
        return (logits, weights) if return_weights else logits


class _Memory(NamedTuple):
    """What is kept of a source."""

    states: jax.Array  # h̄_s of the top layer [B, S, n]
    keys: jax.Array | None  # W_a h̄_s [B, S, n]; None = the states
    last: tuple[tuple[jax.Array, jax.Array], ...]  # (c, h) of each layer, [B, n]
    lengths: jax.Array  # [B]


class _Attend(Layer):
    """h̃_t [B, T, n] and a_t [B, T, S] of the states h_t [B, T, n] at the steps t [T].

    Without a score h̃_t is h_t, and there are no weights.
    """

    hidden_features: int
    score: str | None
    window: str
    half_width: int
    max_source_length: int

    @nn.compact
    def __call__(self, states: jax.Array, memory: _Memory, steps: jax.Array):
        if self.score is None:
            return states, None
        queries = (
            self._dense(self.hidden_features, "query")(states) if self.score == "concat" else states
        )
        keys = memory.states if memory.keys is None else memory.keys
        score = self._score(queries, keys)
        queries = queries.astype(keys.dtype)
        if self.window == "global":
            weights = align(score, queries, keys, memory.lengths)
            contexts = blend(weights, memory.states)
        else:
            centers = jnp.broadcast_to(steps[None], states.shape[:2])
            if self.window == "local-p":
                hidden = jnp.tanh(self._dense(self.hidden_features, "center_hidden")(states))
                logit = self._dense(1, "center")(hidden)[..., 0]
                logit = logit.astype(jnp.promote_types(logit.dtype, jnp.float32))
                centers = memory.lengths[:, None] * nn.sigmoid(logit)
            attended: Any = local_attention(
                queries[:, :, None],
                keys[:, :, None],
                memory.states[:, :, None],
                centers,
                half_width=self.half_width,
                score=score,
                gaussian=self.window == "local-p",
                mask=masks.Padding(memory.lengths),
                return_weights=True,
            )
            contexts, weights = attended[0][:, :, 0], attended[1][:, 0]
        both = jnp.concatenate([contexts, states.astype(contexts.dtype)], -1)
        return jnp.tanh(self._dense(self.hidden_features, "combine")(both)), weights

    def _score(self, queries: jax.Array, keys: jax.Array) -> scores.Score:
        if self.score == "location":
            module: nn.Module = LocationScore(
                self.max_source_length, self.kernel_init, self.param_dtype, name="score"
            )
        elif self.score == "concat":
            module = AdditiveScore(
                kernel_init=self.kernel_init, param_dtype=self.param_dtype, name="score"
            )
        else:  # dot; and general, whose W_a is in the keys
            return scores.Dot(1.0)
        return module(queries[:, :, None], keys[:, :, None])


class _Decoder(Layer):
    """What the decoders are told: their attention, and the sizes and options of the LSTM."""

    attend: _Attend
    hidden_features: int
    num_layers: int
    dropout_rate: float

    def _stack(self, kind: type[Stack] | type[StackStep]) -> Any:
        return kind(
            LSTMCell,
            self.hidden_features,
            self.num_layers,
            dropout_rate=self.dropout_rate,
            name="stack",
            **self._options(),
        )


class _Stacked(_Decoder):
    """The decoder without input feeding: attention once for all steps, after the LSTM."""

    @nn.compact
    def __call__(self, memory: _Memory, x: jax.Array, *, deterministic: bool, decode: bool):
        start = (jnp.zeros((), jnp.int32), memory.last)
        first, states = read_carry(self, start, len(x), decode)
        x, last = self._stack(Stack)(x, states=states, deterministic=deterministic)
        keep_carry(self, (first + x.shape[1], last), decode)
        return self.attend(x, memory, first + jnp.arange(x.shape[1]))


class _Feeding(_Decoder):
    """The decoder with input feeding: attention within the step, as the next one wants h̃."""

    @nn.compact
    def __call__(self, memory: _Memory, x: jax.Array, *, deterministic: bool, decode: bool):
        width = LSTMCell.num_gates * self.hidden_features

        def drop(x):
            return nn.Dropout(as_rate(self.dropout_rate))(x, deterministic=deterministic)

        def step(self, carry, x, memory):
            now, states, fed = carry
            gates = x + self._dense(width, "fed", use_bias=False)(drop(fed))
            states, x = self._stack(StackStep)(states, gates, deterministic=deterministic)
            fed, weights = self.attend(x[:, None], memory, now[None])
            return (now + 1, states, fed[:, 0]), (fed[:, 0], weights[:, 0])

        x = self._dense(width, "input")(time_first(drop(x)))
        start = (
            jnp.zeros((), jnp.int32),
            memory.last,
            jnp.zeros((x.shape[1], self.hidden_features), x.dtype),
        )
        return step_by_step(self, step, start, x, memory, decode)
