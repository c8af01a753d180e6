"""Weights of Hugging Face's models by name: each array has its place, and no other is there."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from attnlab.core.checks import require
from attnlab.models.transformer.config import TransformerConfig

ACTIVATIONS = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu,
}


# Fields that change no number that is computed. Scanned layers have other parameters.
_FREE = (
    "dtype", "param_dtype", "dropout_rate", "attention_dropout_rate", "hidden_dropout_rate",
    "feed_forward_chunk", "remat", "kernel_init", "embedding_init", "position_init",
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


@dataclasses.dataclass(frozen=True)
class Place:
    """Where theirs hold one of our arrays.

    Attributes:
      name: name of the array there.
      theirs: shape there.
      ours: shape here.
      turned: whether it is turned over there, as torch has its matrices.
      reversed: whether its last axis here is in the opposite order there.
    """

    name: str
    theirs: tuple[int, ...]
    ours: tuple[int, ...]
    turned: bool = False
    reversed: bool = False

    def read(self, x: np.ndarray) -> np.ndarray:
        """Our array, of theirs."""
        x = (x.T if self.turned else x).reshape(self.ours)
        return x[..., ::-1] if self.reversed else x

    def write(self, x: np.ndarray) -> np.ndarray:
        """Their array, of ours."""
        x = x[..., ::-1] if self.reversed else x
        if self.turned:
            x = x.reshape(self.theirs[::-1]).T
        return np.ascontiguousarray(x).reshape(self.theirs)


def matrix(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Place:
    """The place of a matrix; inputs and outputs are one axis each there."""
    theirs = math.prod(outputs), math.prod(inputs)
    return Place(name, theirs, inputs + outputs, turned=True)


def table(name: str, *shape: int) -> Place:
    """The place of an array that is the same there, such as a table that is read by rows."""
    return Place(name, shape, shape)


def dense(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> dict[str, Place]:
    """The places of a matrix and its biases."""
    bias = Place(f"{name}.bias", (math.prod(outputs),), outputs)
    return {"kernel": matrix(f"{name}.weight", inputs, outputs), "bias": bias}


def norm(name: str, width: int) -> dict[str, Place]:
    """The places of a LayerNorm's parameters."""
    return {"scale": table(f"{name}.weight", width), "bias": table(f"{name}.bias", width)}


def read(
    places: Mapping[str, Any],
    weights: Mapping[str, Any],
    dtype: Any,
    *,
    prefix: str,
    besides: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Our parameters, of their weights.

    Args:
      places: place of each parameter, in dicts as the parameters are.
      weights: arrays by name, as `state_dict()` or a file has them; torch tensors of float32 or
        float16 on the CPU are arrays too.
      dtype: dtype of our parameters.
      prefix: beginning of a name that may be missing.
      besides: endings of the names of arrays that may be there, and are not read.

    Raises:
      ValueError: an array is missing, of another shape, or has no place.
    """
    flat = {path: (x.name.removeprefix(prefix), x) for path, x in flatten_dict(places).items()}
    shapes = {name: place.theirs for name, place in flat.values()}
    given = {}
    for name, x in weights.items():
        name = _OLD.sub(_rename, name.removeprefix(prefix))
        if name in shapes or not name.endswith(besides):
            given[name] = np.asarray(x)
    _require_fit("weights", shapes, given)
    return unflatten_dict(
        {path: place.read(given[name]).astype(dtype) for path, (name, place) in flat.items()}
    )


def write(places: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Their weights by name, of our parameters; the inverse of `read`, bfloat16 as float32.

    Raises:
      ValueError: a parameter is missing, of another shape, or has no place.
    """
    flat = flatten_dict(places, sep="/")
    # Copies, which torch may write into. NumPy, and so torch, has no bfloat16.
    given = {
        name: np.array(x, jnp.promote_types(x.dtype, jnp.float16))
        for name, x in flatten_dict(nn.unbox(params), sep="/").items()
    }
    _require_fit("parameters", {name: place.ours for name, place in flat.items()}, given)
    return {place.name: place.write(given[name]) for name, place in flat.items()}


def _require_fit(
    what: str, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, np.ndarray]
) -> None:
    rule = f"{what} must be of this configuration"
    missing = sorted(shapes.keys() - given.keys())
    require(not missing, f"{rule}; got none of the names {missing[:3]}")
    left = sorted(given.keys() - shapes.keys())
    require(not left, f"{rule}; got {left[:3]} besides")
    for name, x in given.items():
        require(x.shape == shapes[name], f"{rule}; got {name!r} {x.shape}, not {shapes[name]}")
