"""LSH attention with queries and keys of their own, pair by pair and as one dense softmax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def place_of(t, q_valid, valid):
    """The key that stands where query t does when both sequences are stretched to one length.

    Both are what counts of a sequence: of several in a row, of one segment.
    """
    keys = np.flatnonzero(valid)
    rank = max(0, int(q_valid[: t + 1].sum()) - 1)
    return keys[min(rank * len(keys) // max(1, q_valid.sum()), len(keys) - 1)]


def counts(q_buckets, k_buckets, *, reach, causal, valid, q_valid, segments, q_segments, offset=0):
    """[R, T], [R, S] to [T, S]: in how many rounds query i is shown key j; token by token."""
    times = np.zeros((q_buckets.shape[1], k_buckets.shape[1]), int)
    for r, i in np.ndindex(q_buckets.shape):
        if not q_valid[i]:
            continue
        near = [
            j
            for j in range(k_buckets.shape[1])
            if valid[j] and k_buckets[r, j] == q_buckets[r, i] and segments[j] == q_segments[i]
        ]
        if not near:
            continue
        mine, its = q_segments == q_segments[i], segments == q_segments[i]
        here = i + offset if causal else place_of(i, q_valid & mine, valid & its)
        before, after = [j for j in near if j <= here], [j for j in near if j > here]
        times[i, before[-reach:] + ([] if causal else after[:reach])] += 1
    return times


def all_counts(q_buckets, k_buckets, given, **where):
    """Of all examples and query heads, [B, N, T, S]; `given` by example."""
    group = q_buckets.shape[3] // k_buckets.shape[3]
    return np.array(
        [
            [
                counts(
                    q_buckets[b, :, :, n],
                    k_buckets[b, :, :, n // group],
                    **{name: x[b] for name, x in given.items()},
                    **where,
                )
                for n in range(q_buckets.shape[3])
            ]
            for b in range(len(q_buckets))
        ]
    )


@functools.partial(jax.jit, static_argnames=("norm",))
def dense(q, k, v, times, norm="rms", scale=1.0, keep=1.0):
    """One dense softmax, pairs weighted by `times` [B, N, T, S]."""
    group = q.shape[2] // k.shape[2]
    if norm == "rms":
        k = k / jnp.sqrt(jnp.mean(k * k, -1, keepdims=True) + 1e-6) / jnp.sqrt(k.shape[-1] * 1.0)
    k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
    logits = scale * jnp.einsum("bqnh,bknh->bnqk", q, k)
    logits = jnp.where(times > 0, logits + jnp.log(jnp.maximum(times, 1)), -1e30)
    weights = jnp.where(times.any(-1)[..., None], jax.nn.softmax(logits), 0) * keep
    return jnp.einsum("bnqk,bknd->bqnd", weights, v)


def everything(batch, num_queries, num_keys):
    """No mask, for `all_counts`."""
    return {
        "valid": np.ones((batch, num_keys), bool),
        "q_valid": np.ones((batch, num_queries), bool),
        "segments": np.zeros((batch, num_keys), int),
        "q_segments": np.zeros((batch, num_queries), int),
    }
