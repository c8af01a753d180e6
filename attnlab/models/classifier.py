"""A classifier of long inputs on the Transformer's encoder: Tay et al. 2020, §2.3 and App. A."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.checks import require_choice
from attnlab.models.transformer.config import TransformerConfig
from attnlab.models.transformer.encoder_decoder import TransformerEncoder
from attnlab.models.transformer.layers import dense
from attnlab.models.transformer.stack import Attention
from attnlab.tokens import PAD

__all__ = ["EncoderClassifier"]


class EncoderClassifier(nn.Module):
    """Logits of the classes of a sequence, or of a pair: W₂ relu(W₁ x + b₁) + b₂.

    x is a state of the encoder: that of the first token, or the mean of all that are no padding. Of
    a pair, whose two are encoded apart, it is [x₁, x₂, x₁ ∘ x₂, x₁ − x₂].

    Attributes:
      config: sizes and choices of the encoder.
      num_classes: number of classes, C.
      pooling: state that is classified: "first", which is that of a [CLS], or "mean".
      attention: self-attention module, copied for each layer, or the pattern of modules that the
        layers repeat; None = `config.attention()`.
    """

    config: TransformerConfig
    num_classes: int
    pooling: str = "first"
    attention: Attention | None = None

    @nn.compact
    def __call__(self, tokens: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Logits [B, C] float32.

        Args:
          tokens: token ids [B, T], or of pairs [B, 2, T], padded at the end.
          deterministic: whether dropout is off.
        """
        require_choice("pooling", self.pooling, ("first", "mean"))
        c = self.config
        *rows, length = tokens.shape
        flat = tokens.reshape(-1, length)
        encoder = TransformerEncoder(c, self.attention, name="encoder")
        states = encoder(flat, deterministic=deterministic)
        x = states[:, 0]
        if self.pooling == "mean":
            real = (flat != PAD)[..., None]
            x = jnp.where(real, states, 0).sum(1) / jnp.maximum(real.sum(1), 1)
        x = x.reshape(*rows, c.width)
        if len(rows) == 2:
            first, second = x[:, 0], x[:, 1]
            x = jnp.concatenate([first, second, first * second, first - second], -1)
        hidden = nn.relu(dense(c, c.hidden, "hidden")(x))
        return dense(c, self.num_classes, "classes")(hidden).astype(jnp.float32)
