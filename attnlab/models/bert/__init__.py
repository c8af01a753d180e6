"""BERT (Devlin et al. 2018): the Transformer's encoder, pre-trained on masked text.

    >>> import jax, jax.numpy as jnp
    >>> from attnlab import routes
    >>> from attnlab.models import BertPretraining, TransformerConfig
    >>> config = TransformerConfig.bert(17, num_layers=1, width=8, hidden=16, num_heads=2)
    >>> model = BertPretraining(config, config.attention(routes.Window(3, 3)))
    >>> tokens, masked = jnp.full((1, 9), 4), jnp.array([[2, 5]])
    >>> variables = model.init(jax.random.key(0), tokens, masked=masked)
    >>> outputs = model.apply(variables, tokens, masked=masked)
    >>> outputs.masked.logits().shape, outputs.next.shape
    ((1, 2, 17), (1, 2))

Parameters: "bert" ("vocabulary", "inputs", "encoder", "pooler") is in every model of this package,
so that one starts from what another learnt; `BertPretraining` adds "transform", "transform_norm",
"bias" and "next", `BertClassifier` adds "classes". `from_hugging_face` reads released weights, and
`to_hugging_face` writes them.

Letters: B batch, T tokens, M masked tokens, D width, V vocabulary, C classes.
"""

from attnlab.models.bert.hugging_face import from_hugging_face, to_hugging_face
from attnlab.models.bert.model import Bert, BertClassifier, BertPretraining, Pretraining

__all__ = [
    "Bert",
    "BertClassifier",
    "BertPretraining",
    "Pretraining",
    "from_hugging_face",
    "to_hugging_face",
]
