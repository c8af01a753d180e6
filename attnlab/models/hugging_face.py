"""Weights of Hugging Face's models by name: each array has its place, and no other is there."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from attnlab.checks import require

__all__ = ["ACTIVATIONS", "Fields", "Weights"]

ACTIVATIONS = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu,
}


class Fields(dict[str, Any]):
    """A configuration by name, which says what it lacks."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(
            f"config must have {name!r}, as config.to_dict() has; got {sorted(self)[:3]}"
        )


_OLD = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$")  # in files made from TensorFlow's


def _renamed(old: re.Match[str]) -> str:
    return {"gamma": "weight", "beta": "bias"}[old[0]]


class Weights:
    """Takes arrays of a state by their names, and knows which were taken.

    Args:
      weights: arrays by name, as `state_dict()` or a file has them; torch tensors of float32 or
        float16 on the CPU are arrays too.
      model: name of the class that they must be of.
      prefix: beginning of a name that may be missing.
      dtype: dtype of what is taken.
    """

    def __init__(self, weights: Mapping[str, Any], model: str, prefix: str, dtype: Any):
        self._given = {
            _OLD.sub(_renamed, name.removeprefix(prefix)): np.asarray(x)
            for name, x in weights.items()
        }
        self._model, self._dtype, self._read = model, dtype, set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def take(self, name: str, *axes: int | tuple[int, ...]) -> np.ndarray:
        """An array turned over, as torch has its matrices; axes of several sizes are divided."""
        require(
            name in self._given,
            f"weights must be of a {self._model} with this configuration; no {name!r}",
        )
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
