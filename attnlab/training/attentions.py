"""Self-attentions by their names on a command line: a word for every layer, or a pattern of words.

| name | attention of a layer |
| --- | --- |
| `exact` | all pairs |
| `additive`, `concat`, `cosine`, `general` | all pairs, with that score |
| `shared` | all pairs, with queries that are the keys, as LSH has them |
| `window-R` | R tokens on either side; in a causal model those before alone |
| `lsh-R` | neighbors in R hash rounds |
| `hard` | one key, with the gradient of all pairs (straight-through) |

A pattern has "+" between its words, and the layers repeat it:

>>> layers_of("window-4+exact")
(Named(kind='window', number=4), Named(kind='exact', number=None))
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from typing import NamedTuple

from attnlab.models.transformer import TransformerConfig
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.modules.scores import AdditiveScore, ConcatScore, CosineScore, GeneralScore
from attnlab.ops.routes import LSH, AllPairs, Hard, Window
from attnlab.runs.errors import Invalid

__all__ = ["SCORES", "Named", "layers_of", "pattern", "require_attention", "streams"]

SCORES = {
    "additive": AdditiveScore,
    "concat": ConcatScore,
    "cosine": CosineScore,
    "general": GeneralScore,
}
_STREAMS = {"lsh": "hash", "hard": "sample"}  # what training draws beside dropout


class Named(NamedTuple):
    """The attention of a layer, as it is named.

    Attributes:
      kind: first part of the name, such as "window"; of what is no name, all of it.
      number: number behind it, of tokens or of hash rounds; None = there is none.
    """

    kind: str
    number: int | None = None

    @property
    def form(self) -> str:
        """The name with R for its number."""
        return self.kind if self.number is None else f"{self.kind}-R"

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}-{self.number}"


def layers_of(name: str) -> tuple[Named, ...]:
    """The layers of any name; `require_attention` says which are known."""
    words = name.split("+")
    found = [re.fullmatch(r"([a-z]+)-([1-9][0-9]*)", word) for word in words]
    return tuple(
        Named(parts[1], int(parts[2])) if parts else Named(word)
        for word, parts in zip(words, found, strict=True)
    )


def require_attention(
    flag: str, name: str, forms: Collection[str], num_layers: int, more: str = ""
) -> None:
    """Refuses an unknown name, or a pattern longer than the layers.

    Args:
      flag: flag and its value, with which the message begins.
      name: name of an attention or a pattern.
      forms: names that are known here, with R for numbers, such as "window-R".
      num_layers: number of layers of the model.
      more: words for other names that are known here.

    Raises:
      Invalid: one line with the names there are.
    """
    layers = layers_of(name)
    for layer in layers:
        if layer.form not in forms:
            renamed = ", now called exact" * (layer.kind == "full")
            raise Invalid(
                f"{flag}: no attention {str(layer)!r}{renamed}; valid: {', '.join(forms)} (R tokens"
                " of a window, R hash rounds), or several with + between them, which the layers"
                f" repeat{more}"
            )
    if len(layers) > num_layers:
        raise Invalid(
            f"{flag}: {name!r} names {len(layers)} layers, a model has "
            f"{num_layers} there; give fewer"
        )


def streams(name: str) -> tuple[str, ...]:
    """The random numbers that training draws, such as other rotations of LSH in each step."""
    drawn = [_STREAMS[layer.kind] for layer in layers_of(name) if layer.kind in _STREAMS]
    return ("dropout", *dict.fromkeys(drawn))


def pattern(
    name: str,
    config: TransformerConfig,
    *,
    lsh: LSH | None = None,
    window: int | None = None,
    length: int | None = None,
    causal: bool = False,
    implementation: str | None = None,
) -> tuple[MultiHeadAttention, ...]:
    """The self-attentions that the layers of a model repeat.

    Args:
      name: name of an attention or a pattern.
      config: configuration of the model.
      lsh: route of LSH attention, with any number of rounds; None = its defaults.
      window: number of tokens of a window without a number.
      length: number of tokens of the longest input, for `shared`.
      causal: whether the model is.
      implementation: implementation of exact attention, as `routes.AllPairs` takes it.
    """
    hashing = lsh or LSH()

    def attention(kind: str, number: int | None) -> MultiHeadAttention:
        match kind:
            case "exact":
                return config.attention(AllPairs(implementation))
            case "shared":
                assert length is not None
                one = dataclasses.replace(hashing, num_hashes=1, num_buckets=1, chunk_size=length)
                return config.attention(one)
            case "window":
                left = number or window
                assert left is not None
                return config.attention(Window(left, 0 if causal else left, implementation))
            case "lsh":
                assert number is not None
                return config.attention(dataclasses.replace(hashing, num_hashes=number))
            case "hard":
                return config.attention(Hard(straight_through=True), dropout_rate=0.0)
        return config.attention(AllPairs(implementation), score=SCORES[kind]())

    return tuple(attention(*layer) for layer in layers_of(name))
