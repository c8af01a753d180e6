"""Variables of Linen's modules in NNX's, and back: names and shapes are the same in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from attnlab.core.checks import require


def to_nnx(variables: Mapping[str, Any]) -> nnx.State:
    """The state of an NNX module from the variables of Linen's.

    Args:
      variables: variables of a Linen module, {"params": {...}, "cache": {...}}, of attnlab's or of
        Flax's own.

    Returns:
      The state for `nnx.update(module, state)`; `load` also says what does not fit.

    Raises:
      ValueError: a collection has no counterpart.
    """
    made: Any = {}
    for collection, tree in nn.unbox(dict(variables)).items():
        try:
            kind = nnx.variable_type_from_name(collection)
        except ValueError:
            raise ValueError(
                f"variables are of collections that Flax knows, such as params; got {collection!r}"
                " (give all variables, {'params': …}, or nnx.register_variable_name)"
            ) from None
        for path, x in traverse_util.flatten_dict(tree).items():
            made[path] = kind(x)
    return nnx.from_flat_state(made)


def from_nnx(state: Any) -> dict[str, Any]:
    """The variables of Linen's module from an NNX module, or its state; random streams stay there.

    >>> import attnlab, attnlab.nnx, jax.numpy as jnp
    >>> module = attnlab.nnx.MultiHeadAttention(2, 6, rngs=nnx.Rngs(0))
    >>> attnlab.MultiHeadAttention(2).apply(from_nnx(module), jnp.ones((1, 5, 6))).shape
    (1, 5, 6)
    """
    state = state if isinstance(state, nnx.State) else nnx.state(state)
    flat: dict[tuple[Any, ...], Any] = {}
    for path, variable in nnx.to_flat_state(state):
        kind = getattr(variable, "type", nnx.Variable)
        if kind is nnx.Variable or issubclass(kind, nnx.RngState):
            continue  # the arrays of a score, or random streams
        name = nnx.variable_name_from_type(kind, allow_register=True)
        flat[name, *path] = variable.get_value()
    return traverse_util.unflatten_dict(flat)


def load(module: nnx.Module, variables: Mapping[str, Any]) -> None:
    """Sets the parameters and other variables of an NNX module to those of Linen's.

    The module may be Flax's own too: `nnx.MultiHeadAttention` has the parameters of
    `nn.MultiHeadDotProductAttention` and of `attnlab.MultiHeadAttention`, and `nnx.bridge.ToNNX`,
    after `lazy_init`, those of the Linen module in it.

    Raises:
      ValueError: a parameter is missing or of another shape, or something is not used.
    """
    new: Any = dict(nnx.to_flat_state(to_nnx(variables)))
    there = dict(nnx.to_flat_state(nnx.state(module)))
    kind = type(module).__name__
    unused = ["/".join(map(str, path)) for path in new if path not in there]
    require(not unused, f"{kind} has no {', '.join(unused)}; got values for it (leave them out)")
    for path, variable in there.items():
        name = "/".join(map(str, path))
        if path not in new:
            missing = isinstance(variable, nnx.Param)
            require(not missing, f"{kind} needs the parameter {name}; got none of that name")
            continue
        value = new[path].get_value()
        wanted = jax.tree.map(jnp.shape, variable.get_value())
        got = jax.tree.map(jnp.shape, value)
        require(wanted == got, f"{name} of this {kind} has the shape {wanted}; got {got}")
        new[path] = variable.replace(value)  # which keeps the names of its axes
    nnx.update(module, nnx.from_flat_state(new))
