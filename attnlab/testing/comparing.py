"""A contract's answer, and when two numbers are equal: of attentions and of models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True)
class Broken:
    """The smallest counterexample that was found.

    Attributes:
      words: place where it differs, and the two numbers.
      line: Python that shows it; "" = that which calls the contract.
    """

    words: str
    line: str = ""

    def __str__(self) -> str:
        return self.words


class Inapplicable(Exception):
    """The contract says nothing of this subject; the message says why."""


Found = Iterator[Broken | None]  # of comparisons, one after the other


def listing(contracts: dict[str, Any], make_subject: Callable[[Any], Any]) -> Callable[..., Any]:
    """A decorator that lists a contract, and makes it the first of its comparisons that is broken.

    Args:
      contracts: contracts by their names.
      make_subject: function that makes a subject of what the contract is given.
    """

    def list_contract(function: Callable[[Any, int], Found]) -> Callable[..., Broken | None]:
        @functools.wraps(function)
        def held(given: Any, seed: int = 0) -> Broken | None:
            return next((x for x in function(make_subject(given), seed) if x is not None), None)

        del held.__wrapped__  # else its signature would be the function's
        contracts[function.__name__] = held
        return held

    return list_contract


def find_wrong(wrong: Any, what: str, x: Any, y: Any, where: str = "") -> Broken | None:
    """The first place where something is wrong, with the numbers that are there and should be."""
    wrong = np.asarray(wrong)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.unravel_index(np.argmax(wrong), wrong.shape))
    got = np.broadcast_to(np.asarray(x, np.float64), wrong.shape)[at]
    wanted = np.broadcast_to(np.asarray(y, np.float64), wrong.shape)[at]
    place = ", ".join(map(str, at))
    return Broken(f"{what}[{place}] is {got:.6g}, not {wanted:.6g}{where}")


def compare_bits(what: str, got: Any, wanted: Any, where: str = "") -> Broken | None:
    """Equal to the bit, NaN to NaN."""
    for path, (x, y) in _pairs(what, got, wanted):
        if broken := find_wrong(~((x == y) | (np.isnan(x) & np.isnan(y))), path, x, y, where):
            return broken
    return None


def compare_numbers(
    what: str, got: Any, wanted: Any, where: str = "", *, tolerance: float = 1e-5
) -> Broken | None:
    """Within this share of each number, or of the largest; 1e-5: float32 in another order."""
    for path, (x, y) in _pairs(what, got, wanted):
        atol = tolerance * float(np.max(np.abs(y), initial=1.0))
        close = np.isclose(x, y, rtol=tolerance, atol=atol, equal_nan=True)
        if broken := find_wrong(~close, path, x, y, where):
            return broken
    return None


def _pairs(what: str, got: Any, wanted: Any) -> Any:
    flat, _ = jax.tree.flatten_with_path(got)
    for (path, x), y in zip(flat, jax.tree.leaves(wanted), strict=True):
        name = what + jax.tree_util.keystr(path)
        dtype = np.float64 if np.asarray(x).dtype.itemsize == 8 else np.float32
        yield name, (np.asarray(x, dtype), np.asarray(y, dtype))
