"""The one place where a name becomes a model.

A name is that of the attention of all layers, or a pattern of them that the layers repeat, with "+"
between them; "reversible-" before it makes the model a Reformer. "reformer" is short for one.

    >>> Named.parse("window+lsh-4"), Named.parse("reformer").reversible
    (Named(reversible=False, layers=('window', 'lsh-4')), True)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attnlab import routes
from attnlab.models.reformer import Reformer
from attnlab.models.transformer import LanguageModel, TransformerConfig, TransformerLM
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.ops.routes import Route
from attnlab.runs.errors import Invalid

__all__ = [
    "Named",
    "Sizes",
    "ablated",
    "build",
    "hashing_layers",
    "is_lsh",
    "require_model",
    "rounds_of",
    "streams",
    "with_rounds",
]

_REVERSIBLE = "reversible-"
_SHORT = {"reformer": "reversible-window+lsh-4"}
_LSH = re.compile(r"lsh-([1-9]\d*)")
_FEED_FORWARD_CHUNK = 1024  # positions of a reversible model


@dataclasses.dataclass(frozen=True)
class Named:
    """What a name says: whether the layers are reversible, and the pattern of their attentions."""

    reversible: bool
    layers: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> Named:
        """The meaning of any name; `require_model` says which are known."""
        name = _SHORT.get(name, name)
        return cls(name.startswith(_REVERSIBLE), tuple(name.removeprefix(_REVERSIBLE).split("+")))


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
    pattern = tuple(
        config.attention(_route(layer, sizes, length, implementation)) for layer in named.layers
    )
    if not named.reversible:
        return TransformerLM(config, pattern)
    config = dataclasses.replace(config, feed_forward_chunk=_FEED_FORWARD_CHUNK)
    return Reformer(config, pattern)


def _route(layer: str, sizes: Sizes, length: int, implementation: str | None) -> Route:
    if hashing := _LSH.fullmatch(layer):
        # A number, so that a decoder with a longer cache hashes as the model was trained.
        num_buckets = default_num_buckets(length, sizes.chunk_size)
        return routes.LSH(int(hashing[1]), num_buckets, sizes.chunk_size)
    match layer:
        case "exact":
            return routes.AllPairs(implementation)
        case "shared":
            return routes.LSH(num_hashes=1, num_buckets=1, chunk_size=length)
        case "window":
            return routes.Window(sizes.window, 0, implementation)
    raise ValueError(f"no layer {layer!r}")


def require_model(flag: str, name: str, num_layers: int) -> None:
    """Refuses a name that is no model's, or not one of so many layers.

    Raises:
      Invalid: one line that begins with the flag.
    """
    layers = Named.parse(name).layers
    plain = ("exact", "shared", "window")
    unknown = [layer for layer in layers if layer not in plain and not _LSH.fullmatch(layer)]
    if unknown:
        what = f"no model {name!r}" if len(layers) == 1 else f"{name!r} has no layer {unknown[0]!r}"
        raise Invalid(
            f"{flag}: {what}; valid: exact, shared, window, lsh-1, lsh-2, lsh-4, …, patterns of "
            "these such as window+lsh-4, reversible- before any, and reformer"
        )
    if len({x for x in layers if _LSH.fullmatch(x)}) > 1:
        raise Invalid(f"{flag}: the layers of {name!r} hash in as many rounds; give one number")
    if len(layers) > num_layers:
        raise Invalid(
            f"{flag}: {name!r} names {len(layers)} layers, a model has {num_layers} there; give "
            "fewer"
        )


def rounds_of(name: str) -> int | None:
    """The number of hash rounds of a model, None where it does not hash.

    >>> rounds_of("lsh-4"), rounds_of("reversible-window+lsh-2"), rounds_of("exact")
    (4, 2, None)
    """
    found = [hashing for x in Named.parse(name).layers if (hashing := _LSH.fullmatch(x))]
    return int(found[0][1]) if found else None


def is_lsh(name: str) -> bool:
    """Whether a model is LSH attention in all layers, and neither a pattern nor reversible.

    >>> is_lsh("lsh-4"), is_lsh("window+lsh-4"), is_lsh("reversible-lsh-4")
    (True, False, False)
    """
    return _LSH.fullmatch(name) is not None


def hashing_layers(name: str, num_layers: int) -> np.ndarray:
    """Which of the layers whose queries are their keys hash, and are not exact: booleans.

    >>> hashing_layers("window+shared+lsh-2", 6)
    array([False,  True, False,  True])
    """
    layers = Named.parse(name).layers
    all_layers = [layers[i % len(layers)] for i in range(num_layers)]
    sharing = [layer for layer in all_layers if layer == "shared" or _LSH.fullmatch(layer)]
    return np.array([layer != "shared" for layer in sharing])


def with_rounds(name: str, num_hashes: int) -> str:
    """The model with the same parameters and another number of rounds."""
    return _LSH.sub(f"lsh-{num_hashes}", _SHORT.get(name, name))


def streams(name: str) -> tuple[str, ...]:
    """The random numbers that training draws: a hashing model has other rotations in each step."""
    return ("dropout",) if rounds_of(name) is None else ("dropout", "hash")


def ablated(name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with the last projection of attention at 0, so that it adds nothing.

    Of a model that hashes that is done to the layers that do; of another to all.
    """
    pattern = Named.parse(name).layers
    hashes = [_LSH.fullmatch(layer) is not None for layer in pattern]
    chosen = hashes if any(hashes) else [True] * len(pattern)

    def of(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        if names[-3:-1] != ["attention", "out"]:
            return x
        layer = int(names[-4].removeprefix("layer_"))
        return jnp.zeros_like(x) if chosen[layer % len(pattern)] else x

    return jax.tree.map_with_path(of, dict(variables))
