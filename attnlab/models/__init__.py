"""The systems that the mechanisms come from, as Flax Linen modules.

They are faithful to the papers' equations, and parameter counts are met to the last one where a
paper's can be known (`experiments/published/param_counts.csv`).

| model | paper | what it is | parameters at the paper's sizes |
| --- | --- | --- | --: |
| `RNNSearch`, `RNNEncDec` | Bahdanau 2014 | bidirectional GRU, additive attention from the state \
before the step; the same with a fixed vector | 80,401,000 |
| `Luong` | Luong 2015 | stacked LSTM; location, dot, general or concat × global, local-m or \
local-p; input feeding | |
| `NMTAttn` | trax | LSTMs around one multi-head attention for all target positions | |
| `Britz` | Britz 2017 | the ablations: cells, depths, directions, additive against \
multiplicative | 66,324,623 |
| `Transformer`, `TransformerEncoder`, `TransformerLM` | Vaswani 2017 | one stack of layers with \
any attention: `attention=` | 63,045,632 |
| `Bert`, `BertPretraining`, `BertClassifier` | Devlin 2018 | the encoder, pre-trained on masked \
text; classes of sequences, tokens and spans | 109,482,240 |
| `Reformer` | Kitaev 2020 | reversible layers, LSH and local attention in any pattern, chunked \
feed-forward, axial positions | 149,182,722 |

>>> import jax, jax.numpy as jnp
>>> from attnlab import routes
>>> from attnlab.models import Transformer, TransformerConfig
>>> from attnlab.training.decode import beam_search
>>> config = TransformerConfig(100, num_layers=1, width=16, hidden=32, num_heads=2)
>>> restricted = config.attention(routes.Window(8, 8))  # any score, any route
>>> translator = Transformer(config, attention=restricted)
>>> source = jnp.full((2, 12), 7)  # token ids, padded with 0
>>> weights = jax.jit(translator.init)(jax.random.key(0), source, source)
>>> beam_search(translator, weights, source, beam_size=2, max_length=6).tokens.shape
(2, 6)

A model that writes tokens is a `Decoder`, with a source a `Seq2Seq`: `encode` makes a memory,
`decode` gives logits for all positions or, with `decode=True`, continues after a cache. `greedy`,
`sample` and `beam_search` serve every one of them.
"""

from attnlab.models.bert import Bert, BertClassifier, BertPretraining
from attnlab.models.britz import Britz
from attnlab.models.classifier import EncoderClassifier
from attnlab.models.luong import Luong
from attnlab.models.nmt_attn import NMTAttn
from attnlab.models.reformer import Reformer
from attnlab.models.rnn_search import RNNEncDec, RNNSearch
from attnlab.models.seq2seq import Decoder, Seq2Seq
from attnlab.models.transformer import (
    Transformer,
    TransformerConfig,
    TransformerEncoder,
    TransformerLM,
)

__all__ = [
    "Bert",
    "BertClassifier",
    "BertPretraining",
    "Britz",
    "Decoder",
    "EncoderClassifier",
    "Luong",
    "NMTAttn",
    "RNNEncDec",
    "RNNSearch",
    "Reformer",
    "Seq2Seq",
    "Transformer",
    "TransformerConfig",
    "TransformerEncoder",
    "TransformerLM",
]
