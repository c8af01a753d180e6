"""The Reformer as a language model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attnlab.models.reformer.stack import ReversibleStack
from attnlab.models.transformer.config import TransformerConfig
from attnlab.models.transformer.language_model import LanguageModel
from attnlab.models.transformer.layers import Inputs, Vocabulary, dense, layer_norm
from attnlab.models.transformer.stack import pattern_of
from attnlab.ops import routes

__all__ = ["Reformer"]


class Reformer(LanguageModel):
    """Logits LN([y1, y2]) W + b of the two streams after all layers (Kitaev et al. 2020, §3).

    Its layers are pre-norm and its softmax has a matrix of its own, [2·D, V]. `Reformer.enwik8()`
    is the released model of 149,182,722 parameters.

    Parameters: "vocabulary", "inputs" (axial or learned positions), "decoder" (`ReversibleStack`),
    "norm", "softmax".

    Attributes:
      config: sizes and choices; `remat`, `share_embeddings` and `pre_norm` are ignored.
      attention: self-attention module, copied for each layer, or the pattern of modules that the
        layers repeat; None = LSH with 4 rounds.
      stream_dtype: dtype of the residual streams, as for `ReversibleStack`.
    """

    stream_dtype: Any = jnp.float32

    def setup(self):
        c = self.config
        attention = c.attention(routes.LSH()) if self.attention is None else self.attention
        self.vocabulary = Vocabulary(c.vocab_size, c)
        self.inputs = Inputs(c)
        self.decoder = ReversibleStack(c, pattern_of(c, attention), self.stream_dtype)
        self.norm = layer_norm(c)
        self.softmax = dense(c, c.vocab_size)

    def logits_of(self, x: jax.Array, **options: Any) -> jax.Array:
        logits = self.softmax(self.norm(self.decoder(x, **options)))
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

    @classmethod
    def enwik8(cls, **changed: Any) -> Reformer:
        """The released model of enwik8's bytes, 65,536 at a time: 12 layers of width 1024.

        Every fourth layer, from the third on, has LSH with 2 rounds, 512 buckets and chunks of 256;
        the others have `routes.Chunked(128)`: a position sees the past in its own chunk of 128 and
        in the one before. LSH is strictly causal here. Source: the paper's code of January 2020;
        dropout 0.2. The layers are scanned.

        Args:
          **changed: other fields of `TransformerConfig`, such as `dtype=jnp.bfloat16`.
        """
        given: dict[str, Any] = {
            "num_layers": 12,
            "width": 1024,
            "hidden": 4096,
            "num_heads": 8,
            "key_width": 128,
            "value_width": 128,
            "share_embeddings": False,
            "scale_embeddings": False,
            "positions": "axial",
            "max_length": 65536,
            "axial_shape": (128, 512),
            "axial_widths": (256, 768),
            "dropout_rate": 0.2,
            "attention_dropout_rate": 0.2,
            "scan_layers": True,
        }
        config = TransformerConfig(258, **(given | changed))
        local = config.attention(routes.Chunked(128))
        lsh = config.attention(routes.LSH(num_hashes=2, num_buckets=512, chunk_size=256))
        return cls(config, attention=(local, local, lsh, local))
