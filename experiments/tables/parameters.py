"""Numbers of parameters of the papers' models, counted without making one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.models import Bert, BertPretraining, Britz, Reformer, RNNSearch, Transformer
from attnlab.models.transformer import LanguageModel, TransformerConfig
from experiments.tables import verdicts

__all__ = ["Count", "vocabularies"]


@dataclasses.dataclass(frozen=True)
class Count:
    """The number of parameters of a model.

    Attributes:
      model: name of the model: "transformer" (Vaswani et al. 2017, its base), "britz",
        "rnn_search", "reformer" (of enwik8), "bert" (its base) or "bert_pretraining" (with the
        heads).
      fields: fields of the model, or of its configuration, with other values than its defaults, in
        pairs.
      vocab_size: number of ids, of each side; None = it belongs to the model.
    """

    model: str
    fields: tuple[tuple[str, Any], ...] = ()
    vocab_size: int | None = None

    def measure(self) -> dict[str, float]:
        """The number of parameters."""
        return {"parameters": self.number()}

    def written(self, values: Mapping[str, float]) -> str:
        """The number as it is read."""
        return f"{values['parameters']:,.0f}"

    def verdict(self, paper: str, values: Mapping[str, float]) -> str:
        """The verdict beside what the paper prints."""
        return verdicts.of_count(paper, round(values["parameters"]))

    def number(self) -> int:
        """The number of parameters."""
        return _number(self)


@functools.cache
def _number(count: Count) -> int:
    model = _BUILD[count.model](count.vocab_size, **dict(count.fields))
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    sides = [tokens] if isinstance(model, LanguageModel) else [tokens, tokens]
    named = {"masked": tokens} if isinstance(model, BertPretraining) else {}
    shapes = jax.eval_shape(model.init, jax.random.key(0), *sides, **named)
    return sum(x.size for x in jax.tree.leaves(shapes["params"]))


def _transformer(vocab_size: int, **fields: Any) -> Transformer:
    # Scanned layers have as many parameters, and one is traced for all.
    return Transformer(TransformerConfig.base(vocab_size, scan_layers=True, **fields))


def _bert(vocab_size: int, **fields: Any) -> TransformerConfig:
    return TransformerConfig.bert(vocab_size, scan_layers=True, **fields)


_BUILD: dict[str, Callable[..., nn.Module]] = {
    "transformer": _transformer,
    "britz": lambda vocab_size, **fields: Britz(vocab_size, vocab_size, **fields),
    "rnn_search": lambda vocab_size, **fields: RNNSearch(vocab_size, vocab_size, **fields),
    "reformer": lambda _: Reformer.enwik8(),
    "bert": lambda vocab_size, **fields: Bert(_bert(vocab_size, **fields)),
    "bert_pretraining": lambda vocab_size, **fields: BertPretraining(_bert(vocab_size, **fields)),
}


def vocabularies(count: Count, printed: str) -> range:
    """The numbers of ids with which a model has as many parameters as a paper prints.

    Args:
      count: model, with a number of ids.
      printed: millions of parameters, as printed; rounding leaves an interval.
    """
    assert count.vocab_size is not None
    one_more = dataclasses.replace(count, vocab_size=count.vocab_size + 1)
    each = one_more.number() - count.number()
    fixed = count.number() - each * count.vocab_size
    decimals = len(printed.partition(".")[2])
    half = 10**6 // 10**decimals // 2
    middle = round(float(printed) * 1e6)
    first, last = (middle - half - fixed) / each, (middle + half - fixed) / each
    return range(math.ceil(first), math.floor(last) + 1)
