"""Operations of a traced program, counted, loops as often as they run.

A program is traced, not compiled, so that neither a device nor memory is needed, and no compiler
has fused or dropped anything. Sorting, copying, adding and multiplying number by number are not
counted.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.bench.case import Operations
from attnlab.bench.jaxprs import find_called, fori_bounds, open_jaxpr, parts_of_scan, platform_taken
from attnlab.bench.roofline import PRODUCTS

__all__ = ["count"]

_TRANSCENDENTAL = (
    *("exp", "exp2", "log", "log1p", "expm1", "logistic", "erf", "erfc", "pow"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh"),
)
DIVISION = "div"
_REFUSED = (  # they multiply matrices, or nobody sees what they do
    *("ragged_dot", "ragged_dot_general", "triangular_solve", "cholesky", "lu", "qr", "svd", "eig"),
    *("eigh", "custom_linear_solve", "fft", "custom_call", "ffi_call", "pure_callback"),
)
_KERNELS = ("pallas", "dot_product_attention")  # in their names; cuDNN's is the second


def count(function: Callable[..., Any], *arguments: Any) -> Operations:
    """The operations of a function.

    A loop whose length depends on numbers, as that over the blocks which a mask leaves, is followed
    as far as these are known: from the positions of tokens, say. Of branches the one that is taken
    counts; where that is not known, the one with the fewest operations: of products, else of
    functions, else of divisions. Of platforms it is that of `platforms.current`.

    Args:
      function: function that JAX can trace.
      arguments: trees of arrays, whose numbers are known, or `jax.ShapeDtypeStruct`s.

    Raises:
      NotImplementedError: a kernel or a solver, whose operations are not seen, or a loop whose
        length depends on numbers that are not known.
    """
    program = jax.make_jaxpr(function)(*arguments)
    given = jax.tree.leaves(arguments)
    tally = Counter[str]()
    inputs = [None if isinstance(x, jax.ShapeDtypeStruct) else _constant(x) for x in given]
    _Walk().add(program, inputs, tally)
    functions = dict(sorted(tally.items()))
    products = functions.pop(PRODUCTS, 0)
    return Operations(products, functions)


class _Known:
    """A value that can be had without running the program: computed when it is asked for.

    Attributes:
      loops: the loops around it from whose step to the next it may change.
    """

    def __init__(self, compute: Callable[[], Any], loops: frozenset[object] = frozenset()) -> None:
        self._compute = compute
        self.loops = loops

    @functools.cached_property
    def array(self) -> Any:
        """The numbers."""
        return self._compute()


Values = Sequence[_Known | None]  # of variables; None = only a run would tell


class _Walk:
    """Goes through programs; computes of them what decides how often a loop runs, and no more."""

    def __init__(self) -> None:
        self._decisive: set[object] = set()  # loops whose step decided about a loop or a branch

    def add(self, program: Any, inputs: Values, tally: Counter[str]) -> Values:
        """Adds what a program computes to a tally, and returns its outputs."""
        jaxpr = open_jaxpr(program)
        constants = [_constant(x) for x in getattr(program, "consts", ())]
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

        def value(x: Any) -> _Known | None:
            return _constant(x.val) if hasattr(x, "val") else values[x]

        for equation in jaxpr.eqns:
            outputs = self._add_one(equation, [value(x) for x in equation.invars], tally)
            values.update(zip(equation.outvars, outputs, strict=True))
        return [value(x) for x in jaxpr.outvars]

    def _add_one(self, equation: Any, given: Values, tally: Counter[str]) -> Values:
        match equation.primitive.name:
            case "while":
                return self._add_while(equation, given, tally)
            case "scan":
                return self._add_scan(equation, given, tally)
            case "cond":
                return self._add_cond(equation, given, tally)
            case "platform_index":
                return [_constant(platform_taken(equation.params["platforms"]))]
        inner = find_called(equation)
        if inner is not None:
            return self.add(inner, given, tally)
        tally.update(dict(_operations_of(equation)))
        return _compute(equation, given)

    def _add_cond(self, equation: Any, given: Values, tally: Counter[str]) -> Values:
        branches, index, rest = equation.params["branches"], given[0], given[1:]
        if index is not None:
            return self.add(branches[int(self._decide(index))], rest, tally)
        tallies = [Counter[str]() for _ in branches]
        for branch, branch_tally in zip(branches, tallies, strict=True):
            self.add(branch, rest, branch_tally)
        cheapest = min(tallies, key=_cost)
        tally.update(cheapest)
        return [None] * len(equation.outvars)

    def _add_while(self, equation: Any, given: Values, tally: Counter[str]) -> Values:
        condition, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
        of_condition, rest = _split(given, equation.params["cond_nconsts"])
        of_body, carried = _split(rest, equation.params["body_nconsts"])
        trips = self._trips(equation.params, [*of_condition, *carried])
        if trips is not None:
            loop, one_step = object(), Counter[str]()
            self.add(body, [*of_body, *(_vary(x, loop) for x in carried)], one_step)
            if loop not in self._decisive:
                _add_times(tally, one_step, trips)
                return _compute(equation, given)
        while True:
            (goes_on,) = self.add(condition, [*of_condition, *carried], tally)
            if goes_on is None:
                raise NotImplementedError(
                    "the length of a loop depends on numbers that are not known; give arrays"
                    " rather than shapes, or count another implementation"
                )
            if not self._decide(goes_on):
                return carried
            carried = self.add(body, [*of_body, *carried], tally)

    def _trips(self, parameters: Any, inputs: Values) -> int | None:
        """How often `lax.fori_loop` runs; None = the loop is another, or it is not known."""
        bounds = fori_bounds(parameters)
        if bounds is None:
            return None
        of_condition = dict(zip(open_jaxpr(parameters["cond_jaxpr"]).invars, inputs, strict=True))
        ends = [_constant(x.val) if hasattr(x, "val") else of_condition[x] for x in bounds]
        first, last = ends
        if first is None or last is None:
            return None
        return max(int(self._decide(last)) - int(self._decide(first)), 0)

    def _add_scan(self, equation: Any, given: Values, tally: Counter[str]) -> Values:
        body, length = equation.params["jaxpr"], equation.params["length"]
        constants, num_carried = parts_of_scan(equation)
        fixed, rest = _split(given, constants)
        carried, xs = _split(rest, num_carried)
        steps = range(length)[:: -1 if equation.params["reverse"] else 1]
        for i in steps:
            loop, one_step = object(), Counter[str]()
            of_step = [_vary(x, loop) for x in [*carried, *(_row(x, i) for x in xs)]]
            carried = self.add(body, [*fixed, *of_step], one_step)[:num_carried]
            if loop not in self._decisive:  # each step is as this one
                _add_times(tally, one_step, length - steps.index(i))
                return _compute(equation, given)
            tally.update(one_step)
        collected = _compute(equation, given)[num_carried:]
        return [*carried, *collected]

    def _decide(self, value: _Known) -> Any:
        """The numbers of a value on which it depends what runs."""
        self._decisive |= value.loops
        return value.array


def _constant(array: Any) -> _Known:
    return _Known(lambda: array)


def _compute(equation: Any, given: Values) -> Values:
    """The outputs of an operation whose inputs are all known."""
    known = [x for x in given if x is not None]
    if len(known) < len(given):
        return [None] * len(equation.outvars)

    @functools.cache
    def outputs() -> Sequence[Any]:
        results = equation.primitive.bind(*(x.array for x in known), **equation.params)
        return results if equation.primitive.multiple_results else [results]

    loops = frozenset[object]().union(*(x.loops for x in known))

    def output(i: int) -> _Known:
        return _Known(lambda: outputs()[i], loops)

    return [output(i) for i in range(len(equation.outvars))]


def _vary(x: _Known | None, loop: object) -> _Known | None:
    """A value that may change from a step of a loop to the next."""
    return x and _Known(lambda: x.array, x.loops | {loop})


def _row(x: _Known | None, i: int) -> _Known | None:
    return x and _Known(lambda: x.array[i], x.loops)


def _cost(tally: Counter[str]) -> tuple[float, ...]:
    """Numbers of operations, those that take longest first."""
    functions = tally.total() - tally[PRODUCTS] - tally[DIVISION]
    return tally[PRODUCTS], functions, tally[DIVISION]


def _add_times(tally: Counter[str], more: Counter[str], times: int) -> None:
    for kind, number in more.items():
        tally[kind] += times * number


def _split(values: Values, number: int) -> tuple[Values, Values]:
    return values[:number], values[number:]


def _operations_of(equation: Any) -> Iterator[tuple[str, int]]:
    """What an operation without others inside computes: kinds of operations, and how many.

    Raises:
      NotImplementedError: nobody sees what it does.
    """
    name = equation.primitive.name
    if name in _REFUSED or any(part in name for part in _KERNELS):
        raise NotImplementedError(f"{name}: what it computes is not seen; count another way")
    size = math.prod(getattr(equation.outvars[0].aval, "shape", ())) if equation.outvars else 0
    if name == "dot_general":
        yield PRODUCTS, 2 * size * _count_contracted(equation)
    elif name == "conv_general_dilated":
        yield PRODUCTS, 2 * size * _inputs_of_one_output(equation)
    elif name in _TRANSCENDENTAL or _divides(equation):
        yield name, size


def _divides(equation: Any) -> bool:
    """Whether it divides numbers by others than a constant, by whose inverse compilers multiply."""
    if equation.primitive.name != DIVISION or hasattr(equation.invars[1], "val"):
        return False
    return jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.inexact)


def _count_contracted(equation: Any) -> int:
    (axes, _), _ = equation.params["dimension_numbers"]
    return math.prod(equation.invars[0].aval.shape[axis] for axis in axes)


def _inputs_of_one_output(equation: Any) -> int:
    """Inputs of a convolution that each output is a sum over."""
    shape, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
    return math.prod(shape) // shape[numbers.rhs_spec[0]]
