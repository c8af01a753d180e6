"""Exact attention as a problem to check: arrays, the truth in float64, programs in any dtype."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from attnlab.bench import oracle
from attnlab.bench.oracle_scores import SCORES, ScoreCase
from attnlab.ops.attention import attention
from attnlab.ops.local import window_attention
from experiments.device_check.cases import AUTO, Scenario
from experiments.device_check.problem import (
    Arrays,
    Problem,
    Truth,
    precision,
    representable,
    row_sizes,
)

PLAIN = "dense"
_CASES = {case.name: case for case in SCORES}


def problem(mechanism: str, scenario: Scenario) -> Problem:
    """The problem on q, k, v and the score's parameters; the plain version is "dense"."""
    score = _CASES["scaled_dot" if mechanism == "window" else mechanism]
    rng = np.random.default_rng(0)
    q, k, v = score.qkv(rng, scenario.sizes)
    arrays = {"q": q, "k": k, "v": v} | _named(score.parameters(rng, scenario.sizes))
    dcontext = rng.normal(size=(*q.shape[:3], v.shape[-1]))
    seen = scenario.picture()
    apply = _window(scenario) if mechanism == "window" else attention_of(score, scenario)

    def truth(arrays: Arrays, dcontext: np.ndarray) -> Truth:
        return true(score, arrays, dcontext, seen)

    return Problem(
        arrays={name: representable(x) for name, x in arrays.items()},
        dcontext=representable(dcontext),
        truth=truth,
        apply=apply,
        plain=lambda arrays: apply(PLAIN, arrays),
        plain_is=PLAIN,
        other_future=other_future if scenario.causal else None,
    )


def true(score: ScoreCase, arrays: Arrays, dcontext: np.ndarray, seen: np.ndarray) -> Truth:
    """The oracle's answer, where query i may see key j if `seen` [B, 1, T, S] is True."""
    q, k, v = (arrays[x] for x in "qkv")
    found = oracle.attention(score.equation, q, k, v, _parameters(arrays), mask=seen)

    def named(context: np.ndarray, grads: oracle.Gradients) -> Arrays:
        of = {"q": grads.q, "k": grads.k, "v": grads.v} | _named(grads.parameters)
        return {"context": context} | {f"d_{name}": x for name, x in of.items()}

    def sizes() -> Arrays:
        rng = np.random.default_rng(3)
        return row_sizes([named(*found.noise(dcontext, rng)) for _ in range(2)])

    return Truth(named(found.context, found.pull_back(dcontext)), sizes)


def other_future(arrays: Arrays, at: int) -> Arrays:
    """The arrays, with keys and values from position `at` on redrawn, a hundred times as large."""
    rng = np.random.default_rng(1)
    changed = {name: np.array(arrays[name]) for name in "kv"}
    for x in changed.values():
        x[:, at:] = representable(rng.normal(size=x[:, at:].shape) * 100)
    return arrays | changed


def attention_of(score: ScoreCase, scenario: Scenario) -> Callable[..., jax.Array]:
    """A function (implementation, arrays) -> the context that the library computes."""

    def apply(implementation: str, arrays: Arrays) -> jax.Array:
        return attention(
            score.build(*_parameters(arrays)),
            *(arrays[x] for x in "qkv"),
            mask=scenario.mask(),
            implementation=None if implementation == AUTO else implementation,
            precision=precision(arrays["q"]),
        )

    return apply


def _window(scenario: Scenario) -> Callable[..., jax.Array]:
    """`window_attention` under the rest of the scenario's mask."""
    rest = dataclasses.replace(scenario, window=None)

    def apply(implementation: str, arrays: Arrays) -> jax.Array:
        return window_attention(
            *(arrays[x] for x in "qkv"),
            window=scenario.window or (0, 0),
            mask=rest.mask(),
            implementation=None if implementation == AUTO else implementation,
            precision=precision(arrays["q"]),
        )

    return apply


def _named(parameters: Any) -> Arrays:
    return {f"parameter_{i}": x for i, x in enumerate(parameters)}


def _parameters(arrays: Arrays) -> tuple[Any, ...]:
    return tuple(x for name, x in sorted(arrays.items()) if name.startswith("parameter"))
