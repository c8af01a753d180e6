"""The systems that the mechanisms come from, as Flax Linen modules."""

from attnlab.models.britz import Britz
from attnlab.models.luong import Luong
from attnlab.models.nmt_attn import NMTAttn
from attnlab.models.rnn_search import RNNEncDec, RNNSearch
from attnlab.models.seq2seq import Seq2Seq
from attnlab.models.transformer import (
    Transformer,
    TransformerConfig,
    TransformerEncoder,
    TransformerLM,
)

__all__ = [
    "Britz",
    "Luong",
    "NMTAttn",
    "RNNEncDec",
    "RNNSearch",
    "Seq2Seq",
    "Transformer",
    "TransformerConfig",
    "TransformerEncoder",
    "TransformerLM",
]
