"""Which tokens the logits depend on at all: the gradient by the numbers that tokens are made into.

Tokens are integers and have no gradient. But a program of JAX can be read: where it first makes
numbers of tokens alone, as an embedding does, each number is nudged, and the gradient by the nudge
at position j is that by token j. A loop (`lax.scan`, `lax.while_loop`) is not looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

__all__ = ["measure_dependence"]

Nudge = Callable[[jax.Array], jax.Array]


def measure_dependence(function: Callable[..., Any], tokens: np.ndarray) -> np.ndarray:
    """The size of the gradient of the logits at i by token j, [T, T]; 0 where nothing is nudged.

    Args:
      function: function of tokens that JAX can trace.
      tokens: tokens [1, T]; T is the size of no other axis.
    """
    length = tokens.shape[1]
    program = jax.make_jaxpr(function)(tokens)
    nudged: list[jax.ShapeDtypeStruct] = []

    def run(nudge: Nudge) -> jax.Array:
        logits = _run(program.jaxpr, program.consts, [jnp.asarray(tokens)], [True], nudge)[0][0]
        weights = np.random.default_rng(0).normal(size=logits.shape[-1])
        return logits[0] @ jnp.asarray(weights, logits.dtype)  # [T]

    def note(x: jax.Array) -> jax.Array:
        if x.shape.count(length) == 1:
            nudged.append(jax.ShapeDtypeStruct(x.shape, x.dtype))
        return x

    def run_nudged(nudges: list[jax.Array]) -> jax.Array:
        left = iter(nudges)
        return run(lambda x: x + next(left) if x.shape.count(length) == 1 else x)

    jax.eval_shape(lambda: run(note))
    zeros = [jnp.zeros(x.shape, x.dtype) for x in nudged]
    total = np.zeros((length, length))
    for x in jax.jit(jax.jacrev(run_nudged))(zeros):
        by_token = np.moveaxis(np.asarray(x, np.float64), 1 + x.shape[1:].index(length), 1)
        total += np.abs(by_token).reshape(length, length, -1).sum(-1)
    return total


def _run(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], of_tokens: Sequence[bool], nudge: Nudge
) -> tuple[list[Any], list[bool]]:
    """Outputs of a program, and which are integers of tokens; numbers of such are nudged."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    integers = {x for x, yes in zip(jaxpr.invars, of_tokens, strict=True) if yes}

    def is_of_tokens(x: Any) -> bool:
        return not isinstance(x, Literal) and x in integers

    def read(x: Any) -> Any:
        return x.val if isinstance(x, Literal) else values[x]

    for step in jaxpr.eqns:
        inputs, marks = [read(x) for x in step.invars], [is_of_tokens(x) for x in step.invars]
        inner = step.params.get("jaxpr")
        if any(marks) and step.primitive.name in ("jit", "pjit"):
            outputs, made = _run(inner.jaxpr, inner.consts, inputs, marks, nudge)
        else:
            params = step.primitive.get_bind_params(step.params)
            outputs = step.primitive.bind(*inputs, **params)
            outputs = outputs if step.primitive.multiple_results else [outputs]
            is_number = [jnp.issubdtype(x.dtype, jnp.inexact) for x in outputs]
            made = [any(marks) and not yes for yes in is_number]
            if any(marks):
                both = zip(outputs, is_number, strict=True)
                outputs = [nudge(x) if yes else x for x, yes in both]
        values.update(zip(step.outvars, outputs, strict=True))
        integers.update(x for x, yes in zip(step.outvars, made, strict=True) if yes)
    return [read(x) for x in jaxpr.outvars], [is_of_tokens(x) for x in jaxpr.outvars]
