"""What the daily loop, `launch/local test`, runs of a long list of cases; `--all` runs all."""

from collections.abc import Iterable
from typing import Any

import pytest


def daily(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Cases for `pytest.mark.parametrize`, all marked slow but those kept.

    A tuple is a row, of one value for each of several arguments.
    """
    cases = list(cases)
    unknown = [case for case in kept if case not in cases]
    if unknown:
        raise ValueError(f"a case that is kept must be one of the cases; got {unknown[0]!r}")
    return [
        case
        if case in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
