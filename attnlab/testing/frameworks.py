"""The border: arrays of NumPy become those of a framework, and what it returns becomes NumPy's.

A function may be of JAX, torch (asked where torch is imported) or NumPy; Keras takes what its
backend takes. Which one it is, is tried: the first whose arrays it takes, and which it returns.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.runs.errors import Invalid, one_line

#: Keywords that are taken for a mask of booleans.
MASKS = ("mask", "attn_mask", "attention_mask")


def library_of(framework: str) -> Any:
    """The module whose functions take the arrays of a framework."""
    return importlib.import_module({"jax": "jax.numpy"}.get(framework, framework))


def give(x: np.ndarray, framework: str) -> Any:
    """An array in a framework; torch counts in 64 bits, as its embeddings want it."""
    if framework == "torch" and x.dtype.kind == "i":
        x = x.astype(np.int64)
    make = {"torch": "tensor"}.get(framework, "array")
    return getattr(library_of(framework), make)(x.copy())  # torch takes no negative strides


def as_numpy(x: Any) -> np.ndarray:
    """What a framework returned, in the same dtype."""
    if not _is_of_torch(x):
        return np.asarray(x)
    x = x.detach().cpu()
    if str(x.dtype) == "torch.bfloat16":
        return x.float().numpy().astype(jnp.bfloat16)
    return x.numpy()


def call(function: Callable[..., Any], framework: str, *arrays: Any, **keywords: Any) -> Any:
    """What a function returns of arrays of NumPy, and of other values as they are."""

    def give_arrays(x: Any) -> Any:
        return give(x, framework) if isinstance(x, np.ndarray) else x

    given = [give_arrays(x) for x in arrays]
    named = {name: give_arrays(x) for name, x in keywords.items()}
    if framework != "torch":
        return function(*given, **named)
    import torch

    with torch.no_grad():
        return function(*given, **named)


def find_framework(
    name: str, function: Callable[..., Any], *arrays: np.ndarray, **named: np.ndarray
) -> str:
    """The framework that a function is written in: "jax", "torch" or "numpy".

    Raises:
      Invalid: it takes the arrays of none; one line with what it raised.
    """
    errors: dict[str, list[str]] = {}
    for framework in ("jax", "torch", "numpy"):
        if framework == "torch" and "torch" not in sys.modules:
            continue
        try:
            result = call(function, framework, *arrays, **named)
        except Exception as error:  # whatever a user's code raises is its answer
            errors.setdefault(one_line(error), []).append(framework)
            continue
        if framework != "jax" or _is_of_torch(result):
            return "torch" if _is_of_torch(result) else framework
        return "jax" if can_be_traced(function, *arrays, **named) else "numpy"
    shapes = ", ".join(f"{x.dtype} {x.shape}" for x in arrays)
    raised = "; ".join(f"{words} (arrays of {', '.join(who)})" for words, who in errors.items())
    raise Invalid(f"{name} was called with {shapes} and raised {raised}")


def _is_of_torch(x: Any) -> bool:
    return "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor)


def can_be_traced(function: Callable[..., Any], *arrays: np.ndarray, **named: Any) -> bool:
    """Whether JAX can trace a function of these arrays."""

    def shape_of(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, np.ndarray) else x

    try:
        jax.eval_shape(function, *map(shape_of, arrays), **jax.tree.map(shape_of, named))
    except Exception:  # NumPy's functions, and Python's numbers, in a tracer's hands
        return False
    return True


def find_parameters(function: Callable[..., Any]) -> Any:
    """The parameters of a function or module by name; of what does not say them, none."""
    try:  # torch's modules say theirs in `forward`
        return inspect.signature(getattr(function, "forward", function)).parameters
    except ValueError:  # of a builtin
        return {}
