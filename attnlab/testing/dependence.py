"""A model whose tables of tokens are others, which shows what its logits depend on at all.

A leak that goes through a table of zeros, as a new embedding may be, moves nothing yet, and has a
gradient all the same: training will use it. So each table of numbers that integers made of tokens
look up is drawn anew. A program of JAX can be read for that, and torch tells a mode of each call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from attnlab.runs.errors import one_line
from attnlab.testing.comparing import Inapplicable
from attnlab.testing.frameworks import call

__all__ = ["draw_tables"]

INTEGERS, NUMBERS = 1, 2  # kinds of what is made of tokens; 0: of none
_READ = ("jit", "pjit", "checkpoint", "remat2")  # steps whose programs are read too
#: Names by which steps have programs, such as a loop its body.
_PROGRAMS = {"jaxpr", "call_jaxpr", "fun_jaxpr", "cond_jaxpr", "branches"}


def draw_tables(
    function: Callable[..., Any], framework: str, tokens: np.ndarray, **named: np.ndarray
) -> Callable[..., Any]:
    """The same function of tokens but for its tables, which are normal.

    Args:
      function: function of tokens, which JAX can trace, or of torch.
      framework: "jax", "torch" or "numpy".
      tokens: tokens [B, T] with which it is called once.
      **named: arrays for its keywords, then.

    Raises:
      Inapplicable: no table is seen.
    """
    if framework == "numpy":
        raise Inapplicable("NumPy does not tell which numbers are tables of tokens")
    drawn: list[Any] = []
    make = _draw_tables_of_jax if framework == "jax" else _draw_tables_of_torch
    other = make(function, drawn)
    try:
        call(other, framework, tokens, **named)
    except Exception as error:  # as of what is compiled, and cannot be read
        reason = error if isinstance(error, Inapplicable) else one_line(error)
        raise Inapplicable(f"its tables cannot be drawn: {reason}") from None
    if not drawn:
        raise Inapplicable("it looks up no table by its tokens, as far as is seen")
    return other


def _draw_tables_of_jax(function: Callable[..., Any], drawn: list[Any]) -> Callable[..., Any]:
    def draw(table: Any) -> Any:
        drawn.append(table.shape)
        return jax.random.normal(jax.random.key(len(drawn)), table.shape, table.dtype)

    def run(tokens: Any, **named: Any) -> Any:
        drawn.clear()
        program = jax.make_jaxpr(functools.partial(function, **named))(tokens)
        return _run(program, [tokens], [INTEGERS], draw)[0][0]

    return run


def _run(
    program: Any, args: Sequence[Any], kinds: Sequence[int], draw: Callable[[Any], Any]
) -> tuple[list[Any], list[int]]:
    """Outputs of a program with other tables, and their kinds."""
    jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    kind_of = dict(zip(jaxpr.invars, kinds, strict=True))

    def read(x: Any) -> tuple[Any, int]:
        return (x.val, 0) if isinstance(x, Literal) else (values[x], kind_of.get(x, 0))

    for step in jaxpr.eqns:
        inputs = [read(x)[0] for x in step.invars]
        kinds = [read(x)[1] for x in step.invars]
        name = step.primitive.name
        holds_program = INTEGERS in kinds and _PROGRAMS & step.params.keys()
        if holds_program and name not in _READ:
            raise Inapplicable(f"its tokens go into {name}, which is not read")
        if holds_program:
            outputs, made = _run(step.params["jaxpr"], inputs, kinds, draw)
        else:
            if name == "gather" and kinds == [0, INTEGERS] and _is_number(inputs[0]):
                inputs[0] = draw(inputs[0])
            outputs = step.primitive.bind(*inputs, **step.primitive.get_bind_params(step.params))
            outputs = outputs if step.primitive.multiple_results else [outputs]
            most = max(kinds, default=0)
            made = [NUMBERS if most and _is_number(x) else most for x in outputs]
        values.update(zip(step.outvars, outputs, strict=True))
        kind_of.update(zip(step.outvars, made, strict=True))
    return [read(x)[0] for x in jaxpr.outvars], [read(x)[1] for x in jaxpr.outvars]


def _is_number(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _draw_tables_of_torch(function: Callable[..., Any], drawn: list[Any]) -> Callable[..., Any]:
    import torch
    from torch.overrides import TorchFunctionMode

    lookups = (torch.nn.functional.embedding, torch.index_select, torch.Tensor.__getitem__)

    def draw(x: Any) -> Any:
        is_number = isinstance(x, torch.Tensor) and x.is_floating_point()
        if not is_number or hasattr(x, "kind"):
            return x
        drawn.append(x.shape)
        seeded = torch.Generator().manual_seed(len(drawn))
        return torch.randn(x.shape, generator=seeded).to(x)

    class Reader(TorchFunctionMode):
        """Marks what is made of tokens by its kind, and draws the tables."""

        def __torch_function__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None):
            given = args, kwargs or {}
            kind = max((getattr(x, "kind", 0) for x in jax.tree.leaves(given)), default=0)
            if kind == INTEGERS and called in lookups:
                given = jax.tree.map(draw, given)
            result = called(*given[0], **given[1])
            results = result if isinstance(result, tuple | list) else [result]
            for x in results if kind else ():
                if isinstance(x, torch.Tensor):
                    x.kind = NUMBERS if x.is_floating_point() else kind
            return result

    def run(tokens: Any, **named: Any) -> Any:
        drawn.clear()
        tokens = tokens.clone()
        tokens.kind = INTEGERS
        with Reader():
            return function(tokens, **named)

    return run
