"""`check` and `audit`: all contracts of an attention, of a model; and what an attention costs."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from attnlab.runs.errors import Invalid, one_line
from attnlab.runs.markdown import markdown_table
from attnlab.runs.units import duration, human
from attnlab.testing.comparing import Inapplicable
from attnlab.testing.contracts import CONTRACTS, context_and_grads, dcontext_of
from attnlab.testing.model import LONGEST, Model, as_model
from attnlab.testing.model_contracts import MODEL_CONTRACTS
from attnlab.testing.subject import Subject, subject_of

__all__ = ["Cost", "Outcome", "Report", "audit", "check", "cost", "outcome"]

LENGTHS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Outcome:
    """What came of a contract.

    Attributes:
      mechanism: name of the attention or model.
      contract: name of the contract, of `CONTRACTS` or `MODEL_CONTRACTS`.
      promise: promise in a sentence.
      verdict: "yes", "no", or "-": it does not apply.
      words: counterexample of a "no", reason of a "-"; of a "yes" of a model what counts as equal.
      line: Python that shows it again; "" of others than a "no".
    """

    mechanism: str
    contract: str
    promise: str
    verdict: str
    words: str = ""
    line: str = ""


@dataclass(frozen=True)
class Report:
    """The outcomes of mechanisms.

    Attributes:
      outcomes: outcome of each contract.
    """

    outcomes: tuple[Outcome, ...]

    @property
    def broken(self) -> list[Outcome]:
        """What is not kept."""
        return [x for x in self.outcomes if x.verdict == "no"]

    def require(self) -> None:
        """Raises AssertionError, with lines for each contract that is not kept."""
        lines = [
            f"{x.mechanism} breaks {x.contract}: {x.words}\n    {x.promise}\n    {x.line}"
            for x in self.broken
        ]
        if lines:
            raise AssertionError("\n".join(lines))

    def __str__(self) -> str:
        """A table: a line for each contract, a column for each mechanism."""
        columns = dict.fromkeys(x.mechanism for x in self.outcomes)
        verdicts = {(x.contract, x.mechanism): x.verdict for x in self.outcomes}
        promises = {x.contract: x.promise for x in self.outcomes}
        rows = [
            [name, *(verdicts.get((name, column), "") for column in columns), promise]
            for name, promise in promises.items()
        ]
        files = (name.rpartition("/")[2] for name in columns)
        return markdown_table(["contract", *files, ""], rows)


@dataclass(frozen=True)
class Cost:
    """What the gradient of one example with one head, 7 wide, takes, compiled for this machine.

    Attributes:
      bytes_of: size of what is between inputs and outputs, by the number of tokens.
      seconds: time of a call at the least number of tokens.
    """

    bytes_of: dict[int, int]
    seconds: float

    @property
    def power(self) -> float:
        """The p of n^p by which the memory grows from the second longest to the longest."""
        *_, (n, half), (m, whole) = self.bytes_of.items()
        return math.log(max(1, whole) / max(1, half), m / n)

    def __str__(self) -> str:
        first, *_, last = self.bytes_of
        sizes = " and ".join(f"{human(self.bytes_of[n])} at {n:,} tokens" for n in (first, last))
        growth = f"~n^{self.power:.1f} over the last doubling"
        return f"{sizes}, {growth}; {duration(self.seconds)} at {first:,}"


def check(mechanism: Any, *, seed: int = 0, contracts: Collection[str] = (*CONTRACTS,)) -> Report:
    """Holds an attention to contracts; to all minutes on a laptop's CPU, nearly all compiling.

    Args:
      mechanism: score, mask, bias, route, function or module, a class that makes one, or its name,
        "mine.py:Decay".
      seed: seed of the arrays.
      contracts: names of the contracts.

    Raises:
      Invalid: it is no mechanism, or there is no contract of a name; one line.
    """
    _require_contracts(contracts, CONTRACTS)
    return Report(tuple(outcome(mechanism, name, seed) for name in contracts))


def audit(
    logits: Any,
    *,
    vocab_size: int | None = None,
    length: int = LONGEST,
    decode: Any = None,
    initial: Any = None,
    seed: int = 0,
    contracts: Collection[str] = (*MODEL_CONTRACTS,),
) -> Report:
    """Holds a model of language, whatever it is written in, to the contracts of models.

    Args:
      logits: function of tokens [B, T] that returns logits [B, T, V], in JAX, torch or NumPy, or
        its name, "model.py:logits"; its keywords as `as_model` has them.
      vocab_size: number of tokens, V; None = `logits` is an attention of any framework, a function
        of q, k and v, which is the only layer of a model (`hosting.host`).
      length: largest number of tokens that it is given.
      decode: function (cache, tokens [B, n]) that returns logits [B, n, V] and the next cache.
      initial: function (batch, length) that returns an empty cache for so many tokens.
      seed: seed of the tokens.
      contracts: names of the contracts, of `MODEL_CONTRACTS`.

    Raises:
      Invalid: it takes no tokens, or returns no finite logits of that shape; one line.

    Example:
      >>> import numpy as np
      >>> audit(lambda tokens: np.cumsum(np.eye(5)[tokens], 1), vocab_size=5).broken
      []
    """
    model = as_model(logits, vocab_size=vocab_size, length=length, decode=decode, initial=initial)
    _require_contracts(contracts, MODEL_CONTRACTS)
    return Report(tuple(outcome(model, name, seed) for name in contracts))


def _require_contracts(names: Collection[str], known: Mapping[str, Any]) -> None:
    if unknown := ", ".join(sorted(set(names) - known.keys())):
        raise Invalid(f"no contract {unknown}; there are {', '.join(known)}")


def outcome(mechanism: Any, contract: str, seed: int = 0) -> Outcome:
    """Holds an attention, or a `Model`, to one contract; whatever it raises breaks it."""
    model = mechanism if isinstance(mechanism, Model) else None
    if model is not None:
        subject: Any = model
        held = MODEL_CONTRACTS[contract]
        call = f"testing.MODEL_CONTRACTS[{contract!r}](testing.{model.code}, {seed})"
    else:
        subject = subject_of(mechanism)
        held = CONTRACTS[contract]
        shown = repr(mechanism) if isinstance(mechanism, str) else subject.name
        call = f"testing.{contract}({shown}, {seed})"
    promise = (held.__doc__ or "").partition("\n\n")[0]
    made = functools.partial(Outcome, subject.name, contract, " ".join(promise.split()))
    line = f"from attnlab import testing; print({call})"
    try:
        if model is not None and model.is_random and contract != "determinism":
            raise Inapplicable("it is random between two calls: see determinism")
        broken = held(subject, seed)
    except Inapplicable as reason:
        return made("-", str(reason))
    except Invalid as error:
        return made("no", str(error), line)
    except Exception as error:  # whatever a user's code raises is its answer
        return made("no", one_line(error), line)
    if broken is None:
        return made("yes", "" if model is None else model.equality)
    return made("no", broken.words, broken.line or line)


def cost(mechanism: Any) -> Cost:
    """Compiles its gradient at several lengths, and runs the shortest three times.

    The bytes are the compiler's temporaries, without what fusions on a CPU, or a callback, keep.
    """
    subject = subject_of(mechanism)
    bytes_of = {}
    for n in LENGTHS:
        compiled = context_and_grads(subject).lower(*_operands(subject, n)).compile()
        bytes_of[n] = int(compiled.memory_analysis().temp_size_in_bytes)
    operands, times = _operands(subject, LENGTHS[0]), []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(context_and_grads(subject)(*operands))
        times.append(time.perf_counter() - start)
    return Cost(bytes_of, min(times))


def _operands(subject: Subject, n: int) -> tuple[Any, ...]:
    sizes = subject.sizes(batch=1, queries=n, keys=n, num_kv_heads=1, group_size=1)
    mask = subject.mask_of(causal=subject.causal, sizes=sizes)
    return subject.arrays(sizes=sizes), mask, dcontext_of(subject, sizes=sizes)
