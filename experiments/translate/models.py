"""Builds the model that a name on the command line stands for."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from attnlab.core.checks import require_choice
from attnlab.mechanisms import attentions
from attnlab.models.britz import Britz
from attnlab.models.luong import Luong
from attnlab.models.nmt_attn import NMTAttn
from attnlab.models.rnn_search import RNNEncDec, RNNSearch
from attnlab.models.seq2seq import Seq2Seq
from attnlab.models.transformer import Transformer, TransformerConfig


def _transformer(
    source_vocab_size: int | None,
    target_vocab_size: int,
    attention: str | None = None,
    **sizes: Any,
) -> Seq2Seq:
    config = TransformerConfig(target_vocab_size, source_vocab_size=source_vocab_size, **sizes)
    if attention is None:
        return Transformer(config)
    attentions.require_attention("attention", attention, config.num_layers)
    around = attentions.Surroundings(length=config.max_length)
    return Transformer(config, attentions.pattern(attention, config, around))


CLASSES: dict[str, type] = {
    "rnn_encdec": RNNEncDec,
    "rnn_search": RNNSearch,
    "luong": Luong,
    "nmt_attn": NMTAttn,
    "britz": Britz,
    "transformer": TransformerConfig,
}  # classes whose attributes are the sizes of a recipe; and the Transformer has an `attention`
MODELS = tuple(CLASSES)


def build(
    name: str,
    sizes: Mapping[str, Any],
    *,
    source_vocab_size: int | None,
    target_vocab_size: int,
    dtype: str,
) -> Seq2Seq:
    """The model of that name.

    Args:
      name: name of the model, one of `MODELS`.
      sizes: attributes of the model's class (of `TransformerConfig` for the Transformer, and
        "attention", the name of its self-attention or a pattern).
      source_vocab_size: number of ids of the source; None = one vocabulary for both sides. The
        Transformer then has one matrix for both embeddings; the others have two in any case.
      target_vocab_size: number of ids of the target.
      dtype: type of the computation; parameters are float32.
    """
    require_choice("model", name, MODELS)
    sizes = {**sizes, "dtype": jnp.dtype(dtype)}
    if name == "transformer":
        return _transformer(source_vocab_size, target_vocab_size, **sizes)
    return CLASSES[name](source_vocab_size or target_vocab_size, target_vocab_size, **sizes)
