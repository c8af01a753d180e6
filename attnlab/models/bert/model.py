"""The encoder with its pooler, under the heads of pre-training, or of a classifier."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.core.checks import as_array, require, require_choice, require_sizes
from attnlab.core.shapes import fit
from attnlab.core.tokens import PAD, row_numbers
from attnlab.models.output import DeferredLogits
from attnlab.models.transformer.config import TransformerConfig
from attnlab.models.transformer.encoder_decoder import TransformerEncoder
from attnlab.models.transformer.layers import dense, layer_norm
from attnlab.models.transformer.stack import Attention

LABELLED = ("sequence", "tokens", "span")


class Bert(TransformerEncoder):
    """States of all tokens, and one of the sequence: tanh(W x_0 + b), x_0 that of the first token.

    Attributes: as for `TransformerEncoder`; the sizes of the paper are `TransformerConfig.bert`.
    """

    def setup(self):
        super().setup()
        self.pooler = dense(self.config, self.config.width)

    def __call__(self, tokens: jax.Array, types: jax.Array | None = None, **options: Any):
        """States [B, T, D] and pooled state [B, D]; arguments as for `TransformerEncoder`."""
        states = super().__call__(tokens, types, **options)
        return states, nn.tanh(self.pooler(states[:, 0]))


class Pretraining(NamedTuple):
    """What the heads of pre-training say.

    Attributes:
      masked: logits [B, M, V] of the masked tokens, which a loss computes in blocks.
      next: logits [B, 2] of the second segment following the first: 0 it does not, 1 it does.
    """

    masked: DeferredLogits
    next: jax.Array


class BertPretraining(nn.Module):
    """Masked language model and next-sentence prediction (Devlin et al. 2018, §3.1).

    The state x of a masked token goes through LN(gelu(W x + b)) and the embeddings' matrix with
    biases of its own; all other tokens have no logits, so that the vocabulary costs O(B · M · V).

    Attributes:
      config: sizes and choices.
      attention: self-attention module, copied for each layer, or the pattern of modules that the
        layers repeat, as for `Transformer`; None = `config.attention()`.
    """

    config: TransformerConfig
    attention: Attention | None = None

    def setup(self):
        c = self.config
        self.bert = Bert(c, self.attention)
        self.transform = dense(c, c.width)
        self.transform_norm = layer_norm(c)
        self.bias = self.param("bias", nn.initializers.zeros, (c.vocab_size,), c.param_dtype)
        self.next = dense(c, 2, makes_logits=True)

    def __call__(
        self,
        tokens: jax.Array,
        types: jax.Array | None = None,
        *,
        masked: jax.Array,
        deterministic: bool = True,
    ) -> Pretraining:
        """Logits of the masked tokens and of the pair of segments.

        Args:
          tokens: token ids [B, T], padded at the end, some of them masked.
          types: segments 0 and 1 of the tokens, [B, T]; None = all 0.
          masked: positions [B, M] of the tokens to predict; NaN where there is none.
          deterministic: whether dropout is off.

        Raises:
          ValueError: masked are no integers [B, M].
        """
        masked = as_array("masked", masked)
        require(
            jnp.issubdtype(masked.dtype, jnp.integer),
            f"masked must be the positions of masked tokens, integers [B, M]; got {masked.dtype}"
            " (not booleans of all tokens)",
        )
        fit("tokens: B T", tokens, "masked: B M", masked)
        states, pooled = self.bert(tokens, types, deterministic=deterministic)
        masked = row_numbers(masked, states.shape[1])
        x = jnp.take_along_axis(states, masked[..., None], axis=1)
        x = self.transform_norm(self.config.activation(self.transform(x)))
        return Pretraining(self.bert.vocabulary.deferred(x, self.bias), self.next(pooled))


class BertClassifier(nn.Module):
    """Logits of the classes of a sequence, of each of its tokens, or of the ends of a span in it.

    Source: Devlin et al. 2018, §4 and §5.3.

    Attributes:
      config: sizes and choices.
      num_classes: number of classes, C; not used for a span.
      labelled: name of what has a class: "sequence" (the pooled state is classified), "tokens", or
        "span", whose first and last token are searched among those of type 1 and the first of all,
        or where there are no types among all that are no padding.
      attention: self-attention module, as for `BertPretraining`.
      frozen: whether what is below the classifier gets no gradient ("feature-based"). A sequence is
        then classified by the mean of its states: the pooler is trained with the classes.
    """

    config: TransformerConfig
    num_classes: int = 2
    labelled: str = "sequence"
    attention: Attention | None = None
    frozen: bool = False

    @nn.compact
    def __call__(
        self, tokens: jax.Array, types: jax.Array | None = None, *, deterministic: bool = True
    ) -> jax.Array:
        """Logits: [B, C] of a sequence, [B, T, C] of tokens, [B, 2, T] of a span.

        Args:
          tokens: token ids [B, T], padded at the end.
          types: segments 0 and 1 of the tokens, [B, T]; None = all 0, and no second segment to
            search a span in.
          deterministic: whether dropout is off.
        """
        require_choice("labelled", self.labelled, LABELLED)
        require_sizes(self, "num_classes")
        c = self.config
        bert = Bert(c, self.attention, name="bert")
        states, pooled = bert(tokens, types, deterministic=deterministic or self.frozen)
        real = jnp.asarray(tokens) != PAD
        x = pooled if self.labelled == "sequence" else states
        if self.frozen:
            if self.labelled == "sequence":
                length = jnp.maximum(real.sum(1, keepdims=True), 1)  # 0 where a row fills a batch
                x = jnp.where(real[..., None], states, 0).sum(1) / length
            x = jax.lax.stop_gradient(x)
        x = nn.Dropout(c.dropout_rate)(x, deterministic=deterministic)
        count = 2 if self.labelled == "span" else self.num_classes
        logits = dense(c, count, "classes", makes_logits=True)(x)
        if self.labelled != "span":
            return logits
        within = real if types is None else real & (jnp.asarray(types) == 1)
        within = within.at[:, 0].set(True)  # the first token says that there is no answer
        return jnp.where(within[:, None], logits.swapaxes(1, 2), -jnp.inf)
