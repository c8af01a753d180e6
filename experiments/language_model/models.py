"""The one place where a name becomes a model.

A name is that of an attention or a pattern (`attnlab.training.attentions`); "reversible-" before it
makes the model a Reformer. "reformer" is short for one.

    >>> Named.parse("reformer")
    Named(reversible=True, pattern='window+lsh-4')
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attnlab.models.reformer import Reformer
from attnlab.models.transformer import LanguageModel, TransformerConfig, TransformerLM
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.ops.routes import LSH
from attnlab.runs.errors import Invalid
from attnlab.training import attentions
from attnlab.training.attentions import layers_of

__all__ = [
    "ATTENTIONS",
    "Named",
    "Sizes",
    "ablated",
    "build",
    "has_window",
    "hashing_layers",
    "is_lsh",
    "require_model",
    "rounds_of",
    "streams",
    "with_rounds",
]

ATTENTIONS = ("exact", "shared", "window", "window-R", "lsh-R")
_REVERSIBLE = "reversible-"
_SHORT = {"reformer": "reversible-window+lsh-4"}
_FEED_FORWARD_CHUNK = 1024  # positions of a reversible model


@dataclasses.dataclass(frozen=True)
class Named:
    """What a name says: whether the layers are reversible, and what their attentions are."""

    reversible: bool
    pattern: str

    @classmethod
    def parse(cls, name: str) -> Named:
        """The meaning of any name; `require_model` says which are known."""
        name = _SHORT.get(name, name)
        return cls(name.startswith(_REVERSIBLE), name.removeprefix(_REVERSIBLE))

    def __str__(self) -> str:
        return _REVERSIBLE * self.reversible + self.pattern


def has_window(name: str) -> bool:
    """Whether a layer of a model attends to a window whose size the flags say.

    >>> has_window("reformer"), has_window("window-8+exact")
    (True, False)
    """
    return any(str(layer) == "window" for layer in layers_of(Named.parse(name).pattern))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What all models of a run have in common; the flags of the same names say more."""

    num_layers: int
    num_heads: int
    head_dim: int
    hidden: int
    positions: str
    axial_shape: tuple[int, ...]
    axial_widths: tuple[int, ...]
    dropout_rate: float
    attention_dropout_rate: float
    window: int
    chunk_size: int
    dtype: str

    def config(self, vocab_size: int, length: int) -> TransformerConfig:
        """The Transformer around the attention."""
        return TransformerConfig(
            vocab_size,
            num_layers=self.num_layers,
            width=self.num_heads * self.head_dim,
            hidden=self.hidden,
            num_heads=self.num_heads,
            positions=self.positions,
            max_length=length,
            axial_shape=self.axial_shape,
            axial_widths=self.axial_widths,
            pre_norm=True,
            activation=nn.gelu,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            dtype=jnp.dtype(self.dtype),
        )


def build(
    name: str,
    sizes: Sizes,
    *,
    vocab_size: int,
    length: int,
    implementation: str | None = None,
) -> LanguageModel:
    """The model of a name, for windows of a length.

    Args:
      name: name of the model.
      sizes: sizes of all models.
      vocab_size: number of ids.
      length: number of tokens in a window, on which the number of buckets depends.
      implementation: implementation of exact attention, as `routes.AllPairs` takes it.
    """
    named, config = Named.parse(name), sizes.config(vocab_size, length)
    # A number, so that a decoder with a longer cache hashes as the model was trained.
    num_buckets = default_num_buckets(length, sizes.chunk_size)
    pattern = attentions.pattern(
        named.pattern,
        config,
        lsh=LSH(num_buckets=num_buckets, chunk_size=sizes.chunk_size),
        window=sizes.window,
        length=length,
        causal=True,
        implementation=implementation,
    )
    if not named.reversible:
        return TransformerLM(config, pattern)
    config = dataclasses.replace(config, feed_forward_chunk=_FEED_FORWARD_CHUNK)
    return Reformer(config, pattern)


def require_model(flag: str, name: str, num_layers: int) -> None:
    """Refuses a name that is no model's, or not one of so many layers.

    Raises:
      Invalid: one line that begins with the flag.
    """
    pattern = Named.parse(name).pattern
    more = f"; {_REVERSIBLE}NAME for reversible layers; and reformer, {_SHORT['reformer']}"
    attentions.require_attention(flag, pattern, ATTENTIONS, num_layers, more)
    if len({layer for layer in layers_of(pattern) if layer.kind == "lsh"}) > 1:
        raise Invalid(f"{flag}: the layers of {name!r} hash in as many rounds; give one number")


def rounds_of(name: str) -> int | None:
    """The number of hash rounds of a model, None where it does not hash.

    >>> rounds_of("lsh-4"), rounds_of("reversible-window+lsh-2"), rounds_of("exact")
    (4, 2, None)
    """
    layers = layers_of(Named.parse(name).pattern)
    return next((layer.number for layer in layers if layer.kind == "lsh"), None)


def is_lsh(name: str) -> bool:
    """Whether a model is LSH attention in all layers, and neither a pattern nor reversible.

    >>> is_lsh("lsh-4"), is_lsh("window+lsh-4"), is_lsh("reversible-lsh-4")
    (True, False, False)
    """
    return [layer.kind for layer in layers_of(name)] == ["lsh"]


def hashing_layers(name: str, num_layers: int) -> np.ndarray:
    """Which of the layers whose queries are their keys hash, and are not exact: booleans.

    >>> hashing_layers("window+shared+lsh-2", 6)
    array([False,  True, False,  True])
    """
    pattern = layers_of(Named.parse(name).pattern)
    kinds = [pattern[i % len(pattern)].kind for i in range(num_layers)]
    return np.array([kind == "lsh" for kind in kinds if kind in ("shared", "lsh")])


def with_rounds(name: str, num_hashes: int) -> str:
    """The model with the same parameters and another number of rounds."""
    named = Named.parse(name)
    layers = [
        layer._replace(number=num_hashes) if layer.kind == "lsh" else layer
        for layer in layers_of(named.pattern)
    ]
    return str(dataclasses.replace(named, pattern="+".join(map(str, layers))))


def shares_qk(name: str) -> bool:
    """Whether some layer's queries are its keys, which takes no bias of the logits.

    >>> shares_qk("window+lsh-4"), shares_qk("shared"), shares_qk("window+exact")
    (True, True, False)
    """
    return any(layer.kind in ("shared", "lsh") for layer in layers_of(Named.parse(name).pattern))


def streams(name: str) -> tuple[str, ...]:
    """The random numbers that training draws."""
    return attentions.streams(Named.parse(name).pattern)


def ablated(name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with the last projection of attention at 0, so that it adds nothing.

    Of a model that hashes that is done to the layers that do; of another to all.
    """
    hashes = [layer.kind == "lsh" for layer in layers_of(Named.parse(name).pattern)]
    chosen = hashes if any(hashes) else [True] * len(hashes)

    def of(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        if names[-3:-1] != ["attention", "out"]:
            return x
        layer = int(names[-4].removeprefix("layer_"))
        return jnp.zeros_like(x) if chosen[layer % len(chosen)] else x

    return jax.tree.map_with_path(of, dict(variables))
