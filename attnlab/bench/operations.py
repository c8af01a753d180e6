"""Operations of a traced program, counted, loops as often as they run.

A program is traced, not compiled, so that neither a device nor memory is needed, and no compiler
has fused or dropped anything. Sorting, copying, adding and multiplying number by number are not
counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.bench.case import Operations
from attnlab.bench.jaxprs import called, fori_trips, opened, parts_of_scan, platform_taken
from attnlab.bench.roofline import PRODUCTS

__all__ = ["count"]

Values = Sequence[Any]  # of variables; None = not known
Flags = tuple[bool, ...]
_TRANSCENDENTAL = (
    *("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "sin", "cos", "pow"),
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
    values = [None if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x) for x in given]
    tally = Counter[str]()
    with jax.enable_x64(True):  # sums of blocks are beyond 2³¹
        _Counter().walk(program, values, (False,) * len(program.jaxpr.outvars), tally)
    functions = {kind: int(number) for kind, number in sorted(tally.items())}
    products = functions.pop(PRODUCTS, 0)
    return Operations(products, functions)


class _Counter:
    """Walks through programs, and computes of them what decides how often a loop runs.

    Two passes over a program say what that is: forwards which of its variables can be known, and
    backwards which of these a loop or a branch depends on.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, _Plan] = {}

    def walk(
        self, program: Any, inputs: Values, wanted: Flags, tally: Counter[str], times: int = 1
    ) -> list[Any]:
        """Adds what a program computes.

        Args:
          program: program.
          inputs: inputs of the program.
          wanted: whether each of its outputs is to be computed, if that is possible.
          tally: numbers of operations, added to.
          times: number of times that it runs.

        Returns:
          The outputs that are wanted and known.
        """
        jaxpr, constants = opened(program), getattr(program, "consts", ())
        plan = self._plan(program, _known(inputs), wanted)
        variables = zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True)
        known = {x: value for x, value in variables if x in plan.needed}

        def value(x: Any) -> Any:
            return x.val if hasattr(x, "val") else known.get(x)

        for equation in jaxpr.eqns:
            given = [value(x) for x in equation.invars]
            wants = tuple(x in plan.needed for x in equation.outvars)
            outputs = self._equation(equation, given, wants, tally, times)
            made = zip(equation.outvars, outputs, strict=True)
            known.update((x, y) for x, y in made if x in plan.needed)
        return [value(x) if flag else None for x, flag in zip(jaxpr.outvars, wanted, strict=True)]

    def _equation(
        self, equation: Any, given: Values, wants: Flags, tally: Counter[str], times: int
    ) -> Values:
        name, parameters = equation.primitive.name, equation.params
        match name:
            case "while":
                return self._while(parameters, given, wants, tally, times)
            case "scan":
                return self._scan(equation, given, wants, tally, times)
            case "cond":
                return self._cond(parameters["branches"], given, wants, tally, times)
            case "platform_index":
                return [platform_taken(parameters["platforms"])]
        inner = called(equation)
        if inner is not None:
            return self.walk(inner, given, wants, tally, times)
        _add(tally, dict(_of_one(equation)), times)
        if not any(wants):
            return [None] * len(wants)
        return _computed(equation, given)

    def _cond(
        self, branches: Sequence[Any], given: Values, wants: Flags, tally: Counter[str], times: int
    ) -> Values:
        index, *rest = given
        if index is not None:
            return self.walk(branches[int(index)], rest, wants, tally, times)
        tallies = [Counter[str]() for _ in branches]
        for branch, branch_tally in zip(branches, tallies, strict=True):
            self.walk(branch, rest, wants, branch_tally)
        cheapest = min(tallies, key=_cost)
        _add(tally, cheapest, times)
        return [None] * len(wants)

    def _while(
        self, parameters: Any, given: Values, wants: Flags, tally: Counter[str], times: int
    ) -> Values:
        condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
        of_condition, rest = _split(given, parameters["cond_nconsts"])
        of_body, carried = _split(rest, parameters["body_nconsts"])
        needed = self._of_while(parameters, _known(given), wants)[1]
        carried = [x if flag else None for x, flag in zip(carried, needed, strict=True)]
        trips = fori_trips(parameters, of_condition, carried)
        if trips is not None and not any(wants) and not self._varies(body, of_body, carried):
            self.walk(body, [*of_body, *[None] * len(carried)], wants, tally, times * trips)
            return [None] * len(wants)
        while True:
            (goes_on,) = self.walk(condition, [*of_condition, *carried], (True,), tally, times)
            if goes_on is None:
                raise NotImplementedError(
                    "the length of a loop depends on numbers that are not known; give arrays"
                    " rather than shapes, or count another implementation"
                )
            if not bool(goes_on):
                return carried
            carried = self.walk(body, [*of_body, *carried], needed, tally, times)

    def _scan(
        self, equation: Any, given: Values, wants: Flags, tally: Counter[str], times: int
    ) -> Values:
        parameters, (constants, carried) = equation.params, parts_of_scan(equation)
        body, length = parameters["jaxpr"], parameters["length"]
        fixed, rest = _split(given, constants)
        state, xs = _split(rest, carried)
        if not any(wants) and not self._varies(body, fixed, [*state, *xs]):
            nothing = [None] * (len(given) - constants)
            self.walk(body, [*fixed, *nothing], wants, tally, times * length)
            return [None] * len(wants)
        of_state = self._of_scan(equation, _known(given), wants)[1]
        state = [x if flag else None for x, flag in zip(state, of_state, strict=True)]
        wanted = (*of_state, *wants[carried:])
        if not any(wanted):
            with contextlib.suppress(jax.errors.ConcretizationTypeError):
                _add(tally, self._all_steps(body, [*fixed, *state], xs), times)
                return [None] * len(wants)
        collected: list[Any] = [[] for _ in wants[carried:]]
        order = range(length)[:: -1 if parameters["reverse"] else 1]
        for i in order:
            of_step = [x if x is None else x[i] for x in xs]
            outputs = self.walk(body, [*fixed, *state, *of_step], wanted, tally, times)
            state = outputs[:carried]
            for many, output in zip(collected, outputs[carried:], strict=True):
                many.append(output)
        stacked = [[many[i] for i in order] for many in collected]
        known = [many and all(x is not None for x in many) for many in stacked]
        ys = [jnp.stack(x) if flag else None for x, flag in zip(stacked, known, strict=True)]
        return [*state, *ys]

    def _all_steps(self, body: Any, fixed: Values, xs: Values) -> Counter[str]:
        """What the steps of a loop compute that do not depend on each other, side by side.

        Raises:
          jax.errors.ConcretizationTypeError: a branch depends on the step.
        """
        wanted = (False,) * len(opened(body).outvars)

        @jax.jit
        @jax.vmap
        def step(known: dict[int, Any]) -> dict[str, Any]:
            tally = Counter[str]()
            of_step = [known.get(i) for i in range(len(xs))]
            self.walk(body, [*fixed, *of_step], wanted, tally)
            return {kind: jnp.asarray(number) for kind, number in tally.items()}

        tally = step({i: x for i, x in enumerate(xs) if x is not None})
        return Counter({kind: jnp.sum(numbers) for kind, numbers in tally.items()})

    def _varies(self, body: Any, fixed: Values, varying: Values) -> bool:
        """Whether what a body computes depends on values that change from step to step."""
        outputs = (False,) * len(opened(body).outvars)
        return any(self._needs(body, _known([*fixed, *varying]), outputs)[len(fixed) :])

    def _needs(self, program: Any, known: Flags, wanted: Flags) -> Flags:
        """Which inputs decide what a program computes, or its wanted outputs."""
        return self._plan(program, known, wanted).inputs

    def _plan(self, program: Any, known: Flags, wanted: Flags) -> _Plan:
        jaxpr = opened(program)
        key = (id(jaxpr), known, wanted)
        if key not in self._plans:
            self._plans[key] = self._planned(jaxpr, known, wanted)
        return self._plans[key]

    def _planned(self, jaxpr: Any, known: Flags, wanted: Flags) -> _Plan:
        can = _chosen(jaxpr.invars, known) | {*jaxpr.constvars}

        def flags(variables: Sequence[Any]) -> Flags:
            return tuple(hasattr(x, "val") or x in can for x in variables)

        for equation in jaxpr.eqns:
            outputs = self._outputs(equation, flags(equation.invars))
            can |= _chosen(equation.outvars, outputs)
        needed = can & _chosen(jaxpr.outvars, wanted)
        for equation in reversed(jaxpr.eqns):
            wants = tuple(x in needed for x in equation.outvars)
            uses = self._uses(equation, flags(equation.invars), wants)
            needed |= can & _chosen(equation.invars, uses)
        inputs = tuple(x in needed for x in jaxpr.invars)
        return _Plan(frozenset(needed), inputs, flags(jaxpr.outvars))

    def _outputs(self, equation: Any, known: Flags) -> Flags:
        """Which outputs of an operation are known where these inputs are."""
        parameters, nothing = equation.params, (False,) * len(equation.outvars)
        match equation.primitive.name:
            case "while":
                return self._of_while(parameters, known, nothing)[0]
            case "scan":
                return self._of_scan(equation, known, nothing)[0]
            case "cond":
                branches = parameters["branches"]
                every = [self._plan(branch, known[1:], nothing).outputs for branch in branches]
                return tuple(known[0] and all(flags) for flags in zip(*every, strict=True))
        inner = called(equation)
        if inner is not None:
            return self._plan(inner, known, nothing).outputs
        return (all(known),) * len(equation.outvars)

    def _uses(self, equation: Any, known: Flags, wants: Flags) -> Flags:
        """Which inputs an operation needs for its wanted outputs, or for what it computes."""
        parameters = equation.params
        match equation.primitive.name:
            case "while":
                return self._of_while(parameters, known, wants)[2]
            case "scan":
                return self._of_scan(equation, known, wants)[2]
            case "cond":
                every = [self._needs(branch, known[1:], wants) for branch in parameters["branches"]]
                return (True, *(any(flags) for flags in zip(*every, strict=True)))
        inner = called(equation)
        if inner is not None:
            return self._needs(inner, known, wants)
        return (any(wants),) * len(equation.invars)

    def _of_while(self, parameters: Any, known: Flags, wants: Flags) -> tuple[Flags, Flags, Flags]:
        """As `_of_loop`; what its condition needs is needed, too."""
        condition = parameters["cond_jaxpr"]
        of_condition, rest = _split(known, parameters["cond_nconsts"])
        of_body, carried = _split(rest, parameters["body_nconsts"])
        body = parameters["body_jaxpr"]
        can = self._of_loop(body, of_body, carried, (), wants)[0]
        flags = (*of_condition, *can)
        (ends,) = self._plan(condition, flags, (False,)).outputs
        uses, of_carried = _split(self._needs(condition, flags, (True,)), len(of_condition))
        needed = tuple(map(any, zip(wants, of_carried, strict=True)))
        _, needed, more = self._of_loop(body, of_body, carried, (), needed)
        return tuple(flag and ends for flag in can), needed, (*uses, *more)

    def _of_scan(self, equation: Any, known: Flags, wants: Flags) -> tuple[Flags, Flags, Flags]:
        constants, carried = parts_of_scan(equation)
        fixed, rest = _split(known, constants)
        return self._of_loop(equation.params["jaxpr"], fixed, *_split(rest, carried), wants)

    def _of_loop(
        self, body: Any, fixed: Flags, carried: Flags, xs: Flags, wants: Flags
    ) -> tuple[Flags, Flags, Flags]:
        """Of a loop: which outputs can be known, which carried values and which inputs it needs."""
        while True:  # what is known before each step
            flags = (*fixed, *carried, *xs)
            outputs = self._plan(body, flags, (False,) * len(wants)).outputs
            state = tuple(map(all, zip(carried, outputs, strict=False)))
            if state == carried:
                break
            carried = state
        needed, more = _split(wants, len(carried))
        while True:
            uses = self._needs(body, flags, (*needed, *more))
            of_state = uses[len(fixed) :][: len(carried)]
            both = tuple(map(any, zip(needed, of_state, strict=True)))
            if both == needed:
                return outputs, needed, uses
            needed = both


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What is to be computed of a program.

    Attributes:
      needed: variables that are.
      inputs: whether each input is one of them.
      outputs: whether each output can be known.
    """

    needed: frozenset[Any]
    inputs: Flags
    outputs: Flags


def _cost(tally: Counter[str]) -> tuple[float, ...]:
    """Numbers of operations, those that take longest first."""
    functions = tally.total() - tally[PRODUCTS] - tally[DIVISION]
    return tally[PRODUCTS], functions, tally[DIVISION]


def _computed(equation: Any, given: Values) -> list[Any]:
    outputs = equation.primitive.bind(*given, **equation.params)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _add(tally: Counter[str], more: Mapping[str, Any], times: Any) -> None:
    for kind, number in more.items():
        tally[kind] += times * number


def _chosen(variables: Sequence[Any], flags: Flags) -> set[Any]:
    pairs = zip(variables, flags, strict=True)
    return {x for x, flag in pairs if flag and not hasattr(x, "val")}


def _known(values: Values) -> Flags:
    return tuple(x is not None for x in values)


def _split(values: Sequence[Any], number: int) -> tuple[Any, Any]:
    return values[:number], values[number:]


def _of_one(equation: Any) -> Iterator[tuple[str, int]]:
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
