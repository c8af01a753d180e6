"""Arguments of `lsh_attention`: its options, the demands on all, and what a mask means to it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnlab import masks
from attnlab.core.axes import HeadLayout, lead_with_ones
from attnlab.core.checks import (
    as_array,
    as_count,
    as_int,
    as_number,
    as_size,
    is_floating,
    require,
    require_choice,
    require_dropout,
    require_instance,
)
from attnlab.core.shapes import broadcasts_to
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.lsh.order import Geometry, bucket_limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """How a query is compared with a key, c·⟨q, k / |k|⟩, and how often a pair counts.

    Attributes:
      union: whether a pair that several rounds show counts once; False: as often as it is shown.
      logit_scale: factor c of the logits; None = 1/√H.
      key_norm: norm that keys are divided by: "rms", "l2", or None.
      look_back: number of chunks visited before a query's own.
    """

    union: bool = True
    logit_scale: float | None = 1.0
    key_norm: str | None = "rms"
    look_back: int = 1

    def __post_init__(self):
        if self.logit_scale is not None:
            object.__setattr__(self, "logit_scale", as_number("logit_scale", self.logit_scale))
        require_choice("union", self.union, (True, False))
        require_choice("key_norm", self.key_norm, ("rms", "l2", None))
        as_count("look_back counts chunks,", self.look_back)

    def scale(self, width: int) -> float:
        """c of the logits, for heads of this width."""
        return 1 / math.sqrt(width) if self.logit_scale is None else self.logit_scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSHOptions(KeyOptions):
    """LSH attention that is strictly causal; what was published is in `published`.

    A query sees the `window` nearest slots of its own bucket, so that nothing in the future changes
    what it sees. In published implementations the borders of chunks say what it sees, and these
    depend on all tokens.

    Attributes:
      union: whether a pair that several rounds show counts once: the result is then exactly the
        softmax over the union of the rounds' keys, and more rounds only bring it nearer to full
        attention. False: a pair counts as often as it is shown (a multiset), which sharpens the
        weights of near keys by an amount that depends on the number of rounds. The paper defines
        the union, its code computes the multiset. Error against full attention, 2048 noisy tokens
        in 40 clusters: the union's is 3–4 % less at 4 rounds, 20–25 % less at 16.
      logit_scale: factor c in c·⟨q_i, k_j⟩; None = 1/√H. Keys have unit norm, so the norm of a
        query is already a learned temperature.
      key_norm: norm that keys are divided by: "rms" divides by √(mean(x²) + 1e-6)·√H, "l2" by |x|,
        None by nothing. A key whose squares leave the range of float32 becomes zero: |x| above
        1e19, with "l2" also below 1e-19.
      look_back: number of chunks visited before a query's own, and after it if not causal; ≥ 1.
      window: number of slots seen on each side (before only, if causal); None = the most that can
        be, look_back · chunk_size.
    """

    window: int | None = None

    def __post_init__(self):
        super().__post_init__()
        require(self.look_back >= 1, f"look_back must be at least 1; got {self.look_back}")
        require(
            self.window is None or (as_int(self.window) is not None and self.window >= 1),
            f"window counts slots, an int ≥ 1; got window={self.window!r}",
        )

    def geometry(self, chunk_size: int, causal: bool, length: int) -> Geometry:
        """The neighborhood of a slot among `length` tokens."""
        reach = self.look_back * chunk_size
        window = reach if self.window is None else self.window
        require(
            window <= reach,
            f"window must be at most look_back · chunk_size = {reach}; got {window}"
            " (raise chunk_size or look_back)",
        )
        look_back, look_ahead = self.look_back, 0 if causal else self.look_back
        if length <= chunk_size:
            # The window says who sees whom, and one chunk without neighbors holds everyone.
            chunk_size, look_back, look_ahead = length, 0, 0
        return Geometry(chunk_size, look_back, look_ahead, min(window, length), causal, self.union)


STRICT = LSHOptions()


class Visibility(NamedTuple):
    """A mask as LSH attention uses it.

    Attributes:
      causal: whether only earlier keys are seen.
      q_offset: position of the first query, [B], if causal.
      valid: booleans [B, S], False for padding, which nobody sees; None = there is no padding.
      q_valid: booleans [B, T], False for queries that see nothing; None = all see.
      segments: segment ids of the queries, [B, T], or None.
      kv_segments: segment ids of the keys, [B, S], or None.
      pairs: mask in layout, [B|1, N|1, …], which is asked of each pair that the hash shows; None =
        the rest says all.
      broken: a boolean scalar, True where a value that is known only at run time is refused.
    """

    causal: bool
    q_offset: jax.Array
    valid: jax.Array | None
    q_valid: jax.Array | None
    segments: jax.Array | None
    kv_segments: jax.Array | None
    pairs: masks.Mask | None
    broken: jax.Array


def require_implementation(implementation: Any) -> None:
    """`implementation` must be one of the names, or a kernel's options."""
    if not isinstance(implementation, Pallas):
        names = (None, "sorted", "dense", "pallas")
        require_choice("implementation", implementation, names)


def require_options(options: Any, published: bool = False) -> None:
    """`options` must be a value of `LSHOptions`, or `Published` ones where these may be too."""
    kind: type = LSHOptions
    wanted = "of the class LSHOptions"
    remedy = " (Published options are for lsh_attention and routes.LSH, in a parallel forward)"
    if published:
        kind, wanted = KeyOptions, "of the class LSHOptions or Published"
        remedy = " (presets such as TRAX are in attnlab.ops.lsh)"
    require_instance("options", options, isinstance(options, kind), wanted, remedy)


def check_knobs(
    chunk_size: Any,
    options: Any,
    rows_at_once: Any,
    implementation: Any,
    dropout_rate: Any,
    dropout_key: Any,
    *,
    published: bool = False,
) -> float:
    """Checks the arguments that are no arrays; `published` as for `require_options`.

    Returns:
      The dropout rate as a float.
    """
    require_options(options, published)
    require_implementation(implementation)
    dropout_rate = require_dropout(dropout_rate, dropout_key)
    as_size("chunk_size", chunk_size)
    if rows_at_once is not None:
        as_size("rows_at_once", rows_at_once)
    return dropout_rate


def as_operands(
    qk: Any, v: Any, buckets: Any, newest: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The arrays qk [*B, L, N, H], v [*B, L, K, D], buckets [*B, R, L, N], of one length, batch.

    Where `newest`, buckets are [*B, R, T, N], of any T ≤ L.
    """
    qk, v = as_floating(qk=qk, v=v)
    require(
        qk.shape[:-2] == v.shape[:-2] and qk.shape[-2] % v.shape[-2] == 0,
        "qk and v must have equal batch axes and length, and qk's heads be a multiple of v's;"
        f" got qk {qk.shape} and v {v.shape}",
    )
    return qk, v, _as_ids("buckets", buckets, "qk", qk, newest)


def as_cross_operands(
    q: Any, k: Any, v: Any, q_buckets: Any, k_buckets: Any
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """The arrays q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D] and the buckets of q and k."""
    q, k, v = as_floating(q=q, k=k, v=v)
    require(
        k.shape[:-1] == v.shape[:-1],
        f"k and v must have equal batch axes, length and heads; got k {k.shape} and v {v.shape}",
    )
    require(
        q.shape[:-3] == k.shape[:-3]
        and q.shape[-1] == k.shape[-1]
        and q.shape[-2] % k.shape[-2] == 0,
        "q and k must have equal batch axes and width, and q's heads be a multiple of k's;"
        f" got q {q.shape} and k {k.shape}",
    )
    q_buckets = _as_ids("q_buckets", q_buckets, "q", q)
    k_buckets = _as_ids("k_buckets", k_buckets, "k", k)
    require(
        q_buckets.shape[-3] == k_buckets.shape[-3],
        "q_buckets and k_buckets must have the same rounds, hashed with the same rotations;"
        f" got {q_buckets.shape[-3]} and {k_buckets.shape[-3]}",
    )
    return q, k, v, q_buckets, k_buckets


def as_floating(**given: Any) -> list[jax.Array]:
    """What is given as arrays of heads, whose dtype is one to compute with.

    Raises:
      ValueError: they are other than that.
    """
    arrays = {name: as_array(name, x) for name, x in given.items()}
    for name, x in arrays.items():
        require(
            x.ndim >= 3 and 0 not in x.shape[-3:],
            f"{name} must be [*batch, length, heads, width], no axis 0; got {x.shape}"
            " (add an axis of 1 for a single head)",
        )
    dtypes = [x.dtype for x in arrays.values()]
    require(
        len(set(dtypes)) == 1 and is_floating(dtypes[0]),
        f"{' and '.join(arrays)} must have one floating dtype; got"
        f" {' and '.join(map(str, dtypes))} (cast them to one of 16 bits or more)",
    )
    return list(arrays.values())


def _as_ids(name: str, buckets: Any, of: str, x: jax.Array, newest: bool = False) -> jax.Array:
    """The buckets [*B, R, L, N] of x [*B, L, N, H], or of its newest tokens, of any number."""
    buckets = as_array(name, buckets)
    require(
        jnp.issubdtype(buckets.dtype, jnp.integer),
        f"{name} must be integers; got {buckets.dtype} (make them with hash_buckets)",
    )
    *batch, length, heads, _ = x.shape
    rounds, tokens = buckets.shape[-3:-1] if buckets.ndim == x.ndim else (0, 0)
    lengths = f"1…{length}" if newest else length
    require(
        rounds > 0
        and (1 <= tokens <= length if newest else tokens == length)
        and buckets.shape == (*batch, rounds, tokens, heads),
        f"{name} must be [*batch, rounds, length, heads] = {(*batch, '≥1', lengths, heads)} for"
        f" {of} {x.shape}; got {buckets.shape}",
    )
    return buckets


def check_buckets(
    buckets: jax.Array, limit: int, *, why: str, remedy: str
) -> tuple[jax.Array, jax.Array]:
    """Bucket ids, integers of any type, must be in [0, limit), limit < 2³¹.

    Returns:
      The ids as int32, and a boolean scalar, True where some are out of range.

    Raises:
      ValueError: where the ids are known, and not under jit.
    """
    if jnp.iinfo(buckets.dtype).bits < 32:
        buckets = buckets.astype(jnp.int32)  # a narrow type may not hold the limit itself
    wrong = jnp.any((buckets < 0) | (buckets >= limit))
    if not isinstance(wrong, jax.core.Tracer) and bool(wrong):
        raise ValueError(
            f"bucket ids must be in [0, {limit}) {why}; got {int(jnp.min(buckets))} …"
            f" {int(jnp.max(buckets))} ({remedy})"
        )
    return buckets.astype(jnp.int32), wrong


def check_sortable(buckets: jax.Array, length: int) -> tuple[jax.Array, jax.Array]:
    """`check_buckets` with what a sort key holds beside a place below `length`."""
    return check_buckets(
        buckets,
        bucket_limit(length),
        why=f"to be sorted by (bucket, position) in 32 bits at length {length}",
        remedy="use fewer buckets",
    )


def nan_where(broken: jax.Array, x: jax.Array) -> jax.Array:
    """All of x NaN, its gradient too, if `broken`: what is wrong under jit cannot raise."""
    return x * jnp.where(broken, jnp.nan, 1).astype(x.dtype)


def factor_of(shape: tuple[int, ...], broken: jax.Array, *visible: jax.Array | None) -> jax.Array:
    """Factors of the contexts, float32 [B, T]: 0 where not `visible`, all NaN if `broken`."""
    factor = jnp.ones(shape, jnp.float32)
    for where in visible:
        if where is not None:
            factor = jnp.where(where, factor, 0)
    return nan_where(broken, factor)


def read_mask(
    mask: Any, shape: tuple[int, ...], causal: bool, *, num_queries: int | None = None
) -> Visibility:
    """Takes a mask apart: into what sorting knows, and the rest, which is asked of pairs.

    Args:
      mask: mask over S keys.
      shape: shape [*B, S, N] of batch axes, keys and query heads; B is the product of *B.
      causal: whether the caller asks for causal attention; a mask with `Causal` gives it too.
      num_queries: number of queries, T, if the queries are not the keys; then segments may have ids
        for both and `Causal` an offset.

    Raises:
      ValueError: `causal` is no bool, or the mask is not of these shapes.
      NotImplementedError: for a causal mask with an offset where queries are keys.
    """
    require_choice("causal", causal, (True, False))
    *batch, length, heads = shape
    batch_shape = tuple(batch)
    valid = q_valid = segments = kv_segments = None
    broken, cross = jnp.zeros((), bool), num_queries is not None
    q_offset = None
    queries = length if num_queries is None else num_queries
    asked: list[masks.Mask] = []

    def rows(x, name, size):
        x = jnp.asarray(x)
        require(
            x.shape[-1] == size and broadcasts_to(x.shape[:-1], tuple(batch_shape)),
            f"{name} must be [*batch, {size}] with batch {batch_shape}; got {x.shape}",
        )
        # [*B|1, size] to [B, size]
        return jnp.broadcast_to(x, (*batch_shape, size)).reshape(-1, size)

    def below(lengths, name, size):
        lengths = jnp.asarray(lengths)[..., None]
        return rows(lead_with_ones(jnp.arange(size), lengths.ndim) < lengths, name, size)

    mask = masks.as_mask(mask)
    for part in () if mask is None else mask.parts():
        if part.band is not None and part.band.right == 0:
            causal = True
            if cross:
                offset = jnp.asarray(part.band.q_offset, jnp.int32)
                offset = jnp.broadcast_to(offset, batch_shape).reshape(-1)
                q_offset = offset if q_offset is None else jnp.minimum(q_offset, offset)
            else:
                broken |= _nonzero_offset(type(part).__name__, part.band.q_offset)
            # Sorting knows that it is causal; how far back it goes is asked of the pairs.
            if part.band.left is not None:
                asked.append(part)
        elif part.lengths is not None:
            kv_lengths, q_lengths = part.lengths
            valid = _both(valid, below(kv_lengths, "Padding.kv_lengths", length))
            if q_lengths is not None:
                q_valid = _both(q_valid, below(q_lengths, "Padding.q_lengths", queries))
        elif (ids := part.segment_ids) and segments is None and (ids.kv_ids is None or cross):
            segments = rows(ids.q_ids, "Segments.q_ids", queries)
            kv_ids = ids.q_ids if ids.kv_ids is None else ids.kv_ids
            kv_segments = rows(kv_ids, "Segments.kv_ids", length)
        elif (keys := part.keys) is not None:
            keys = jnp.repeat(keys, length, axis=-1) if keys.shape[-1] == 1 else keys
            valid = _both(valid, rows(keys, "an explicit mask", length))
        else:
            asked.append(part)
    if q_offset is None:
        q_offset = jnp.zeros(math.prod(batch_shape), jnp.int32)
    pairs = masks.combine(*asked)
    if pairs is not None:
        pairs = pairs.in_layout(HeadLayout(batch_shape, heads, 1, queries, length))
    return Visibility(causal, q_offset, valid, q_valid, segments, kv_segments, pairs, broken)


def _both(x, y):
    return y if x is None else x & y


def _nonzero_offset(mask: str, q_offset: Any) -> jax.Array:
    if not isinstance(q_offset, jax.core.Tracer) and np.any(np.asarray(q_offset) != 0):
        raise NotImplementedError(
            f"LSH attention sees all of its keys as queries; got {mask} with q_offset={q_offset} "
            "(leave it out, or take lsh_cross_attention)"
        )
    return jnp.any(jnp.asarray(q_offset) != 0)
