"""RNNsearch and the RNN encoder–decoder: Bahdanau, Cho, Bengio 2014.

Without biases, n the width of the states, x_j and y_i embedded tokens:

    h_j = [GRU(x_j, h→_{j−1}); GRU(x_j, h←_{j+1})]                 annotations, [2n]
    s_0 = tanh(W_s h←_1)
    α_i = softmax_j(v·tanh(W_a s_{i−1} + U_a h_j))                 the state BEFORE the step
    c_i = Σ_j α_ij h_j
    s_i = GRU(W y_{i−1} + C c_i, s_{i−1})
    t̃_i = U_o s_{i−1} + V_o y_{i−1} + C_o c_i,  t_i = maxout of pairs,  p = softmax(W_o t_i)

Hard attention takes one annotation, c_i = h_s with s ~ α_i, in place of the sum: Xu et al. 2015.

Only the recurrences run step by step. Of the context they need C c_i = Σ_j α_ij C h_j, so that C is
multiplied once with all annotations and not once a step with a context.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.core import tokens as tok
from attnlab.core.checks import as_rate, as_share, require, require_choice, require_sizes
from attnlab.core.tokens import PAD, shift_right
from attnlab.models.alignment import Attended, align, blend, one_hot
from attnlab.models.cells import GRUCell
from attnlab.models.output import Logits
from attnlab.models.recurrent import (
    Bidirectional,
    Embed,
    Layer,
    Recurrent,
    keep_carry,
    read_carry,
    require_rows,
    step_by_step,
    time_first,
)
from attnlab.models.seq2seq import Seq2Seq, as_pairs
from attnlab.modules.conventions import Initializer
from attnlab.modules.scores import AdditiveScore

_ATTENTION = ("soft", "hard", "straight_through")
_KEPT = 0.9  # of the baseline at each step: Xu et al. 2015, Eq. 11


class _Bahdanau(Seq2Seq):
    """What RNNsearch and its baseline share: fields, embeddings and the output layer."""

    source_vocab_size: int
    target_vocab_size: int
    _: dataclasses.KW_ONLY
    embed_features: int = 620
    hidden_features: int = 1000
    maxout_features: int = 500
    output_state: str = "before"
    use_bias: bool = False
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Initializer = nn.initializers.normal(0.01)

    def setup(self):
        require_sizes(self, "source_vocab_size", "target_vocab_size", "embed_features")
        require_sizes(self, "hidden_features", "maxout_features")
        require_choice("output_state", self.output_state, ("before", "after"))
        embedding = {
            "features": self.embed_features,
            "embedding_init": self.kernel_init,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
        }
        self.source_embed = Embed(self.source_vocab_size, **embedding)
        self.target_embed = Embed(self.target_vocab_size, **embedding)
        self.encoder = self._make_encoder()
        self.start = self._dense(self.hidden_features)
        self.decoder = self._make_decoder()
        self.maxout = self._dense(2 * self.maxout_features)
        self.logits = Logits(self.target_vocab_size, **self._options())
        self.dropout = nn.Dropout(as_rate(self.dropout_rate))

    def _make_encoder(self) -> nn.Module:
        raise NotImplementedError

    def _make_decoder(self) -> nn.Module:
        raise NotImplementedError

    def _options(self, **changed: Any) -> dict[str, Any]:
        names = ("use_bias", "dtype", "param_dtype", "kernel_init")
        return {name: getattr(self, name) for name in names} | changed

    def _dense(self, features: int, **changed: Any) -> nn.Dense:
        return nn.Dense(features, **self._options(**changed))

    def _annotations(self, source: jax.Array, deterministic: bool):
        """The annotations [B, S, n or 2n], and the state or states after the last step."""
        embedded = self.dropout(self.source_embed(source), deterministic=deterministic)
        outputs, states = self.encoder(embedded, tok.lengths(source))
        return self.dropout(outputs, deterministic=deterministic), states

    def _read_out(self, states, embedded, contexts, deterministic: bool) -> jax.Array:
        """Logits [B, T, V] of states [B, T, n], embeddings [B, T, m], contexts [B, T, n or 2n]."""
        hidden = self.maxout(
            jnp.concatenate([states.astype(embedded.dtype), embedded, contexts], -1)
        )
        hidden = hidden.reshape(*hidden.shape[:-1], self.maxout_features, 2).max(-1)
        return self.logits(self.dropout(hidden, deterministic=deterministic))


class RNNSearch(_Bahdanau, kw_only=True):
    """The encoder–decoder that searches the source while it translates: Bahdanau et al. 2014, §3.

    The output layer reads s_{i−1}, as §A.2.2 prints and the authors' code does, although Eq. 4 has
    s_i; `output_state="after"` is Eq. 4. `published/param_counts.csv` counts no biases.

    Cost of a target token: O(n²) + O(S·(n' + n)).

    Attributes:
      source_vocab_size: number of ids of the source.
      target_vocab_size: number of ids of the target.
      embed_features: width of the embeddings, m.
      hidden_features: width of each state, n.
      maxout_features: width of the layer before the vocabulary, l.
      output_state: state that the output layer reads, the one "before" or "after" the step.
      use_bias: whether there are biases, which the paper omits to save space.
      dropout_rate: rate of dropout on embeddings, annotations and the maxout layer; the paper has
        none.
      dtype: dtype of the computation; None = that of the parameters. States and logits are float32.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of all kernels but those of the recurrence, which are orthogonal, and
        of the alignment.
      align_features: hidden width of the alignment model, n'.
      align_init: initializer of W_a and U_a; v begins at zero, so that at first attention is
        uniform.
      attention: kind of the weights: "soft"; "hard", one annotation, sampled from the rng stream
        "sample" while training and else the likeliest, for `AttendedCrossEntropy`; or
        "straight_through", the same with the gradient of the soft weights.
      expected_rate: probability that a sentence in training has the soft weights all the same; 0.5
        in Xu et al. 2015, §4.1.
    """

    align_features: int = 1000
    align_init: Initializer = nn.initializers.normal(0.001)
    attention: str = "soft"
    expected_rate: float = 0.5

    def setup(self):
        super().setup()
        require_sizes(self, "align_features")
        require_choice("attention", self.attention, _ATTENTION)
        as_share("expected_rate", self.expected_rate)
        # No bias: the decoder's input projection, to which this is added, has one.
        self.context_to_gates = self._dense(3 * self.hidden_features, use_bias=False)
        self.align_keys = self._dense(self.align_features, kernel_init=self.align_init)

    def _make_encoder(self):
        return Bidirectional(GRUCell, self.hidden_features, **self._options())

    def _make_decoder(self):
        return _Searching(
            self.hidden_features,
            self.align_features,
            self.output_state == "before",
            self.align_init,
            self.attention,
            **self._options(),
        )

    def __call__(
        self,
        source: jax.Array,
        target: jax.Array,
        *,
        deterministic: bool = True,
        return_attention: bool = False,
    ) -> Any:
        """Logits [B, T, V] of the target [B, T] under teacher forcing, or `Attended` with them.

        Hard attention keeps a moving baseline in the collection "baseline", which `init` makes with
        `return_attention=True` and a training step moves (`mutable=["baseline"]`).
        """
        if not return_attention:
            return super().__call__(source, target, deterministic=deterministic)
        source, target = as_pairs(source, target)
        memory = self.encode(source, deterministic=deterministic)
        logits, (weights, taken, expects) = self._search(
            memory, shift_right(target), deterministic=deterministic
        )
        of_taken = (weights * jax.lax.stop_gradient(taken)).sum(-1)
        chosen = (taken.sum(-1) > 0) & ~expects[:, None]
        if self.attention == "soft":
            chosen = jnp.zeros_like(chosen)
        log_prob = jnp.log(jnp.where(chosen, of_taken, 1))
        return Attended(logits, weights, log_prob, self._advantage(logits, target, deterministic))

    def _advantage(self, logits: jax.Array, target: jax.Array, deterministic: bool) -> jax.Array:
        """Σ_t log p(y_t) of each sentence less the moving baseline, [B]; moves the baseline."""
        if self.attention != "hard":
            return jnp.zeros(len(target), logits.dtype)
        there = self.has_variable("baseline", "sum") or self.is_mutable_collection("baseline")
        require(
            there or deterministic,
            'hard attention is trained with a baseline; got no collection "baseline" (init with '
            'return_attention=True, and apply with mutable=["baseline"])',
        )
        total = self.get_variable("baseline", "sum", jnp.zeros((), jnp.float32))
        weight = self.get_variable("baseline", "weight", jnp.zeros((), jnp.float32))
        log_probs = jax.nn.log_softmax(jax.lax.stop_gradient(logits))
        log_probs = jnp.take_along_axis(log_probs, target[..., None], -1)[..., 0]
        reward = jnp.where(target != PAD, log_probs, 0).sum(-1)
        baseline = total / jnp.where(weight > 0, weight, 1)
        known = (weight > 0) & (not deterministic)
        if self.is_mutable_collection("baseline"):
            moves = not deterministic and not self.is_initializing()
            kept = _KEPT if moves else 1.0
            total = kept * total + (1 - kept) * reward.mean(dtype=jnp.float32)
            self.put_variable("baseline", "sum", total)
            self.put_variable("baseline", "weight", kept * weight + (1 - kept))
        return jnp.where(known, reward - baseline, 0)

    def encode(self, source: jax.Array, *, deterministic: bool = True) -> _Annotations:
        annotations, (_, (first,)) = self._annotations(source, deterministic)
        return _Annotations(
            annotations,
            self.align_keys(annotations),
            self.context_to_gates(annotations),
            jnp.tanh(self.start(first)).astype(first.dtype),
            tok.lengths(source),
        )

    def decode(
        self, memory, tokens, *, deterministic=True, decode=False, return_weights=False
    ) -> Any:
        outputs = self._search(memory, tokens, deterministic=deterministic, decode=decode)
        logits, (_, taken, _) = outputs
        return (logits, taken) if return_weights else logits

    def _search(self, memory, tokens, *, deterministic: bool, decode: bool = False) -> Any:
        """Logits; and the soft weights, those of the contexts, and which sentences have the soft.

        Shapes: [B, T, V]; [B, T, S], [B, T, S], [B].
        """
        embedded = self.dropout(self.target_embed(tokens), deterministic=deterministic)
        expects = jnp.zeros(len(tokens), bool)
        samples = self.attention != "soft" and not deterministic
        if samples:
            key = self.make_rng("sample")
            expects = jax.random.bernoulli(key, self.expected_rate, expects.shape)
        outputs = self.decoder(memory, embedded, expects, samples=samples, decode=decode)
        states, weights, taken = outputs
        contexts = blend(taken, memory.annotations)
        logits = self._read_out(states, embedded, contexts, deterministic)
        return logits, (weights, taken, expects)


class RNNEncDec(_Bahdanau):
    """The baseline without attention: c_i is h→_S, the last state of a forward encoder, for all i.

    s_0 = tanh(W_s h→_S), as in Cho et al. 2014: no other way leads from the source to the target.
    Source: Bahdanau et al. 2014, §4.2 and §A.2.2.

    Attributes: as for `RNNSearch`, which has more.
    """

    @property
    def attends(self) -> bool:
        return False

    def _make_encoder(self):
        return Recurrent(GRUCell, self.hidden_features, **self._options())

    def _make_decoder(self):
        return _Remembering(self.hidden_features, self.output_state == "before", **self._options())

    def encode(self, source: jax.Array, *, deterministic: bool = True) -> _Summary:
        _, last = self._annotations(source, deterministic)
        last = self.dropout(last, deterministic=deterministic)
        return _Summary(last, jnp.tanh(self.start(last)).astype(last.dtype))

    def decode(
        self, memory, tokens, *, deterministic=True, decode=False, return_weights=False
    ) -> Any:
        require(
            not return_weights,
            "RNNEncDec has no attention; got return_weights=True (use RNNSearch)",
        )
        require_rows(memory, len(tokens))
        embedded = self.dropout(self.target_embed(tokens), deterministic=deterministic)
        context = memory.context.astype(embedded.dtype)[:, None]
        contexts = jnp.broadcast_to(context, (*tokens.shape, context.shape[-1]))
        inputs = jnp.concatenate([embedded, contexts], -1)
        states = self.decoder(memory.start, inputs, decode=decode)
        return self._read_out(states, embedded, contexts, deterministic)


class _Annotations(NamedTuple):
    """What RNNsearch keeps of a source."""

    annotations: jax.Array  # h_j [B, S, 2n]
    keys: jax.Array  # U_a h_j [B, S, n']
    gates: jax.Array  # C h_j [B, S, 3n]
    start: jax.Array  # s_0 [B, n]
    lengths: jax.Array  # [B]


class _Summary(NamedTuple):
    """What RNNencdec keeps of a source."""

    context: jax.Array  # h→_S [B, n]
    start: jax.Array  # s_0 [B, n]


class _Searching(Layer):
    """The decoder of RNNsearch: states for the output layer [B, T, n], and two kinds of weights.

    They are α and those of the contexts, [B, T, S]; of soft attention the same.
    """

    hidden_features: int
    align_features: int
    output_before: bool
    align_init: Initializer
    attention: str

    @nn.compact
    def __call__(
        self,
        memory: _Annotations,
        embedded: jax.Array,
        expects: jax.Array,
        *,
        samples: bool,
        decode: bool,
    ):
        x = self._dense(3 * self.hidden_features, "input")(time_first(embedded))

        def step(self, state, x, memory):
            query = self._dense(
                self.align_features,
                "query",
                use_bias=False,  # the keys have it
                kernel_init=self.align_init,
            )(state[:, None])
            score = AdditiveScore(
                kernel_init=nn.initializers.zeros, param_dtype=self.param_dtype, name="score"
            )(query[:, :, None], memory.keys[:, :, None])
            query = query.astype(memory.keys.dtype)  # the state it is of is float32
            weights = align(score, query, memory.keys, memory.lengths)
            taken = self._taken(weights, expects, samples)
            context = blend(taken, memory.gates)[:, 0]
            cell = GRUCell(self.hidden_features, param_dtype=self.param_dtype, name="cell")
            after, _ = cell(state, x + context)
            shown = state if self.output_before else after
            return after, (shown, weights[:, 0], taken[:, 0])

        return step_by_step(self, step, memory.start, x, memory, decode)

    def _taken(self, weights: jax.Array, expects: jax.Array, samples: bool) -> jax.Array:
        """The weights of the contexts, for α [B, 1, S]."""
        if self.attention == "soft":
            return weights
        taken = one_hot(weights, self.make_rng("sample") if samples else None)
        if self.attention == "straight_through":
            taken += weights - jax.lax.stop_gradient(weights)
        return jnp.where(expects[:, None, None], weights, taken)


class _Remembering(Layer):
    """The decoder of RNNencdec: states for the output layer [B, T, n]."""

    hidden_features: int
    output_before: bool

    @nn.compact
    def __call__(self, start: jax.Array, inputs: jax.Array, *, decode: bool) -> jax.Array:
        start = read_carry(self, start, len(inputs), decode)
        gru = Recurrent(GRUCell, self.hidden_features, name="gru", **self._options())
        states, last = gru(inputs, state=start)
        keep_carry(self, last, decode)
        if not self.output_before:
            return states
        return jnp.concatenate([start[:, None].astype(states.dtype), states[:, :-1]], 1)
