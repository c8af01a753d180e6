"""The longest chain of matrix products in a traced program: what no parallel machine shortens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from attnlab.bench.jaxprs import find_called, open_jaxpr, parts_of_scan


def longest_chain(function: Callable[..., Any], *arguments: Any) -> int:
    """The matrix products of the longest chain in which each needs the result of the one before.

    Convolutions count as products. Of branches the longest counts.

    Raises:
      NotImplementedError: a chain goes through a loop whose length depends on numbers.
    """
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    return max(_depths(program, [0] * len(program.invars)), default=0)


def _depths(jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    """How long the chain of products before each output is, given that before each input."""
    known: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))

    def length_before(variable: Any) -> int:
        return 0 if hasattr(variable, "val") else known.get(variable, 0)

    for equation in jaxpr.eqns:
        given = [length_before(x) for x in equation.invars]
        outputs = [max(given, default=0)] * len(equation.outvars)
        inner = find_called(equation)
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            outputs = [x + 1 for x in outputs]
        elif equation.primitive.name == "scan":
            outputs = _of_scan(equation, given)
        elif equation.primitive.name == "while":
            outputs = _of_while(equation.params, given)
        elif equation.primitive.name == "cond":
            of_branches = [_depths(open_jaxpr(x), given[1:]) for x in equation.params["branches"]]
            outputs = [max(x, given[0]) for x in map(max, zip(*of_branches, strict=True))]
        elif inner is not None:
            outputs = _depths(open_jaxpr(inner), given)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [length_before(x) for x in jaxpr.outvars]


def _of_scan(equation: Any, given: Sequence[int]) -> list[int]:
    body, (constants, carried) = open_jaxpr(equation.params["jaxpr"]), parts_of_scan(equation)
    fixed, start, xs = given[:constants], given[constants:][:carried], given[constants + carried :]
    outputs = [*start, *[0] * (len(body.outvars) - carried)]
    for _ in range(equation.params["length"]):
        before, outputs = outputs, _depths(body, [*fixed, *outputs[:carried], *xs])
        if outputs == before:  # and so they stay
            break
    return outputs


def _of_while(parameters: Any, given: Sequence[int]) -> list[int]:
    rest = given[parameters["cond_nconsts"] :]
    fixed, start = rest[: parameters["body_nconsts"]], rest[parameters["body_nconsts"] :]
    body = functools.partial(_depths, open_jaxpr(parameters["body_jaxpr"]))
    second = body([*fixed, *body([*fixed, *start])])
    if body([*fixed, *second]) != second:
        raise NotImplementedError(
            "a chain of products goes through a loop whose length depends on numbers; count another"
            " implementation"
        )
    of_condition = given[: parameters["cond_nconsts"]]
    (length,) = _depths(open_jaxpr(parameters["cond_jaxpr"]), [*of_condition, *second])
    return [max(x, length) for x in second]
