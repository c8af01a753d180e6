"""`check`: all contracts of one mechanism, and how its memory grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from attnlab.runs.errors import Invalid, one_line
from attnlab.runs.markdown import markdown_table
from attnlab.testing.contracts import CONTRACTS, Inapplicable, context_and_grads, dcontext_of
from attnlab.testing.subject import subject_of

__all__ = ["Outcome", "Report", "check", "growth"]

LENGTHS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Outcome:
    """What came of a contract.

    Attributes:
      contract: name of the contract, a function of `attnlab.testing`.
      promise: what it promises, in a sentence.
      verdict: "yes", "no", or "-": it does not apply.
      words: counterexample of a "no", reason of a "-".
      line: Python that shows it again; "" of a "yes".
    """

    contract: str
    promise: str
    verdict: str
    words: str = ""
    line: str = ""


@dataclass(frozen=True)
class Report:
    """The outcomes of a mechanism.

    Attributes:
      name: name of the mechanism.
      outcomes: outcome of each contract.
      expected: names of contracts that it is known not to keep.
    """

    name: str
    outcomes: tuple[Outcome, ...]
    expected: frozenset[str] = frozenset()

    @property
    def broken(self) -> list[Outcome]:
        """What is not kept, and was not expected."""
        return [x for x in self.outcomes if x.verdict == "no" and x.contract not in self.expected]

    def require(self) -> None:
        """Raises AssertionError, a line for each contract that is not kept."""
        lines = [f"{self.name}: {x.promise} No: {x.words}\n    {x.line}" for x in self.broken]
        if lines:
            raise AssertionError("\n".join(lines))

    def __str__(self) -> str:
        rows = [[x.contract, x.verdict, x.words or x.promise] for x in self.outcomes]
        return markdown_table(["contract", "", self.name], rows)


def check(
    mechanism: Any,
    *,
    seed: int = 0,
    expected: Collection[str] = (),
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> Report:
    """Holds a mechanism to all contracts.

    Args:
      mechanism: score, mask, bias, route, function or module, a class that makes one, or its name,
        "mine.py:Decay".
      seed: seed of the arrays.
      expected: names of contracts that it is known not to keep.
      told: function that is given each outcome as it comes.

    Raises:
      Invalid: it is no mechanism, or an expected contract is not one of `CONTRACTS`; one line.
    """
    if unknown := set(expected) - CONTRACTS.keys():
        raise Invalid(f"no contract {', '.join(sorted(unknown))}; there are {', '.join(CONTRACTS)}")
    subject = subject_of(mechanism)
    shown = repr(mechanism) if isinstance(mechanism, str) else subject.name
    outcomes = []
    for name, contract in CONTRACTS.items():
        promise = " ".join((contract.__doc__ or "").split("\n\n")[0].split())
        line = f"from attnlab import testing; print(testing.{name}({shown}, seed={seed}))"
        try:
            broken = contract(subject, seed)
            outcome = Outcome(name, promise, "yes")
            if broken is not None:
                outcome = Outcome(name, promise, "no", str(broken), line)
        except Inapplicable as reason:
            outcome = Outcome(name, promise, "-", str(reason))
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises is its answer
            outcome = Outcome(name, promise, "no", one_line(error), line)
        outcomes.append(outcome)
        told(outcome)
    return Report(subject.name, tuple(outcomes), frozenset(expected))


def growth(mechanism: Any) -> tuple[dict[int, int], float]:
    """Bytes between inputs and outputs, forward and backward, by length, and the power of n.

    The compiler's, of one example and head; the power is that between the first and the last.
    """
    subject = subject_of(mechanism)
    needed = {}
    for n in LENGTHS:
        sizes = subject.sizes(batch=1, queries=n, keys=n, num_kv_heads=1)
        operands = (
            subject.arrays(sizes=sizes),
            subject.mask_of(causal=subject.causal, sizes=sizes),
            dcontext_of(subject, sizes=sizes),
        )
        compiled = context_and_grads(subject).lower(*operands).compile()
        needed[n] = int(compiled.memory_analysis().temp_size_in_bytes)
    grown = max(1, needed[LENGTHS[-1]]) / max(1, needed[LENGTHS[0]])
    return needed, math.log(grown, LENGTHS[-1] / LENGTHS[0])
