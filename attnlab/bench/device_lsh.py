"""LSH attention as a problem to check, its buckets given."""

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import oracle_lsh
from attnlab.bench.device_cases import AUTO, Scenario
from attnlab.bench.device_problem import Arrays, Problem, representable
from attnlab.ops.lsh import lsh_attention

_ROUNDS, _TOKENS_PER_BUCKET = 2, 12


def problem(scenario: Scenario) -> Problem:
    """qk, v and buckets; the values have as many heads as the scenario has of keys."""
    sizes, rng = scenario.sizes, np.random.default_rng(0)
    rows = sizes.batch, sizes.keys
    buckets = _buckets(rng, (sizes.batch, _ROUNDS, sizes.keys, sizes.num_heads), sizes.keys)
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
    group = sizes.group_size

    def truth(arrays: Arrays, dcontext: np.ndarray) -> Arrays:
        qk, v = arrays["qk"], np.repeat(arrays["v"], group, axis=2)
        found = {"context": np.zeros(dcontext.shape), "d_qk": np.zeros(qk.shape)}
        dv = np.zeros(v.shape)
        for b, n in np.ndindex(counts.shape[:2]):
            row = qk[b, :, n], v[b, :, n], counts[b, n]
            options = {"valid": None if valid is None else valid[b]}
            found["context"][b, :, n] = oracle_lsh.attend(*row, **options)
            dqk_dv = oracle_lsh.gradients(dcontext[b, :, n], *row, **options)
            found["d_qk"][b, :, n], dv[b, :, n] = dqk_dv
        return found | {"d_v": dv.reshape(*v.shape[:2], -1, group, v.shape[3]).sum(3)}

    def apply(implementation: str, arrays: Arrays) -> jax.Array:
        return lsh_attention(
            arrays["qk"],
            arrays["v"],
            arrays["buckets"],
            chunk_size=scenario.chunk_size,
            causal=False,
            mask=scenario.mask(),
            implementation=None if implementation == AUTO else implementation,
        )

    def other_future(arrays: Arrays, at: int) -> Arrays:
        rng = np.random.default_rng(1)
        changed = {name: np.array(x) for name, x in arrays.items()}
        for name, scale in (("qk", 1), ("v", 100)):
            x = changed[name]
            x[:, at:] = representable(rng.normal(size=x[:, at:].shape) * scale)
        late = changed["buckets"][:, :, at:]
        changed["buckets"][:, :, at:] = _buckets(rng, late.shape, sizes.keys)
        return changed

    return Problem(
        arrays=arrays,
        dcontext=representable(rng.normal(size=(*rows, sizes.num_heads, sizes.value_width))),
        truth=truth,
        apply=apply,
        plain=lambda arrays: plain(arrays["qk"], arrays["v"], counts > 0, valid),
        plain_is=None,
        other_future=other_future if scenario.causal else None,
    )


def plain(qk: jax.Array, v: jax.Array, seen: np.ndarray, valid: np.ndarray | None) -> jax.Array:
    """softmax_j(⟨qk_i, k_j⟩) v_j over the pairs `seen` [B, N, L, L], k = qk / |qk| by "rms"."""
    length, width = qk.shape[1], qk.shape[3]
    square = jnp.sum(jnp.square(qk.astype(jnp.float32)), -1, keepdims=True)
    keys = (qk / jnp.sqrt(square + 1e-6 * width)).astype(qk.dtype)
    sums = {"preferred_element_type": jnp.float32}
    logits = jnp.einsum("bqnh,bknh->bnqk", qk, keys, **sums)
    alone = ~seen.any(-1, keepdims=True)
    shown = seen | (alone & np.eye(length, dtype=bool))
    weights = jax.nn.softmax(jnp.where(shown, logits, -1e30)).astype(v.dtype)
    v = jnp.repeat(v, qk.shape[2] // v.shape[2], axis=2)
    context = jnp.einsum("bnqk,bknd->bqnd", weights, v, **sums).astype(v.dtype)
    return context if valid is None else jnp.where(valid[:, :, None, None], context, 0)


def _buckets(rng: np.random.Generator, shape: tuple[int, ...], length: int) -> np.ndarray:
    """Ids of buckets that hold `_TOKENS_PER_BUCKET` tokens on average."""
    return rng.integers(0, max(2, length // _TOKENS_PER_BUCKET), shape, dtype=np.int32)
