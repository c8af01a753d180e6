"""The one place where a name becomes a model: "exact", "window", "lsh-4"."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import routes
from attnlab.models.transformer import TransformerConfig, TransformerLM
from attnlab.ops.lsh.hashing import default_num_buckets
from attnlab.ops.routes import Route
from attnlab.runs.errors import Invalid

__all__ = ["Sizes", "ablated", "build", "require_model", "rounds_of", "streams", "with_rounds"]

_LSH = "lsh-"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What all models of a run have in common; the flags of the same names say more."""

    num_layers: int
    num_heads: int
    head_dim: int
    hidden: int
    positions: str
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
) -> TransformerLM:
    """The model of a name, for windows of a length.

    Args:
      name: name of the model.
      sizes: sizes of all models.
      vocab_size: number of ids.
      length: number of tokens in a window, on which the number of buckets depends.
      implementation: implementation of exact attention, as `routes.AllPairs` takes it.
    """
    config = sizes.config(vocab_size, length)
    return TransformerLM(config, config.attention(_route(name, sizes, length, implementation)))


def _route(name: str, sizes: Sizes, length: int, implementation: str | None) -> Route:
    num_hashes = rounds_of(name)
    if num_hashes is not None:
        # A number, so that a decoder with a longer cache hashes as the model was trained.
        num_buckets = default_num_buckets(length, sizes.chunk_size)
        return routes.LSH(num_hashes, num_buckets, sizes.chunk_size)
    match name:
        case "exact":
            return routes.AllPairs(implementation)
        case "window":
            return routes.Window(sizes.window, 0, implementation)
    raise ValueError(f"no model {name!r}")


def require_model(flag: str, name: str) -> None:
    """Refuses a name that is no model's.

    Raises:
      Invalid: one line that begins with the flag.
    """
    if name not in ("exact", "window") and rounds_of(name) is None:
        raise Invalid(f"{flag}: no model {name!r}; valid: exact, window, lsh-1, lsh-2, lsh-4, …")


def rounds_of(name: str) -> int | None:
    """The number of hash rounds of a model, None where it does not hash.

    >>> rounds_of("lsh-4"), rounds_of("exact"), rounds_of("lsh-0")
    (4, None, None)
    """
    number = name.removeprefix(_LSH)
    known = name.startswith(_LSH) and number.isdecimal() and number == str(int(number))
    return int(number) if known and int(number) else None


def with_rounds(name: str, num_hashes: int) -> str:
    """The model with the same parameters and another number of rounds."""
    assert rounds_of(name) is not None
    return f"{_LSH}{num_hashes}"


def streams(name: str) -> tuple[str, ...]:
    """The random numbers that training draws: a hashing model has other rotations in each step."""
    return ("dropout",) if rounds_of(name) is None else ("dropout", "hash")


def ablated(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with each attention's last projection at 0: what is left attends to nothing."""

    def of(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        return jnp.zeros_like(x) if names[-3:-1] == ["attention", "out"] else x

    return jax.tree.map_with_path(of, dict(variables))
