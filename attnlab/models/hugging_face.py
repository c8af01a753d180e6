"""Weights of Hugging Face's models by name: each array has its place, and no other is there."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from attnlab.core.checks import require
from attnlab.models.transformer.config import TransformerConfig

__all__ = ["ACTIVATIONS", "Weights", "changed_config"]

ACTIVATIONS = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu,
}


# Fields that change no number that is computed. Layers that are scanned are refused on their own.
_FREE = (
    "dtype", "param_dtype", "dropout_rate", "attention_dropout_rate", "hidden_dropout_rate",
    "feed_forward_chunk", "remat", "scan_layers", "kernel_init", "embedding_init", "position_init",
)  # fmt: skip


def changed_config(theirs: TransformerConfig, changed: Mapping[str, Any]) -> TransformerConfig:
    """The configuration of a model of theirs, with other fields.

    Raises:
      ValueError: one of them says what is computed, and says another thing than theirs.
    """
    for name, value in changed.items():
        own = getattr(theirs, name, value)
        require(
            name in _FREE or own == value,
            f"{name} says what is computed, and theirs is {own!r}; got {value!r} (leave it out)",
        )
    return dataclasses.replace(theirs, **changed)


_OLD = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$")  # in files made from TensorFlow's


def _rename(old: re.Match[str]) -> str:
    return {"gamma": "weight", "beta": "bias"}[old[0]]


class Weights:
    """Takes arrays of a state by their names, and knows which were taken.

    Args:
      weights: arrays by name, as `state_dict()` or a file has them; torch tensors of float32 or
        float16 on the CPU are arrays too.
      prefix: beginning of a name that may be missing.
      dtype: dtype of what is taken.
    """

    def __init__(self, weights: Mapping[str, Any], prefix: str, dtype: Any):
        self._given = {
            _OLD.sub(_rename, name.removeprefix(prefix)): np.asarray(x)
            for name, x in weights.items()
        }
        self._dtype = dtype
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def take(self, name: str, *axes: int | tuple[int, ...]) -> np.ndarray:
        """An array turned over, as torch has its matrices; axes of several sizes are divided."""
        self._read.add(name)
        x = self._given[name]
        sizes = [(size,) if isinstance(size, int) else size for size in axes]
        wanted = [math.prod(part) for part in reversed(sizes)]
        require(
            [n for n in x.shape if n > 1] == [n for n in wanted if n > 1],
            f"weights must be of this configuration; got {name!r} {x.shape}, not {wanted}",
        )
        return x.T.reshape(sum(sizes, ())).astype(self._dtype)

    def table(self, name: str, rows: int, width: int) -> np.ndarray:
        """A table that is read by rows, which `take` turns over."""
        return self.take(name, width, rows).T

    def dense(self, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> dict[str, Any]:
        """A matrix and its biases, of axes of their own."""
        return {
            "kernel": self.take(f"{name}.weight", inputs, outputs),
            "bias": self.take(f"{name}.bias", outputs),
        }

    def norm(self, name: str, width: int) -> dict[str, np.ndarray]:
        """A LayerNorm."""
        return {
            "scale": self.take(f"{name}.weight", width),
            "bias": self.take(f"{name}.bias", width),
        }

    def require_all_taken(self, *, but: Sequence[str] = ()) -> None:
        """Refuses arrays that were not taken.

        Args:
          but: endings of the names of arrays that may be there.
        """
        left = sorted(set(self._given) - self._read)
        left = [name for name in left if not name.endswith(tuple(but))]
        require(not left, f"weights must be of this configuration; got {left[:3]} besides")
