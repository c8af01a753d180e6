"""The timed arrays as a problem to check: the device computes all heads, the oracle three.

The first head of the first example, the last head of the last example, and one between them are
compared with float64. Every other row of context and gradients is compared with the plain version:
for exact attention the platform's own flash attention, for LSH the implementation "sorted".
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import inputs, oracle_lsh
from attnlab.bench.case import Case
from attnlab.bench.oracle_scores import SCALED_DOT, Sizes
from attnlab.ops.lsh.hashing import default_num_buckets, hash_buckets, make_rotations
from experiments.device_check import exact, functions, lsh
from experiments.device_check.cases import Check, Scenario
from experiments.device_check.functions import FLASH
from experiments.device_check.problem import Arrays, Problem, Truth

_SORTED = "sorted"
_ROUNDS = 4  # of LSH as it is timed


def problem(check: Check) -> Problem:
    """The problem of a check: its batch and length, causal, with the widths of `Case`."""
    case = Case(check.mechanism, check.length, batch=check.batch, dtype=check.dtype)
    n, h = case.num_heads, case.head_dim
    sizes = Sizes(case.batch, case.length, case.length, n, 1, h, h)
    scenario = Scenario(
        check.scenario,
        sizes,
        causal=True,
        chunk_size=case.chunk_size,
        num_hashes=_ROUNDS,
    )
    streams = functions.arrays(case, inputs.read())
    host = {name: np.asarray(x.astype(jnp.float32)) for name, x in streams.items()}
    heads = sorted({(0, 0), (case.batch // 2, n // 2), (case.batch - 1, n - 1)})
    if check.mechanism == "lsh":
        return _lsh(scenario, host, _buckets(streams["query"], case), heads)
    return _exact(scenario, host, heads)


def _exact(scenario: Scenario, host: Arrays, heads: list[tuple[int, int]]) -> Problem:
    length = scenario.sizes.queries
    flash = functions.flash(jax.default_backend(), causal=True)
    attend = exact.attention_of(SCALED_DOT, scenario)
    seen = np.tri(length, dtype=bool)

    def apply(implementation: str, arrays: Arrays) -> jax.Array:
        if implementation == FLASH:
            return flash(*(arrays[x] for x in "qkv"))
        return attend(implementation, arrays)

    def of_head(arrays: Arrays, dcontext: np.ndarray, b: int, n: int) -> Truth:
        one = _one_head(arrays, b, n)
        return exact.true(SCALED_DOT, one, dcontext[b : b + 1, :, n : n + 1], seen)

    return Problem(
        arrays=dict(zip("qkv", (host[x] for x in inputs.STREAMS), strict=True)),
        dcontext=host["cotangent"],
        truth=lambda arrays, dcontext: _stacked(
            [of_head(arrays, dcontext, b, n) for b, n in heads]
        ),
        apply=apply,
        plain=lambda arrays: apply(FLASH, arrays),
        plain_is=FLASH,
        other_future=exact.other_future,
        part=lambda x: _part(x, heads),
    )


def _lsh(
    scenario: Scenario, host: Arrays, buckets: np.ndarray, heads: list[tuple[int, int]]
) -> Problem:
    apply = lsh.attention_of(scenario)
    counts = {
        (b, n): oracle_lsh.visible_counts(
            buckets[b, :, :, n], chunk_size=scenario.chunk_size, causal=True
        )
        for b, n in heads
    }

    def of_head(arrays: Arrays, dcontext: np.ndarray, b: int, n: int) -> Truth:
        one = _one_head(arrays, b, n)
        cotangent = dcontext[b : b + 1, :, n : n + 1]
        return lsh.true(one, cotangent, counts[b, n][None, None], None)

    return Problem(
        arrays={"qk": host["query"], "v": host["value"], "buckets": buckets},
        dcontext=host["cotangent"],
        truth=lambda arrays, dcontext: _stacked(
            [of_head(arrays, dcontext, b, n) for b, n in heads]
        ),
        apply=apply,
        plain=lambda arrays: apply(_SORTED, arrays),
        plain_is=_SORTED,
        other_future=lambda arrays, at: lsh.other_future(arrays, at, buckets.max() + 1),
        part=lambda x: _part(x, heads),
    )


def _buckets(qk: jax.Array, case: Case) -> np.ndarray:
    """The buckets [B, R, L, N] that the timed route gets by hashing."""
    rotations = make_rotations(
        jax.random.key(0),
        num_heads=case.num_heads,
        head_dim=case.head_dim,
        num_hashes=_ROUNDS,
        num_buckets=default_num_buckets(case.length, case.chunk_size),
    )
    return np.array(jax.jit(hash_buckets)(qk, rotations))


def _one_head(arrays: Arrays, b: int, n: int) -> Arrays:
    real = {name: x for name, x in arrays.items() if x.dtype.kind == "f"}
    return {name: np.float64(x[b : b + 1, :, n : n + 1]) for name, x in real.items()}


def _part(x: Any, heads: list[tuple[int, int]]) -> Any:
    """The chosen heads of [B, L, N, H], as [heads, L, 1, H]."""
    return np.stack([x[b, :, n : n + 1] for b, n in heads])


def _stacked(found: list[Truth]) -> Truth:
    """Joins the answers for single heads into one answer, in the shape of `_part`."""

    def stack(parts: list[Arrays]) -> Arrays:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return Truth(
        stack([one.values for one in found]), lambda: stack([one.sizes() for one in found])
    )
