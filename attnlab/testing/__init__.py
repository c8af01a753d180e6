"""Is a mechanism right? The contracts that all of attnlab's are held to, for yours.

    def test_mine():
        attnlab.testing.check(Decay(rate=0.9)).require()

`launch/local check mine.py:Decay` shows the same as a table.
"""

from attnlab.testing.checking import Cost, Outcome, Report, check, cost, outcome
from attnlab.testing.contracts import (
    CONTRACTS,
    Broken,
    Inapplicable,
    batch,
    bfloat16,
    causal,
    constants,
    decoding,
    definition,
    deterministic,
    devices,
    eager,
    empty_rows,
    examples,
    gradient,
    grouped_heads,
    hidden_keys,
    lengths,
    second_derivative,
    shapes,
    transforms,
)
from attnlab.testing.subject import Sizes, Subject, subject_of

__all__ = [
    "CONTRACTS",
    "Broken",
    "Cost",
    "Inapplicable",
    "Outcome",
    "Report",
    "Sizes",
    "Subject",
    "batch",
    "bfloat16",
    "causal",
    "check",
    "constants",
    "cost",
    "decoding",
    "definition",
    "deterministic",
    "devices",
    "eager",
    "empty_rows",
    "examples",
    "gradient",
    "grouped_heads",
    "hidden_keys",
    "lengths",
    "outcome",
    "second_derivative",
    "shapes",
    "subject_of",
    "transforms",
]
