"""LSH attention in float64 NumPy, token by token, written from the Reformer paper.

`visible_counts` says in how many rounds each pair meets; the rest is a dense softmax. Like `oracle`
it shares no code with the library.
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
    buckets = np.asarray(buckets)
    rounds, length = buckets.shape
    valid = np.ones(length, bool) if valid is None else np.asarray(valid, bool)
    segments = np.zeros(length, int) if segments is None else np.asarray(segments)
    counts = np.zeros((length, length), int)
    chunks_a_round = math.ceil(length / chunk_size)
    ring = []  # the chunks of all rounds, in order
    for r in range(rounds):
        order = sorted(range(length), key=lambda t: (not valid[t], buckets[r, t], segments[t], t))
        slots = order + [None] * (chunks_a_round * chunk_size - length)
        ring += [slots[start : start + chunk_size] for start in range(0, len(slots), chunk_size)]

    at = np.arange(length)

    def allowed(r, i):
        """[L]: the keys that query i may be shown in round r."""
        shown = (at != i) & valid & valid[i] & (segments == segments[i])
        if causal:
            shown &= at < i
        return shown & (buckets[r] == buckets[r, i]) if same_bucket else shown

    for r in range(rounds):
        if strict:
            reach = look_back * chunk_size if window is None else window
            for i in range(length):
                near = np.flatnonzero(allowed(r, i))
                before, after = near[near < i][-reach:], near[near > i][:reach]
                counts[i, before] += 1
                counts[i, after] += 1
            continue
        for c in range(chunks_a_round):
            for offset in range(-look_back, (look_ahead or 0) + 1):
                if not wrap and not 0 <= c + offset < chunks_a_round:
                    continue
                here = ring[r * chunks_a_round + c]
                there = ring[(r * chunks_a_round + c + offset) % len(ring)]
                for i in (i for i in here if i is not None):
                    shown = allowed(r, i)
                    for j in there:
                        if j is not None and shown[j]:
                            counts[i, j] += 1
    return counts


def unit_keys(qk, key_norm):
    """k = qk / √(Σ qk² + ε), with ε = 10⁻⁶·H for "rms" and 0 for "l2"."""
    qk = np.asarray(qk, np.float64)
    floor = 1e-6 * qk.shape[-1] if key_norm == "rms" else 0.0
    return qk / np.sqrt((qk**2).sum(-1, keepdims=True) + floor)


def weights(qk, counts, *, union=True, logit_scale=1.0, key_norm="rms", valid=None):
    """One head: qk [L, H], counts [L, L] to the weights [L, L].

    A token that no round shows another one sees itself; padding sees nothing.
    """
    qk = np.asarray(qk, np.float64)
    scale = 1 / math.sqrt(qk.shape[-1]) if logit_scale is None else logit_scale
    logits = scale * qk @ unit_keys(qk, key_norm).T
    times = np.minimum(counts, 1) if union else counts
    found = np.zeros_like(logits)
    for i in range(len(qk)):
        if valid is not None and not valid[i]:
            continue
        if not times[i].any():
            found[i, i] = 1
            continue
        seen = times[i] > 0
        terms = times[i, seen] * np.exp(logits[i, seen] - logits[i, seen].max())
        found[i, seen] = terms / terms.sum()
    return found


def attend(qk, v, counts, **options):
    """One head: qk [L, H], v [L, D], counts [L, L] to [L, D]."""
    return weights(qk, counts, **options) @ np.asarray(v, np.float64)


def all_counts(buckets, *, valid=None, segments=None, **where):
    """Buckets [B, R, L, N] to the counts [B, N, L, L] of every example and head."""

    def of(b, n):
        rows = {"valid": valid, "segments": segments}
        rows = {name: None if x is None else x[b] for name, x in rows.items()}
        return visible_counts(buckets[b, :, :, n], **rows, **where)

    return np.array([[of(b, n) for n in range(buckets.shape[3])] for b in range(buckets.shape[0])])


def lsh_attention(qk, v, buckets, *, valid=None, segments=None, options=None, **where):
    """qk [B, L, N, H], v [B, L, N, D], buckets [B, R, L, N] to [B, L, N, D]."""
    options = dict(options or {})
    what = {k: options.pop(k) for k in ("union", "logit_scale", "key_norm") if k in options}
    counts = all_counts(buckets, valid=valid, segments=segments, **options, **where)
    out = np.empty(v.shape)
    for b, n in np.ndindex(counts.shape[:2]):
        row_valid = None if valid is None else valid[b]
        out[b, :, n] = attend(qk[b, :, n], v[b, :, n], counts[b, n], valid=row_valid, **what)
    return out
