"""LSH attention on given buckets as a problem to check; and `hash_buckets` against float64.

A bucket is the axis that a vector is nearest to. Where two axes are equally near up to rounding,
either bucket is right. The device sums H products in float32, in any order: an error of at most
(H + 1)·2⁻²⁴·Σ|x_h r_h| in each projection. A bucket is wrong if another axis is nearer than its own
by more than the errors of the two projections together.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import oracle_lsh
from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.hashing import Rotations, hash_buckets, make_rotations
from experiments.device_check.cases import AUTO, Scenario
from experiments.device_check.problem import (
    Arrays,
    Problem,
    Truth,
    over,
    precision,
    representable,
    row_sizes,
)

_HASHED = (2, 1024, 4, 64)  # [B, L, N, H]
_ROUNDS, _BUCKETS = 8, 512  # two factors: 16 · 32


def problem(scenario: Scenario) -> Problem:
    """The problem on qk, v and buckets, with as many heads as the scenario has for keys."""
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
    """The oracle's answer, where query i may see key j if `counts` [B, N, L, L] is above 0."""
    qk, heads = arrays["qk"], counts.shape[1]
    group = heads // arrays["v"].shape[2]
    v = np.repeat(arrays["v"], group, axis=2)

    def every_head(function: Callable[..., Sequence[np.ndarray]]) -> Arrays:
        """Applies (dcontext, qk, v, counts, valid) -> (context, d_qk, d_v) to each head."""
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
    """A function (implementation, arrays) -> the context that the library computes."""

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
    """The arrays, redrawn from position `at` on, with values a hundred times as large."""
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
    """A number of buckets such that each holds a few tokens, and chunks end within buckets."""
    return max(2, length // 12)


def hash_program(dtype: str) -> jax.stages.Lowered:
    """`hash_buckets`, lowered for the shapes of `hash_arguments`."""
    return jax.jit(hash_buckets).lower(*hash_arguments(dtype))


def hash_arguments(dtype: str) -> tuple[jax.Array, Rotations]:
    """Normally distributed tokens, and rotations for them."""
    x = representable(np.random.default_rng(0).normal(size=_HASHED))
    rotations = make_rotations(
        jax.random.key(0),
        num_heads=_HASHED[2],
        head_dim=_HASHED[3],
        num_hashes=_ROUNDS,
        num_buckets=_BUCKETS,
    )
    return jnp.asarray(x, dtype), rotations


def judge_buckets(buckets: Any, x: Any, rotations: Rotations) -> float:
    """How much nearer another axis is than the bucket's own, over rounding; at most 1 passes.

    Args:
      buckets: buckets to be judged, [B, R, L, N].
      x: tokens, [B, L, N, H].
      rotations: rotations of the N heads.
    """
    left, x = np.asarray(buckets), np.asarray(x, np.float64)
    worst = 0.0
    for factor in rotations.factors:
        r = np.asarray(factor, np.float64)  # [N, R, B_f/2, H]
        half = r.shape[2]
        left, digit = np.divmod(left, 2 * half)
        y = np.einsum("nrah,blnh->brlna", r, x)
        rounding = (x.shape[-1] + 1) * 2.0**-24 * np.einsum("nrah,blnh->brlna", abs(r), abs(x))
        nearest = np.abs(y).argmax(-1)[..., None]
        axis = (digit % half)[..., None]
        own = np.take_along_axis(y, axis, -1) * np.where(digit < half, 1, -1)[..., None]
        short = np.take_along_axis(np.abs(y), nearest, -1) - own
        allowed = sum(np.take_along_axis(rounding, i, -1) for i in (nearest, axis))
        worst = max(worst, over(short, allowed))
    return worst if not left.any() else over(1.0, 0.0)  # a number that is no bucket
