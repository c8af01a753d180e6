"""Reading traced programs: what is inside of an operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from attnlab.devices import platforms

__all__ = ["called", "fori_trips", "opened", "parts_of_scan", "platform_taken"]


def opened(program: Any) -> Any:
    """The program without its constants."""
    return program.jaxpr if hasattr(program, "jaxpr") else program


def called(equation: Any) -> Any:
    """The program that an operation calls with its own inputs; not how it combines two numbers."""
    for x in equation.params.values():
        if hasattr(opened(x), "eqns") and len(opened(x).invars) == len(equation.invars):
            return None if equation.primitive.name.startswith(("scatter", "reduce")) else x
    return None


def parts_of_scan(equation: Any) -> tuple[int, int]:
    """How many constants it has, and how many carried values: they have no axis of repetitions."""
    body = opened(equation.params["jaxpr"])

    def alike(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(x.aval.shape) == len(y.aval.shape) for x, y in pairs)

    carried = alike(equation.outvars, body.outvars)
    return alike(equation.invars, body.invars) - carried, carried


def fori_trips(parameters: Any, of_condition: Sequence[Any], carried: Sequence[Any]) -> Any:
    """How often `lax.fori_loop` runs; None = the loop is none, or it is not known."""
    condition, body = opened(parameters["cond_jaxpr"]), opened(parameters["body_jaxpr"])
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name != "lt":
        return None
    (test,), inputs = condition.eqns, [*of_condition, *carried]
    if not jnp.issubdtype(test.invars[0].aval.dtype, jnp.integer):
        return None
    values = [
        x.val if hasattr(x, "val") else inputs[condition.invars.index(x)] for x in test.invars
    ]
    places = [None if hasattr(x, "val") else condition.invars.index(x) for x in test.invars]
    carried_places = [None if x is None else x - len(of_condition) for x in places]
    index, stop = carried_places
    fixed = len(body.invars) - len(carried)
    if index is None or index < 0 or any(x is None for x in values):
        return None
    if stop is not None and stop >= 0 and body.outvars[stop] is not body.invars[fixed + stop]:
        return None
    made = next((x for x in body.eqns if body.outvars[index] in x.outvars), None)
    if made is None or made.primitive.name != "add":
        return None
    start, step = made.invars
    if start is not body.invars[fixed + index] or getattr(step, "val", None) != 1:
        return None
    first = jnp.asarray(values[0], jnp.int64)
    last = jnp.asarray(values[1], jnp.int64)
    return jnp.maximum(last - first, 0)


def platform_taken(names: Sequence[Sequence[str] | None]) -> int:
    """The branch of `lax.platform_dependent` that is taken."""
    here = platforms.current().name
    return next(i for i, some in enumerate(names) if some is None or here in some)
