"""The operations of a case, of one device: those of its program, or those that it needs.

A kernel's operations are not seen. Exact attention with one is counted by what its mask leaves: of
the dense program without a mask, whose operations are a·n + b·n² (of tokens, and of pairs of them),
a·n + b·(visible pairs) products and exponentials, which any way to compute it needs. LSH is counted
without its kernel. A model whose layers have several attentions is then the mean of models that
have one of them each.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from attnlab.bench import mechanisms, programs
from attnlab.bench.case import Case, Operations, Result
from attnlab.bench.operations import count
from attnlab.mechanisms.attentions import split_way

__all__ = ["attention", "count_case", "with_operations"]

Traceable = Callable[[Case], tuple[Any, ...]]  # of a case: its function and shapes of arguments
NEEDED = "what the mask leaves of exact attention, not its kernel"
WITHOUT_KERNEL = "LSH attention without its kernel"


def attention(case: Case) -> tuple[Any, ...]:
    """The function of a case whose program is attention, and the shapes of its arguments."""
    return programs.traceable(case, mechanisms.build(case))


def with_operations(result: Result, traceable: Traceable = attention) -> Result:
    """The row with the operations of its case; as it is where `count` cannot see all of them."""
    try:
        operations, what = count_case(result.case, traceable)
    except NotImplementedError:
        return result
    return dataclasses.replace(result, operations=operations, operations_of=what)


def count_case(case: Case, traceable: Traceable = attention) -> tuple[Operations, str]:
    """The operations of one device, and what they are of where it is not the program itself.

    Raises:
      NotImplementedError: a loop of unknown length, or a call whose operations are not seen.
    """
    operations, what = _count_case(case, traceable)
    return operations.scaled(1 / case.devices), what


def _count_case(case: Case, traceable: Traceable) -> tuple[Operations, str]:
    try:
        return count(*traceable(case)), ""
    except NotImplementedError:
        if len(layers := _uniform(case)) > 1:
            parts = [(share, *_count_case(one, traceable)) for one, share in layers.items()]
            whole = Operations(0.0, {})
            for share, operations, _ in parts:
                whole = _sum(whole, operations.scaled(share))
            return whole, "; ".join(dict.fromkeys(what for *_, what in parts if what))
        if case.hashes:
            return count(*traceable(_implemented_by(case, "sorted"))), WITHOUT_KERNEL
        return _count_needed(case, traceable), NEEDED


def _uniform(case: Case) -> dict[Case, float]:
    """The models all of whose layers have one attention of the case's, and its share of them."""
    model, number = case.model, case.num_layers or 1
    layers = itertools.islice(itertools.cycle(model.attentions), number)
    models: dict[Case, float] = {}
    for attention, times in collections.Counter(layers).items():
        name, way = split_way(str(dataclasses.replace(model, pattern=str(attention))))
        one = dataclasses.replace(case, mechanism=name, implementation=way or case.implementation)
        models[one] = times / number
    return models


def _count_needed(case: Case, traceable: Traceable) -> Operations:
    n = case.length
    dense = dataclasses.replace(_implemented_by(case, "dense"), causal=False)
    if case.attention.kind == "window":
        exact = dataclasses.replace(case.model, pattern="exact")
        dense = dataclasses.replace(dense, mechanism=str(exact))
    single = count(*traceable(dense))
    double = count(*traceable(dataclasses.replace(dense, length=2 * n)))
    of_pairs = _sum(double, single.scaled(-2)).scaled(1 / 2)  # b·n²
    needed = _sum(single, of_pairs.scaled(visible_pairs(case) / n**2 - 1))
    # A kernel need not divide each weight, and may compute tanh in another way.
    return Operations(needed.products, {"exp": needed.functions["exp"]})


def visible_pairs(case: Case) -> float:
    """The pairs of a query and a key that the mask leaves.

    A translation has as many attentions in the encoder, of both directions, as in the decoder, and
    as many from there to the encoder, to all of it: theirs is the mean.
    """
    if case.program != "translate":
        return _visible_pairs(case, case.causal and case.program != "bert")
    encoder, decoder = _visible_pairs(case, causal=False), _visible_pairs(case, causal=True)
    return (encoder + decoder + case.length**2) / 3


def _visible_pairs(case: Case, causal: bool) -> int:
    n = case.length
    left = right = n - 1
    if case.attention.kind == "window":
        left = right = min(case.attention.number or 0, n - 1)
    right = 0 if causal else right
    outside = sum(k * (k - 1) // 2 for k in (n - left, n - right))
    return n * n - outside


def _implemented_by(case: Case, way: str) -> Case:
    return dataclasses.replace(case, implementation=way)


def _sum(first: Operations, second: Operations) -> Operations:
    names = first.functions.keys() | second.functions.keys()
    functions = {x: first.functions.get(x, 0) + second.functions.get(x, 0) for x in sorted(names)}
    return Operations(first.products + second.products, functions)
