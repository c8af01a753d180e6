"""Exact attention as a problem to check: arrays, the truth in float64, programs in any dtype."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from attnlab.bench import oracle
from attnlab.bench.device_cases import AUTO, Scenario
from attnlab.bench.device_problem import Arrays, Problem, representable
from attnlab.bench.device_scores import SCORES, ScoreCase
from attnlab.ops.attention import attention
from attnlab.ops.local import window_attention

PLAIN = "dense"
_CASES = {case.name: case for case in SCORES}


def problem(mechanism: str, scenario: Scenario) -> Problem:
    """q, k, v and the score's parameters; the plain version is the library's "dense"."""
    score = _CASES["scaled_dot" if mechanism == "window" else mechanism]
    rng = np.random.default_rng(0)
    q, k, v = score.qkv(rng, scenario.sizes)
    arrays = {"q": q, "k": k, "v": v} | _named(score.parameters(rng, scenario.sizes))
    dcontext = rng.normal(size=(*q.shape[:3], v.shape[-1]))
    seen = scenario.picture()
    apply = _window(scenario) if mechanism == "window" else _attention(score, scenario)

    def truth(arrays: Arrays, dcontext: np.ndarray) -> Arrays:
        q, k, v = (arrays[x] for x in "qkv")
        found = oracle.attention(score.equation, q, k, v, _parameters(arrays), mask=seen)
        grads = found.pull_back(dcontext)
        named = {"q": grads.q, "k": grads.k, "v": grads.v} | _named(grads.parameters)
        return {"context": found.context} | {f"d_{name}": x for name, x in named.items()}

    def other_future(arrays: Arrays, at: int) -> Arrays:
        rng = np.random.default_rng(1)
        moved = {name: np.array(arrays[name]) for name in "kv"}
        for x in moved.values():
            x[:, at:] = representable(rng.normal(size=x[:, at:].shape) * 100)
        return arrays | moved

    return Problem(
        arrays={name: representable(x) for name, x in arrays.items()},
        dcontext=representable(dcontext),
        truth=truth,
        apply=apply,
        plain=lambda arrays: apply(PLAIN, arrays),
        plain_is=PLAIN,
        other_future=other_future if scenario.causal else None,
    )


def _attention(score: ScoreCase, scenario: Scenario) -> Callable[..., jax.Array]:
    def apply(implementation: str, arrays: Arrays) -> jax.Array:
        return attention(
            score.build(*_parameters(arrays)),
            *(arrays[x] for x in "qkv"),
            mask=scenario.mask(),
            implementation=None if implementation == AUTO else implementation,
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
        )

    return apply


def _named(parameters: Any) -> Arrays:
    return {f"parameter_{i}": x for i, x in enumerate(parameters)}


def _parameters(arrays: Arrays) -> tuple[Any, ...]:
    return tuple(x for name, x in sorted(arrays.items()) if name.startswith("parameter"))
