"""What a traced program computes: operations counted, loops as often as they run.

A program is traced, not compiled, so that neither a device nor memory is needed, and no compiler
has fused or dropped anything. Sorting, copying and elementwise arithmetic are not counted.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["Operations", "count"]

# Of one argument each; an accelerator computes them in a unit of their own.
_TRANSCENDENTAL = (
    *("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "sin", "cos", "pow"),
)
_REFUSED = (  # they multiply matrices, or nobody sees what they do
    *("ragged_dot", "ragged_dot_general", "triangular_solve", "cholesky", "lu", "qr", "svd", "eig"),
    *("eigh", "custom_linear_solve", "fft", "custom_call", "ffi_call", "pure_callback"),
)
_PLATFORMS = {"gpu": ("cuda", "rocm")}  # other names that programs have for a backend


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

    Of branches the costliest counts, and of platforms this one. A loop whose length depends on
    numbers, as that over the blocks which a mask leaves, is run with the arguments, or with zeros
    for shapes, an operation at a time: give small ones. Then the branches that are taken count.

    Args:
      function: function that JAX can trace.
      arguments: trees of arrays or `jax.ShapeDtypeStruct`s.

    Raises:
      NotImplementedError: a kernel or a solver, whose operations are not seen, or a chain of
        products that goes through a loop whose length depends on numbers.
    """
    program = jax.make_jaxpr(function)(*arguments)
    values = [
        jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x)
        for x in jax.tree.leaves(arguments)
    ]
    tally = Counter[str]()
    _tally(program.jaxpr, tally)
    if tally["while"]:
        tally = Counter()
        _run(program, values, tally)
    sequential = max(_depths(program.jaxpr, [0] * len(values)), default=0)
    return Operations(tally["products"], tally["transcendental"], sequential)


def _tally(jaxpr: Any, tally: Counter[str], times: int = 1) -> None:
    """Adds what a program computes, and its loops of unknown length and its branches."""
    platforms: dict[Any, int] = {}
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if "pallas" in name or name in _REFUSED:
            raise NotImplementedError(f"{name}: what it computes is not seen; count another way")
        if name == "platform_index":
            platforms[equation.outvars[0]] = _platform(equation.params["platforms"])
        elif name in ("while", "cond"):
            tally[name] += 1
        size = _size(equation.outvars[0]) if equation.outvars else 0
        if name == "dot_general":
            tally["products"] += times * 2 * size * _contracted(equation)
        elif name == "conv_general_dilated":
            tally["products"] += times * 2 * size * _of_kernel(equation)
        elif name in _TRANSCENDENTAL:
            tally["transcendental"] += times * size
        for repeats, inner in _inner(equation, platforms):
            _tally(inner, tally, times * repeats)


def _inner(equation: Any, platforms: Mapping[Any, int]) -> list[tuple[int, Any]]:
    """The programs inside an operation, and how often each runs.

    Args:
      equation: operation.
      platforms: branches of this platform, by the variable that chooses them.
    """
    parameters = equation.params
    match equation.primitive.name:
        case "while":
            return [(1, _open(parameters["body_jaxpr"]))]
        case "scan":
            return [(parameters["length"], _open(parameters["jaxpr"]))]
        case "cond":
            branches, chosen = parameters["branches"], equation.invars[0]
            if not hasattr(chosen, "val") and chosen in platforms:
                return [(1, _open(branches[platforms[chosen]]))]
            return [(1, max(map(_open, branches), key=_cost))]
    called = _called(equation)
    return [] if called is None else [(1, _open(called))]


def _called(equation: Any) -> Any:
    """The program that an operation calls with its own inputs; not how it combines two numbers."""
    for x in equation.params.values():
        if hasattr(_open(x), "eqns") and len(_open(x).invars) == len(equation.invars):
            return None if equation.primitive.name.startswith(("scatter", "reduce")) else x
    return None


def _cost(jaxpr: Any) -> float:
    tally = Counter[str]()
    _tally(jaxpr, tally)
    return tally["products"]


def _run(program: Any, inputs: Sequence[Any], tally: Counter[str]) -> list[Any]:
    """Computes a program, an operation at a time where a loop of unknown length is in it."""
    jaxpr, constants = _open(program), getattr(program, "consts", ())
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
        elif not of_one["while"] + of_one["cond"]:
            tally.update(of_one)
            outputs = jax.core.eval_jaxpr(
                jaxpr.replace(eqns=[equation], invars=_variables(equation), constvars=[],
                              outvars=equation.outvars), [], *map(known.get, _variables(equation))
            )  # fmt: skip
        elif name == "while":
            outputs = _run_while(parameters, given, tally)
        elif name == "scan":
            outputs = _run_scan(equation, given, tally)
        else:
            if name == "cond":
                index, *given = given
                inner = parameters["branches"][int(index)]
            else:
                inner = _called(equation)
            outputs = _run(inner, given, tally)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [value(x) for x in jaxpr.outvars]


def _variables(equation: Any) -> list[Any]:
    return list(dict.fromkeys(x for x in equation.invars if not hasattr(x, "val")))


def _platform(platforms: Sequence[Sequence[str] | None]) -> int:
    """The branch of `lax.platform_dependent` that this machine takes."""
    here = {jax.default_backend(), *_PLATFORMS.get(jax.default_backend(), ())}
    return next(i for i, names in enumerate(platforms) if names is None or here & {*names})


def _run_while(parameters: Any, given: list[Any], tally: Counter[str]) -> list[Any]:
    condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    of_condition = given[: parameters["cond_nconsts"]]
    rest = given[parameters["cond_nconsts"] :]
    of_body, carried = rest[: parameters["body_nconsts"]], rest[parameters["body_nconsts"] :]
    while bool(_run(condition, [*of_condition, *carried], tally)[0]):
        carried = _run(body, [*of_body, *carried], tally)
    return carried


def _parts_of_scan(equation: Any) -> tuple[int, int]:
    """How many constants it has, and how many carried values: they have no axis of repetitions."""
    body = _open(equation.params["jaxpr"])

    def alike(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(x.aval.shape) == len(y.aval.shape) for x, y in pairs)

    carried = alike(equation.outvars, body.outvars)
    return alike(equation.invars, body.invars) - carried, carried


def _run_scan(equation: Any, given: list[Any], tally: Counter[str]) -> list[Any]:
    parameters = equation.params
    body, length = parameters["jaxpr"], parameters["length"]
    constants, num_carried = _parts_of_scan(equation)
    fixed, xs = given[:constants], given[constants + num_carried :]
    carried = given[constants : constants + num_carried]
    found: list[list[Any]] = [[] for _ in range(len(_open(body).outvars) - num_carried)]
    order = range(length)[:: -1 if parameters["reverse"] else 1]
    for i in order:
        outputs = _run(body, [*fixed, *carried, *(x[i] for x in xs)], tally)
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
            outputs = _of_scan(equation, given)
        elif equation.primitive.name == "while":
            outputs = _of_while(equation.params, given)
        elif equation.primitive.name == "cond":
            of_branches = [_depths(_open(x), given[1:]) for x in equation.params["branches"]]
            outputs = [max(x, given[0]) for x in map(max, zip(*of_branches, strict=True))]
        else:
            for _, inner in _inner(equation, {}):
                outputs = _depths(inner, given)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [before(x) for x in jaxpr.outvars]


def _of_scan(equation: Any, given: Sequence[int]) -> list[int]:
    body, (constants, carried) = _open(equation.params["jaxpr"]), _parts_of_scan(equation)
    fixed, start, xs = given[:constants], given[constants:][:carried], given[constants + carried :]
    outputs = [*start, *[0] * (len(body.outvars) - carried)]
    for _ in range(equation.params["length"]):
        outputs = _depths(body, [*fixed, *outputs[:carried], *xs])
    return outputs


def _of_while(parameters: Any, given: Sequence[int]) -> list[int]:
    rest = given[parameters["cond_nconsts"] :]
    fixed, start = rest[: parameters["body_nconsts"]], rest[parameters["body_nconsts"] :]
    body = functools.partial(_depths, _open(parameters["body_jaxpr"]))
    second = body([*fixed, *body([*fixed, *start])])
    if body([*fixed, *second]) != second:
        raise NotImplementedError(
            "a chain of products goes through a loop whose length depends on numbers; count another"
            " implementation"
        )
    of_condition = given[: parameters["cond_nconsts"]]
    (length,) = _depths(_open(parameters["cond_jaxpr"]), [*of_condition, *second])
    return [max(x, length) for x in second]


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
