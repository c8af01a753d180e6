"""Reading traced programs: what is inside of an operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from attnlab.devices import platforms


def open_jaxpr(program: Any) -> Any:
    """The program without its constants."""
    return program.jaxpr if hasattr(program, "jaxpr") else program


def find_called(equation: Any) -> Any:
    """The program that an operation calls with its own inputs; not how it combines two numbers."""
    for x in equation.params.values():
        if hasattr(open_jaxpr(x), "eqns") and len(open_jaxpr(x).invars) == len(equation.invars):
            return None if equation.primitive.name.startswith(("scatter", "reduce")) else x
    return None


def parts_of_scan(equation: Any) -> tuple[int, int]:
    """How many constants it has, and how many carried values: they have no axis of repetitions."""
    body = open_jaxpr(equation.params["jaxpr"])

    def alike(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(x.aval.shape) == len(y.aval.shape) for x, y in pairs)

    carried = alike(equation.outvars, body.outvars)
    return alike(equation.invars, body.invars) - carried, carried


def fori_bounds(parameters: Any) -> tuple[Any, Any] | None:
    """What the condition of a `lax.fori_loop` compares: its counter, and where it ends.

    Returns:
      Inputs of the condition, or literals; None = the loop is another.
    """
    condition, body = open_jaxpr(parameters["cond_jaxpr"]), open_jaxpr(parameters["body_jaxpr"])
    if [x.primitive.name for x in condition.eqns] != ["lt"]:
        return None
    counter, end = condition.eqns[0].invars
    # What is carried, as the condition sees it, and before and after a step.
    carried = condition.invars[parameters["cond_nconsts"] :]
    before = body.invars[parameters["body_nconsts"] :]
    step = dict(zip(carried, zip(before, body.outvars, strict=True), strict=True))
    if hasattr(counter, "val") or counter not in step:
        return None
    if not jnp.issubdtype(counter.aval.dtype, jnp.integer):
        return None
    if not hasattr(end, "val") and end in step and step[end][0] is not step[end][1]:
        return None
    start, result = step[counter]
    for x in body.eqns:
        if result in x.outvars:
            adds = x.primitive.name == "add" and x.invars[0] is start
            return (counter, end) if adds and getattr(x.invars[1], "val", None) == 1 else None
    return None


def platform_taken(names: Sequence[Sequence[str] | None]) -> int:
    """The branch of `lax.platform_dependent` that is taken."""
    here = platforms.current().name
    return next(i for i, some in enumerate(names) if some is None or here in some)
