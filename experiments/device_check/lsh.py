"""LSH attention as a problem to check, its buckets given."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import oracle_lsh
from attnlab.ops.lsh.attention import lsh_attention
from experiments.device_check.cases import AUTO, Scenario
from experiments.device_check.problem import (
    Arrays,
    Problem,
    Truth,
    precision,
    representable,
    row_sizes,
)


def problem(scenario: Scenario) -> Problem:
    """qk, v and buckets; the values have as many heads as the scenario has of keys."""
    sizes, rng = scenario.sizes, np.random.default_rng(0)
    rows = sizes.batch, sizes.keys
    hashed = sizes.batch, scenario.num_hashes, sizes.keys, sizes.num_heads
    buckets = rng.integers(0, num_buckets(sizes.keys), hashed, dtype=np.int32)
    arrays = {
        "qk": representable(rng.normal(size=(*rows, sizes.num_heads, sizes.width))),
        "v": representable(rng.normal(size=(*rows, sizes.num_kv_heads, sizes.value_width))),
        "buckets": buckets,
    }
    valid = np.arange(sizes.keys) < scenario.kv_lengths[:, None] if scenario.padded else None
    counts = oracle_lsh.all_counts(
        buckets,
        chunk_size=scenario.chunk_size,
        causal=scenario.causal,
        valid=valid,
        segments=scenario.segments if scenario.segmented else None,
    )

    def truth(arrays: Arrays, dcontext: np.ndarray) -> Truth:
        return true(arrays, dcontext, counts, valid)

    def redrawn(arrays: Arrays, at: int) -> Arrays:
        return other_future(arrays, at, num_buckets(sizes.keys))

    return Problem(
        arrays=arrays,
        dcontext=representable(rng.normal(size=(*rows, sizes.num_heads, sizes.value_width))),
        truth=truth,
        apply=attention_of(scenario),
        plain=lambda arrays: plain(arrays["qk"], arrays["v"], counts > 0, valid),
        plain_is=None,
        other_future=redrawn if scenario.causal else None,
    )


def true(
    arrays: Arrays, dcontext: np.ndarray, counts: np.ndarray, valid: np.ndarray | None
) -> Truth:
    """The oracle's answer where `counts` [B, N, L, L] are above 0."""
    qk, heads = arrays["qk"], counts.shape[1]
    group = heads // arrays["v"].shape[2]
    v = np.repeat(arrays["v"], group, axis=2)

    def every_head(function: Callable[..., Sequence[np.ndarray]]) -> Arrays:
        """(dcontext, qk, v, counts, valid) -> context, d_qk, d_v of one head, for all of them."""
        found = [np.zeros(x.shape) for x in (dcontext, qk, v)]
        for b, n in np.ndindex(counts.shape[:2]):
            rows = [x[b, :, n] for x in (dcontext, qk, v)]
            of_head = function(*rows, counts[b, n], None if valid is None else valid[b])
            for whole, one in zip(found, of_head, strict=True):
                whole[b, :, n] = one
        dv = found[2].reshape(*v.shape[:2], -1, group, v.shape[3]).sum(3)
        return {"context": found[0], "d_qk": found[1], "d_v": dv}

    def exactly(dcontext: Any, qk: Any, v: Any, counts: Any, valid: Any) -> Any:
        context = oracle_lsh.attend(qk, v, counts, valid=valid)
        return context, *oracle_lsh.gradients(dcontext, qk, v, counts, valid=valid)

    def sizes() -> Arrays:
        rng = np.random.default_rng(3)

        def noise(dcontext: Any, qk: Any, v: Any, counts: Any, valid: Any) -> Any:
            return oracle_lsh.noise(dcontext, qk, v, counts, rng, valid=valid)

        return row_sizes([every_head(noise) for _ in range(2)])

    return Truth(every_head(exactly), sizes)


def attention_of(scenario: Scenario) -> Callable[[str, Arrays], jax.Array]:
    """(implementation, arrays) -> the library's context."""

    def apply(implementation: str, arrays: Arrays) -> jax.Array:
        return lsh_attention(
            arrays["qk"],
            arrays["v"],
            arrays["buckets"],
            chunk_size=scenario.chunk_size,
            causal=False,
            mask=scenario.mask(),
            implementation=None if implementation == AUTO else implementation,
            precision=precision(arrays["qk"]),
        )

    return apply


def other_future(arrays: Arrays, at: int, buckets: int) -> Arrays:
    """All from position `at` on redrawn, the values a hundred times as large."""
    rng = np.random.default_rng(1)
    changed = {name: np.array(x) for name, x in arrays.items()}
    for name, scale in (("qk", 1), ("v", 100)):
        x = changed[name]
        x[:, at:] = representable(rng.normal(size=x[:, at:].shape) * scale)
    late = changed["buckets"][:, :, at:]
    late[...] = rng.integers(0, buckets, late.shape)
    return changed


def plain(qk: jax.Array, v: jax.Array, seen: np.ndarray, valid: np.ndarray | None) -> jax.Array:
    """softmax_j(⟨qk_i, k_j⟩) v_j over the pairs `seen` [B, N, L, L], k = qk / |qk| by "rms"."""
    length, width = qk.shape[1], qk.shape[3]
    square = jnp.sum(jnp.square(qk.astype(jnp.float32)), -1, keepdims=True)
    keys = (qk / jnp.sqrt(square + 1e-6 * width)).astype(qk.dtype)
    sums = {"preferred_element_type": jnp.float32, "precision": precision(qk)}
    logits = jnp.einsum("bqnh,bknh->bnqk", qk, keys, **sums)
    alone = ~seen.any(-1, keepdims=True)
    shown = seen | (alone & np.eye(length, dtype=bool))
    weights = jax.nn.softmax(jnp.where(shown, logits, -1e30)).astype(v.dtype)
    v = jnp.repeat(v, qk.shape[2] // v.shape[2], axis=2)
    context = jnp.einsum("bnqk,bknd->bqnd", weights, v, **sums).astype(v.dtype)
    return context if valid is None else jnp.where(valid[:, :, None, None], context, 0)


def num_buckets(length: int) -> int:
    """So many that each holds a few tokens, and chunks end within buckets."""
    return max(2, length // 12)
