"""The Transformer (Vaswani et al. 2017): encoder–decoder, encoder alone, decoder alone.

One stack of layers serves all three, with any attention: `attention=` is a module that is copied
for each layer, so that a window, LSH or an additive score need no model of their own.

    >>> import jax, jax.numpy as jnp
    >>> from attnlab import routes
    >>> from attnlab.models import Transformer, TransformerConfig
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

from attnlab.models.transformer.config import TransformerConfig
from attnlab.models.transformer.encoder_decoder import Memory, Transformer, TransformerEncoder
from attnlab.models.transformer.language_model import LanguageModel, TransformerLM

__all__ = [
    "LanguageModel",
    "Memory",
    "Transformer",
    "TransformerConfig",
    "TransformerEncoder",
    "TransformerLM",
]
