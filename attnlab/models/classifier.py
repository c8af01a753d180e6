"""A classifier of long inputs, or of their tokens, on the Transformer's encoder.

Source: Tay et al. 2020, §2.3 and App. A.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.core.checks import as_array, require, require_choice, require_sizes
from attnlab.core.tokens import PAD
from attnlab.models.transformer.config import TransformerConfig
from attnlab.models.transformer.encoder_decoder import TransformerEncoder
from attnlab.models.transformer.layers import dense
from attnlab.models.transformer.stack import Attention


class EncoderClassifier(nn.Module):
    """Logits of the classes of a sequence, or of a pair: W₂ relu(W₁ x + b₁) + b₂.

    x is a state of the encoder: that of the first token, or the mean of all that are no padding. Of
    a pair, whose two are encoded apart, it is [x₁, x₂, x₁ ∘ x₂, x₁ − x₂]. Or each token has logits
    of its own, as a model that predicts masked ones needs.

    Attributes:
      config: sizes and choices of the encoder.
      num_classes: number of classes, C.
      pooling: state that is classified: "first", which is that of a [CLS], "mean", or "none", all.
      attention: self-attention module, copied for each layer, or the pattern of modules that the
        layers repeat; None = `config.attention()`.
    """

    config: TransformerConfig
    num_classes: int
    pooling: str = "first"
    attention: Attention | None = None

    @nn.compact
    def __call__(self, tokens: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Logits [B, C] float32; without pooling of each token, [B, T, C] or [B, 2, T, C].

        Args:
          tokens: token ids [B, T], or of pairs [B, 2, T], padded at the end.
          deterministic: whether dropout is off.
        """
        require_choice("pooling", self.pooling, ("first", "mean", "none"))
        require_sizes(self, "num_classes")
        tokens = as_array("tokens", tokens)
        require(
            tokens.ndim == 2 or (tokens.ndim == 3 and tokens.shape[1] == 2),
            f"tokens must be [B, T], or of pairs [B, 2, T]; got {tokens.shape}",
        )
        c = self.config
        encoder = TransformerEncoder(c, self.attention, name="encoder")
        states = encoder(tokens.reshape(-1, tokens.shape[-1]), deterministic=deterministic)
        x = states.reshape(*tokens.shape, c.width)  # [*B, T, D]
        if self.pooling == "first":
            x = x[..., 0, :]
        if self.pooling == "mean":
            real = (tokens != PAD)[..., None]
            x = jnp.where(real, x, 0).sum(-2) / jnp.maximum(real.sum(-2), 1)
        if self.pooling != "none" and tokens.ndim == 3:
            first, second = x[:, 0], x[:, 1]
            x = jnp.concatenate([first, second, first * second, first - second], -1)
        hidden = nn.relu(dense(c, c.hidden, "hidden")(x))
        return dense(c, self.num_classes, "classes", makes_logits=True)(hidden)
