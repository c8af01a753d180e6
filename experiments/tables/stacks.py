"""How the work and the memory of whole language models grow: those of the Reformer's Table 3."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from attnlab import routes
from attnlab.bench.operations import count
from attnlab.mechanisms.attentions import Model
from attnlab.models.reformer import Reformer
from attnlab.models.transformer import TransformerLM
from attnlab.models.transformer.config import TransformerConfig
from experiments.tables.growth import Exponents, bytes_between

__all__ = ["StackGrowth"]

# l tokens, f the hidden width of the feed-forward networks, N layers, R hash rounds, chunks of c
# slots. A size grows from where its part of the work is the largest, by a factor.
_WIDE = {"l": 1024, "f": 2**14, "N": 2, "R": 1, "c": 16}
_LONG = {"l": 512, "f": 32, "N": 16, "R": 4, "c": 32}
_BASE = {"l": _LONG, "N": _LONG, "R": _LONG, "c": _LONG, "f": _WIDE}
_TIMES = 4
_WIDTH = 16
_CHUNK = 64  # positions of which the hidden layer is computed at once


@dataclasses.dataclass(frozen=True)
class StackGrowth(Exponents):
    """The exponents with which a language model's work or memory grows.

    Attributes:
      model: name of the model, as in `compare_lengths --program=language_model`; the rounds of LSH
        are those of the size R.
      work: kind of work: "products" of a forward pass in the traced program, or "memory", bytes
        that the compiled program takes beside its inputs and outputs, backward pass included.
      exponents: exponents of the paper, in pairs of a size and a number.
    """

    model: str
    work: str
    exponents: tuple[tuple[str, float], ...]

    def measure(self) -> dict[str, float]:
        """The logs of what the work grows by when a size grows by a factor, to its base."""
        return {size: self._exponent(size) for size, _ in self.exponents}

    def _exponent(self, size: str) -> float:
        base = _BASE[size]
        grown = base | {size: _TIMES * base[size]}
        first = _work(self.model, self.work, *base.values())
        second = _work(self.model, self.work, *grown.values())
        return math.log(second / first, _TIMES)


@functools.cache
def _work(
    model: str, work: str, tokens: int, hidden: int, layers: int, rounds: int, c: int
) -> float:
    named = Model.parse(model)
    config = TransformerConfig(
        vocab_size=8,
        num_layers=layers,
        width=_WIDTH,
        hidden=hidden,
        num_heads=1,
        max_length=tokens,
        dropout_rate=0.0,
        feed_forward_chunk=_CHUNK if named.chunked else None,
        scan_layers=True,  # else compiling takes as many times as long as there are layers
    )
    route: routes.AllPairs | routes.LSH = routes.AllPairs("dense")
    if named.attentions[0].kind == "lsh":
        route = routes.LSH(rounds, chunk_size=c, implementation="sorted")
    attention = config.attention(route)
    make = Reformer if named.reversible else TransformerLM
    module = make(config, attention)

    def forward(variables: Any) -> Any:
        return module.apply(variables, jnp.ones((1, tokens), jnp.int32))

    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.ones((1, 8), jnp.int32))
    if work == "memory":
        return bytes_between(forward, [variables])
    return count(forward, variables).products
