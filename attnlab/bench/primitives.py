"""What a single operation of a traced program computes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

__all__ = ["DIVISION", "PRODUCTS", "of_one"]

_TRANSCENDENTAL = (
    *("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "sin", "cos", "pow"),
)
DIVISION = "div"
_REFUSED = (  # they multiply matrices, or nobody sees what they do
    *("ragged_dot", "ragged_dot_general", "triangular_solve", "cholesky", "lu", "qr", "svd", "eig"),
    *("eigh", "custom_linear_solve", "fft", "custom_call", "ffi_call", "pure_callback"),
)
_KERNELS = ("pallas", "dot_product_attention")  # in their names; cuDNN's is the second
PRODUCTS = "products"


def of_one(equation: Any) -> Iterator[tuple[str, int]]:
    """What an operation without others inside computes: kinds of operations, and how many.

    Raises:
      NotImplementedError: nobody sees what it does.
    """
    name = equation.primitive.name
    if name in _REFUSED or any(part in name for part in _KERNELS):
        raise NotImplementedError(f"{name}: what it computes is not seen; count another way")
    size = math.prod(getattr(equation.outvars[0].aval, "shape", ())) if equation.outvars else 0
    if name == "dot_general":
        yield PRODUCTS, 2 * size * _contracted(equation)
    elif name == "conv_general_dilated":
        yield PRODUCTS, 2 * size * _of_kernel(equation)
    elif name in _TRANSCENDENTAL or _divides(equation):
        yield name, size


def _divides(equation: Any) -> bool:
    """Whether it divides numbers by others than a constant, by whose inverse compilers multiply."""
    if equation.primitive.name != DIVISION or hasattr(equation.invars[1], "val"):
        return False
    return jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.inexact)


def _contracted(equation: Any) -> int:
    (axes, _), _ = equation.params["dimension_numbers"]
    return math.prod(equation.invars[0].aval.shape[axis] for axis in axes)


def _of_kernel(equation: Any) -> int:
    """Inputs that each output is a sum over."""
    shape, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
    return math.prod(shape) // shape[numbers.rhs_spec[0]]
