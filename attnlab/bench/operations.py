"""What a traced program computes: operations counted, loops as often as they run.

A program is traced, not compiled, so that neither a device nor memory is needed, and no compiler
has fused or dropped anything. Sorting, copying and elementwise arithmetic are not counted.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["Operations", "count"]

# Of one argument each; an accelerator computes them in a unit of their own.
_TRANSCENDENTAL = ("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "sin", "cos")


@dataclasses.dataclass(frozen=True)
class Operations:
    """Numbers of operations.

    Attributes:
      products: floating-point operations of matrix products and convolutions, two for each pair of
        numbers that is multiplied and added.
      transcendental: exponentials, logarithms, tanh and the like, one for each number.
      sequential: matrix products and convolutions of the longest chain in which each needs the
        result of the one before.
    """

    products: float
    transcendental: float
    sequential: int


def count(function: Callable[..., Any], *arguments: Any) -> Operations:
    """The operations of a function.

    A loop whose length depends on numbers, as that over the blocks which a mask leaves, is run with
    the arguments, or with zeros for shapes, an operation at a time: give small ones.

    Args:
      function: function that JAX can trace.
      arguments: trees of arrays or `jax.ShapeDtypeStruct`s.

    Raises:
      NotImplementedError: a kernel, whose operations are not seen, or a chain of products that goes
        through a loop whose length depends on numbers.
    """
    program = jax.make_jaxpr(function)(*arguments)
    zeros = [
        x if isinstance(x, jax.Array) else jnp.zeros(x.shape, x.dtype)
        for x in jax.tree.leaves(arguments)
    ]
    tally = Counter[str]()
    _tally(program.jaxpr, tally)
    if tally.pop("while", 0):
        tally = Counter()
        _run(program.jaxpr, program.consts, zeros, tally)
    sequential = max(_depths(program.jaxpr, [0] * len(zeros)))
    return Operations(tally["products"], tally["transcendental"], sequential)


def _tally(jaxpr: Any, tally: Counter[str], times: int = 1) -> None:
    """Adds what a program computes, and how many loops there are of a length that is not known."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if "pallas" in name or name in ("custom_call", "ffi_call"):
            raise NotImplementedError(f"{name}: what it computes is not seen; count another way")
        tally[name] += name == "while"
        size = _size(equation.outvars[0]) if equation.outvars else 0
        if name == "dot_general":
            tally["products"] += times * 2 * size * _contracted(equation)
        elif name == "conv_general_dilated":
            tally["products"] += times * 2 * size * _of_kernel(equation)
        elif name in _TRANSCENDENTAL:
            tally["transcendental"] += times * size
        for repeats, inner in _inner(equation):
            _tally(inner, tally, times * repeats)


def _inner(equation: Any) -> list[tuple[int, Any]]:
    """The programs inside an operation, and how often each runs; of branches the costliest."""
    parameters = equation.params
    match equation.primitive.name:
        case "while":
            return [(1, parameters["body_jaxpr"].jaxpr)]
        case "scan":
            return [(parameters["length"], parameters["jaxpr"].jaxpr)]
        case "cond":
            return [(1, max((x.jaxpr for x in parameters["branches"]), key=_cost))]
    return [(1, _open(x)) for x in parameters.values() if hasattr(_open(x), "eqns")][:1]


def _cost(jaxpr: Any) -> float:
    tally = Counter[str]()
    _tally(jaxpr, tally)
    return tally["products"]


def _run(jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any], tally: Counter[str]) -> list:
    """Computes a program, an operation at a time where a loop of unknown length is in it."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

    def value(x: Any) -> Any:
        return x.val if hasattr(x, "val") else known[x]

    for equation in jaxpr.eqns:
        given, parameters = [value(x) for x in equation.invars], equation.params
        of_one = Counter[str]()
        _tally(jaxpr.replace(eqns=[equation]), of_one)
        name = equation.primitive.name
        if name == "platform_index":
            outputs = [_platform(parameters["platforms"])]
        elif not of_one.pop("while", 0):
            tally.update(of_one)
            outputs = jax.core.eval_jaxpr(
                jaxpr.replace(eqns=[equation], invars=_variables(equation), constvars=[],
                              outvars=equation.outvars), [], *map(known.get, _variables(equation))
            )  # fmt: skip
        elif name == "while":
            outputs = _run_while(parameters, given, tally)
        elif name == "scan":
            outputs = _run_scan(parameters, given, tally)
        else:
            if name == "cond":
                index, *given = given
                inner = parameters["branches"][int(index)]
            else:
                inner = next(x for x in parameters.values() if hasattr(_open(x), "eqns"))
            outputs = _run(_open(inner), getattr(inner, "consts", []), given, tally)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [value(x) for x in jaxpr.outvars]


def _variables(equation: Any) -> list[Any]:
    return list(dict.fromkeys(x for x in equation.invars if not hasattr(x, "val")))


def _platform(platforms: Sequence[Sequence[str] | None]) -> int:
    """The branch of `lax.platform_dependent` that this machine takes."""
    here = jax.default_backend()
    return next(i for i, names in enumerate(platforms) if names is None or here in names)


def _run_while(parameters: Any, given: list[Any], tally: Counter[str]) -> list[Any]:
    condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    of_condition = given[: parameters["cond_nconsts"]]
    rest = given[parameters["cond_nconsts"] :]
    of_body, carried = rest[: parameters["body_nconsts"]], rest[parameters["body_nconsts"] :]
    while bool(_run(condition.jaxpr, condition.consts, [*of_condition, *carried], tally)[0]):
        carried = _run(body.jaxpr, body.consts, [*of_body, *carried], tally)
    return carried


def _run_scan(parameters: Any, given: list[Any], tally: Counter[str]) -> list[Any]:
    body, length = parameters["jaxpr"], parameters["length"]
    first, last = parameters["num_consts"], parameters["num_consts"] + parameters["num_carry"]
    fixed, carried, xs = given[:first], given[first:last], given[last:]
    found: list[list[Any]] = [[] for _ in range(len(body.out_avals) - len(carried))]
    order = range(length)[:: -1 if parameters["reverse"] else 1]
    for i in order:
        outputs = _run(body.jaxpr, body.consts, [*fixed, *carried, *(x[i] for x in xs)], tally)
        carried = outputs[: len(carried)]
        for many, one in zip(found, outputs[len(carried) :], strict=True):
            many.append(one)
    stacked = [jnp.stack(many[:: -1 if parameters["reverse"] else 1]) for many in found]
    return [*carried, *stacked]


def _depths(jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    """How long the chain of products before each output is, given that before each input."""
    known: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))

    def before(variable: Any) -> int:
        return 0 if hasattr(variable, "val") else known.get(variable, 0)

    for equation in jaxpr.eqns:
        given = [before(x) for x in equation.invars]
        outputs = [max(given, default=0)] * len(equation.outvars)
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            outputs = [x + 1 for x in outputs]
        elif equation.primitive.name == "scan":
            outputs = _of_scan(equation.params, given)
        elif equation.primitive.name == "while":
            outputs = _of_while(equation.params, given)
        elif equation.primitive.name == "cond":
            of_branches = [_depths(_open(x), given[1:]) for x in equation.params["branches"]]
            outputs = [max(x, given[0]) for x in map(max, zip(*of_branches, strict=True))]
        else:
            for _, inner in _inner(equation):
                outputs = _depths(inner, given[-len(inner.invars) :])
        known.update(zip(equation.outvars, outputs, strict=True))
    return [before(x) for x in jaxpr.outvars]


def _of_scan(parameters: Any, given: Sequence[int]) -> list[int]:
    """A loop's chain grows with each repetition by as much as in the second one."""
    constants, carried = parameters["num_consts"], parameters["num_carry"]
    fixed, start, xs = given[:constants], given[constants:][:carried], given[constants + carried :]
    body = functools.partial(_depths, parameters["jaxpr"].jaxpr)
    first = body([*fixed, *start, *xs])
    if parameters["length"] == 1:
        return first
    second = body([*fixed, *first[:carried], *xs])
    more = parameters["length"] - 2
    return [y + more * (y - x) for x, y in zip(first, second, strict=True)]


def _of_while(parameters: Any, given: Sequence[int]) -> list[int]:
    rest = given[parameters["cond_nconsts"] :]
    fixed, start = rest[: parameters["body_nconsts"]], rest[parameters["body_nconsts"] :]
    body = functools.partial(_depths, parameters["body_jaxpr"].jaxpr)
    second = body([*fixed, *body([*fixed, *start])])
    if body([*fixed, *second]) != second:
        raise NotImplementedError(
            "a chain of products goes through a loop whose length depends on numbers; count another"
            " implementation"
        )
    return second


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))


def _contracted(equation: Any) -> int:
    (axes, _), _ = equation.params["dimension_numbers"]
    return math.prod(equation.invars[0].aval.shape[axis] for axis in axes)


def _of_kernel(equation: Any) -> int:
    """Inputs that each output is a sum over."""
    shape, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
    return math.prod(shape) // shape[numbers.rhs_spec[0]]


def _open(x: Any) -> Any:
    """The program without its constants."""
    return x.jaxpr if hasattr(x, "jaxpr") else x
