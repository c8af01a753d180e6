"""Language models by their names, in the grammar of `attnlab.mechanisms.attentions`."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attnlab.mechanisms import attentions
from attnlab.mechanisms.attentions import FEED_FORWARD_CHUNK, Model, Surroundings
from attnlab.models.reformer import Reformer
from attnlab.models.transformer import LanguageModel, TransformerConfig, TransformerLM
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.ops.routes import LSH


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


def build(name: str, sizes: Sizes, *, vocab_size: int, length: int) -> LanguageModel:
    """The model of a name for windows of `length` tokens, which decides the number of buckets."""
    model, config = Model.parse(name), sizes.config(vocab_size, length)
    # A number, so that a decoder with a longer cache hashes as the model was trained.
    num_buckets = default_num_buckets(length, sizes.chunk_size)
    lsh = LSH(num_buckets=num_buckets, chunk_size=sizes.chunk_size)
    around = Surroundings(causal=True, length=length, lsh=lsh)
    if model.chunked:
        config = dataclasses.replace(config, feed_forward_chunk=FEED_FORWARD_CHUNK)
    pattern = attentions.pattern(model.pattern, config, around)
    return Reformer(config, pattern) if model.reversible else TransformerLM(config, pattern)


def rounds_of(name: str) -> int | None:
    """The number of hash rounds of a model, None where it does not hash.

    >>> rounds_of("lsh-4"), rounds_of("reversible-window-9+lsh-2"), rounds_of("lsh-2.py:Mine")
    (4, 2, None)
    """
    match = re.search(r"(?:^|[+-])lsh-(\d+)(?=[+:]|$)", str(Model.parse(name)))
    return int(match[1]) if match else None


def hashing_layers(name: str, num_layers: int) -> np.ndarray:
    """Which of the layers whose queries are their keys hash, and are not exact: booleans.

    >>> hashing_layers("window-9+shared+lsh-2", 6)
    array([False,  True, False,  True])
    """
    pattern = Model.parse(name).attentions
    kinds = [pattern[i % len(pattern)].kind for i in range(num_layers)]
    return np.array([kind == "lsh" for kind in kinds if kind in ("shared", "lsh")])


def with_rounds(name: str, num_hashes: int) -> str:
    """The model with the same parameters and another number of rounds."""
    model = Model.parse(name)
    layers = [
        dataclasses.replace(layer, number=num_hashes) if layer.kind == "lsh" else layer
        for layer in model.attentions
    ]
    return str(dataclasses.replace(model, pattern="+".join(map(str, layers))))


def shares_qk(name: str) -> bool:
    """Whether some layer's queries are its keys, which takes no bias of the logits.

    >>> shares_qk("window-9+lsh-4"), shares_qk("shared"), shares_qk("window-9+exact")
    (True, True, False)
    """
    return any(layer.kind in ("shared", "lsh") for layer in Model.parse(name).attentions)


def streams(name: str) -> tuple[str, ...]:
    """The random numbers that training draws."""
    return attentions.streams(Model.parse(name).pattern)


def can_be_ablated(name: str) -> bool:
    """Whether the last projections of attention are known; a user's module names its own."""
    owns = [attentions.kind_of(layer.kind).own for layer in Model.parse(name).attentions]
    return not any(own is not None and own.kind == "module" for own in owns)


def ablate(name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with the last projection of attention at 0, so that it adds nothing.

    Of a model that hashes that is done to the layers that do; of another to all.
    """
    hashes = [layer.kind == "lsh" for layer in Model.parse(name).attentions]
    chosen = hashes if any(hashes) else [True] * len(hashes)

    def zero_where_chosen(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        if names[-3:-1] != ["attention", "out"]:
            return x
        layer = int(names[-4].removeprefix("layer_"))
        return jnp.zeros_like(x) if chosen[layer % len(chosen)] else x

    return jax.tree.map_with_path(zero_where_chosen, dict(variables))
