"""Is an attention right, does a model see the future? Contracts to hold yours to.

    def test_my_attention():
        attnlab.testing.check(Decay(rate=0.9)).require()

    def test_my_model():  # tokens [B, T] -> logits [B, T, V], in JAX, torch, Keras or NumPy
        attnlab.testing.audit(logits, vocab_size=256).require()

`launch/local check mine.py:Decay` shows the same as a table.
"""

from attnlab.testing.checking import Cost, Outcome, Report, audit, check, cost, outcome
from attnlab.testing.comparing import Broken, Inapplicable
from attnlab.testing.contracts import (
    CONTRACTS,
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
from attnlab.testing.hosting import needs_host
from attnlab.testing.model import Model, as_model
from attnlab.testing.model_contracts import MODEL_CONTRACTS
from attnlab.testing.subject import Sizes, Subject, subject_of

__all__ = [
    "CONTRACTS",
    "MODEL_CONTRACTS",
    "Broken",
    "Cost",
    "Inapplicable",
    "Model",
    "Outcome",
    "Report",
    "Sizes",
    "Subject",
    "as_model",
    "audit",
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
    "needs_host",
    "outcome",
    "second_derivative",
    "shapes",
    "subject_of",
    "transforms",
]
