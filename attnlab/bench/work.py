"""The operations of a case, of one device: those of its program, or those that it needs.

A kernel's operations are not seen. Exact attention with one is counted by what its mask leaves: of
the dense program without a mask, whose operations are a·n + b·n² (of tokens, and of pairs of them),
a·n + b·(visible pairs) products and exponentials, which any way to compute it needs. LSH is counted
without its kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from attnlab.bench import mechanisms, programs
from attnlab.bench.case import Case, Operations
from attnlab.bench.operations import count

__all__ = ["attention", "counted"]

Traceable = Callable[[Case], tuple[Any, ...]]  # of a case: its function and shapes of arguments
NEEDED = "what the mask leaves of exact attention, not its kernel"
WITHOUT_KERNEL = "LSH attention without its kernel"


def attention(case: Case) -> tuple[Any, ...]:
    """The function of a case whose program is attention, and the shapes of its arguments."""
    return programs.traceable(case, mechanisms.build(case))


def counted(case: Case, traceable: Traceable = attention) -> tuple[Operations, str]:
    """The operations of one device, and what they are of where it is not the program itself."""
    what = ""
    try:
        operations = count(*traceable(case))
    except NotImplementedError:
        if case.hashes:
            what, operations = WITHOUT_KERNEL, count(*traceable(_by(case, "sorted")))
        else:
            what, operations = NEEDED, _needed(case, traceable)
    return operations.scaled(1 / case.devices), what


def _needed(case: Case, traceable: Traceable) -> Operations:
    n = case.length
    dense = dataclasses.replace(_by(case, "dense"), causal=False)
    if case.attention.kind == "window":
        dense = dataclasses.replace(dense, mechanism="exact")
    single = count(*traceable(dense))
    double = count(*traceable(dataclasses.replace(dense, length=2 * n)))
    of_pairs = _sum(double, single.scaled(-2)).scaled(1 / 2)  # b·n²
    needed = _sum(single, of_pairs.scaled(visible_pairs(case) / n**2 - 1))
    # A kernel need not divide each weight, and may compute tanh in another way.
    return Operations(needed.products, {"exp": needed.functions["exp"]})


def visible_pairs(case: Case) -> int:
    """The pairs of a query and a key that the mask leaves; of a model, those of its causal part."""
    n, causal = case.length, case.causal and case.program != "bert"
    left = right = n - 1
    if case.attention.kind == "window":
        left = right = min(case.attention.number or 0, n - 1)
    right = 0 if causal else right
    outside = sum(k * (k - 1) // 2 for k in (n - left, n - right))
    return n * n - outside


def _by(case: Case, way: str) -> Case:
    return dataclasses.replace(case, implementation=way)


def _sum(first: Operations, second: Operations) -> Operations:
    names = first.functions.keys() | second.functions.keys()
    functions = {x: first.functions.get(x, 0) + second.functions.get(x, 0) for x in sorted(names)}
    return Operations(first.products + second.products, functions)
