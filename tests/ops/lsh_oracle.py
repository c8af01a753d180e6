"""LSH attention in float64 NumPy, token by token, written from the Reformer paper.

`visible_counts` says in how many rounds each pair meets; the rest is a dense softmax.
"""

import math

import numpy as np


def visible_counts(
    buckets,
    *,
    chunk_size,
    causal,
    strict=True,
    same_bucket=True,
    wrap=False,
    window=None,
    look_back=1,
    look_ahead=None,
    valid=None,
    segments=None,
):
    """buckets [R, L] to integers [L, L]: how often query i is shown key j ≠ i."""
    rounds, length = buckets.shape
    valid = np.ones(length, bool) if valid is None else np.asarray(valid)
    segments = np.zeros(length, int) if segments is None else np.asarray(segments)
    counts = np.zeros((length, length), int)
    chunks_a_round = math.ceil(length / chunk_size)
    ring = []  # the chunks of all rounds, in order
    for r in range(rounds):
        order = sorted(range(length), key=lambda t: (not valid[t], buckets[r, t], segments[t], t))
        slots = order + [None] * (chunks_a_round * chunk_size - length)
        ring += [slots[start : start + chunk_size] for start in range(0, len(slots), chunk_size)]

    def allowed(r, i, j):
        return (
            j is not None
            and i != j
            and valid[i]
            and valid[j]
            and segments[i] == segments[j]
            and (j < i or not causal)
            and (buckets[r, i] == buckets[r, j] or not same_bucket)
        )

    for r in range(rounds):
        if strict:
            reach = look_back * chunk_size if window is None else window
            for i in range(length):
                near = [j for j in range(length) if allowed(r, i, j)]
                before = [j for j in near if j < i][-reach:]
                after = [j for j in near if j > i][:reach]
                counts[i, before + after] += 1
            continue
        for c in range(chunks_a_round):
            for offset in range(-look_back, (look_ahead or 0) + 1):
                if not wrap and not 0 <= c + offset < chunks_a_round:
                    continue
                here = ring[r * chunks_a_round + c]
                there = ring[(r * chunks_a_round + c + offset) % len(ring)]
                for i in here:
                    for j in there:
                        if i is not None and allowed(r, i, j):
                            counts[i, j] += 1
    return counts


def unit_keys(qk, key_norm):
    qk = np.asarray(qk, np.float64)
    if key_norm == "l2":
        return qk / np.linalg.norm(qk, axis=-1, keepdims=True)
    return qk / np.sqrt((qk**2).mean(-1, keepdims=True) + 1e-6) / math.sqrt(qk.shape[-1])


def attend(qk, v, counts, *, union=True, logit_scale=1.0, key_norm="rms", valid=None):
    """One head: qk [L, H], v [L, D], counts [L, L] to [L, D]."""
    qk, v = np.asarray(qk, np.float64), np.asarray(v, np.float64)
    scale = 1 / math.sqrt(qk.shape[-1]) if logit_scale is None else logit_scale
    logits = scale * qk @ unit_keys(qk, key_norm).T
    times = np.minimum(counts, 1) if union else counts
    out = np.empty_like(v)
    for i in range(len(qk)):
        if valid is not None and not valid[i]:
            out[i] = 0
        elif not times[i].any():
            out[i] = v[i]
        else:
            seen = times[i] > 0
            weights = times[i, seen] * np.exp(logits[i, seen] - logits[i, seen].max())
            out[i] = weights @ v[seen] / weights.sum()
    return out


def lsh_attention(qk, v, buckets, *, valid=None, segments=None, options=None, **where):
    """qk [B, L, N, H], v [B, L, N, D], buckets [B, R, L, N] to [B, L, N, D]."""
    options = dict(options or {})
    what = {k: options.pop(k) for k in ("union", "logit_scale", "key_norm") if k in options}
    out = np.empty(v.shape)
    for b in range(qk.shape[0]):
        row_valid = None if valid is None else valid[b]
        row_segments = None if segments is None else segments[b]
        for n in range(qk.shape[2]):
            counts = visible_counts(
                buckets[b, :, :, n], valid=row_valid, segments=row_segments, **options, **where
            )
            out[b, :, n] = attend(qk[b, :, n], v[b, :, n], counts, valid=row_valid, **what)
    return out
