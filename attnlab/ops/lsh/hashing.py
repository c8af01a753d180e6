"""Hashing for LSH attention: which tokens should meet.

The cross-polytope hash of Andoni et al. (2015), as the Reformer uses it: rotate at random, and let
the bucket be the signed axis that the rotated vector is nearest to,

    h(x) = argmax([xR; −xR]),    R: [H, B/2] Gaussian, one for every round.

One rotation to B buckets costs H·B a token, quadratic if B grows with the length. So B = Π B_f is
factorized: one small rotation a factor, whose ids are the digits of the bucket's. One bucket is no
hashing: every token is in bucket 0.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, SupportsIndex

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from attnlab.core.checks import (
    as_array,
    as_int,
    as_size,
    require,
    require_choice,
    require_instance,
    require_key,
)
from attnlab.core.shapes import broadcasts_to
from attnlab.devices.meshes import on_explicit_axes, spec_of
from attnlab.devices.split import by_device, current, divide_positions, heads_are_too_few
from attnlab.ops.lsh.inputs import as_floating
from attnlab.ops.lsh.order import bucket_limit, require_sortable
from attnlab.ops.lsh.running_mean import RunningMean

# Cross-polytopes of fewer axes hash worse; past this, what they save outweighs it.
_LARGEST_FACTOR = 64

# Relative: a difference smaller than that has no direction to hash.
_ROUNDING = 1e-5


@flax.struct.dataclass
class Rotations:
    """Random rotations, a pytree.

    Attributes:
      factors: rotations, one array [N, R, B_f/2, H] for each factor B_f of the number of buckets
        (for one bucket [N, R, 0, H]); N divides the number of heads that are hashed, and groups of
        heads share them.
    """

    factors: tuple[jax.Array, ...]

    @property
    def num_buckets(self) -> int:
        """B, the product of the factors."""
        return math.prod(max(1, 2 * factor.shape[2]) for factor in self.factors)

    @property
    def num_hashes(self) -> int:
        """R, the number of rounds."""
        return self.factors[0].shape[1]


def factorize(num_buckets: int) -> tuple[int, ...]:
    """Even factors whose product is `num_buckets`: none above 64 if possible, as equal as can be.

    >>> factorize(64), factorize(512), factorize(2**13)
    ((64,), (16, 32), (16, 16, 32))
    >>> factorize(254)  # 2 · 127 has no two even factors
    (254,)
    """
    best: tuple[int, ...] = (num_buckets,)
    while max(best) > _LARGEST_FACTOR and num_buckets % 2 ** (len(best) + 1) == 0:
        best = _split(num_buckets, len(best) + 1)
    return best


def as_num_buckets(num_buckets: SupportsIndex | Sequence[SupportsIndex]) -> int | tuple[int, ...]:
    """1, an even number or its even factors, in Python's own types.

    Raises:
      ValueError: another odd number, an odd factor, or one below 1.
    """
    given: Any = num_buckets
    single = np.ndim(given) == 0
    factors = [as_int(factor) for factor in ([given] if single else given)]
    if single and factors == [1]:
        return 1
    even = [x for x in factors if x is not None and x >= 2 and x % 2 == 0]
    require(len(factors) > 0, "num_buckets must have at least one factor; got none")
    require(
        len(even) == len(factors),
        "num_buckets must be 1, or it and each of its factors even and ≥ 2: x and −x hash to"
        f" opposite buckets; got {num_buckets} (round it up to a multiple of 2)",
    )
    return even[0] if single else tuple(even)


def default_num_buckets(length: int, chunk_size: int, queries: int = 0) -> int:
    """2·L/C as the paper has it, rounded up until it factorizes.

    Where that is more than a 32-bit sort key holds beside a position (with C = 64 from half a
    million tokens on), the largest power of 2 that fits: buckets then hold more tokens.

    Args:
      length: number of keys, L.
      chunk_size: number of slots attended together, C.
      queries: number of queries that are sorted with the keys, where they are not the keys.

    >>> default_num_buckets(16384, 64), default_num_buckets(16257, 64), default_num_buckets(5, 64)
    (512, 512, 2)
    >>> default_num_buckets(2**20, 64)
    2048
    """
    length, chunk_size = as_size("length", length), as_size("chunk_size", chunk_size)
    num_buckets = 2 * -(-length // chunk_size)
    while max(factorize(num_buckets)) > _LARGEST_FACTOR:
        num_buckets += 2
    limit = bucket_limit(length + chunk_size + queries)  # the last chunk is filled up
    return num_buckets if num_buckets <= limit else 2 ** max(0, limit.bit_length() - 1)


def _split(number: int, parts: int) -> tuple[int, ...]:
    """Ascending even factors of least sum."""
    if parts == 1:
        return (number,)
    smallest = range(2, int(number ** (1 / parts) + 1e-9) + 1, 2)
    splits = [
        (factor, *_split(number // factor, parts - 1))
        for factor in smallest
        if number % factor == 0 and number // factor % 2 ** (parts - 1) == 0
    ]
    return min(splits, key=sum)


def make_rotations(
    key: jax.Array,
    *,
    num_heads: int,
    head_dim: int,
    num_hashes: int,
    num_buckets: SupportsIndex | Sequence[SupportsIndex],
    shared: bool = False,
) -> Rotations:
    """Draws the rotations of `hash_buckets`.

    Args:
      key: a PRNG key. Each round has its own key made from it: with the same key, the first rounds
        are the same however many there are.
      num_heads: number of heads, N.
      head_dim: head width, H.
      num_hashes: number of rounds, R.
      num_buckets: number of buckets, B, even and factorized automatically, or a tuple of its even
        factors. The Reformer has `default_num_buckets`, reformer-pytorch half as many. 1 = all
        tokens in one bucket. (2, 2, …), b times, hashes to b bits, the signs of x at b random
        planes (Charikar 2002, §3): 2^b buckets.
      shared: whether all heads share one rotation.

    Returns:
      The rotations, float32.

    Raises:
      ValueError: an odd number of buckets above 1, or factor; a key that is no PRNG key.

    Source: Kitaev, Kaiser & Levskaya, "Reformer" (2020), section 2; Andoni et al., "Practical and
    Optimal LSH for Angular Distance" (2015), section 3.

    Example:
      >>> key = jax.random.key(0)
      >>> rotations = make_rotations(key, num_heads=2, head_dim=16, num_hashes=4, num_buckets=512)
      >>> [factor.shape for factor in rotations.factors], rotations.num_buckets
      ([(2, 4, 8, 16), (2, 4, 16, 16)], 512)
    """
    require_key("key", key)
    num_heads = as_size("num_heads", num_heads)
    head_dim = as_size("head_dim", head_dim)
    num_hashes = as_size("num_hashes", num_hashes)
    require_choice("shared", shared, (True, False))
    num_buckets = as_num_buckets(num_buckets)
    factors = factorize(num_buckets) if isinstance(num_buckets, int) else num_buckets
    rows = 1 if shared else num_heads

    def one_round(r):
        round_key = jax.random.fold_in(key, r)
        return jax.random.normal(round_key, (rows, sum(factors) // 2, head_dim), jnp.float32)

    drawn = jax.vmap(one_round, out_axes=1)(jnp.arange(num_hashes))  # [N, R, ΣB_f/2, H]
    ends = list(itertools.accumulate(factor // 2 for factor in factors))
    return Rotations(tuple(jnp.split(drawn, ends[:-1], axis=2)))


def _split_by_round(arguments):
    *batch, length, heads, _ = spec_of(arguments["x"])
    return PartitionSpec(*batch, None, length, heads)


@on_explicit_axes(_split_by_round, of="x")
def hash_buckets(
    x: jax.Array, rotations: Rotations, *, center: jax.Array | None = None
) -> jax.Array:
    """Hashes every token in every round: bucket = Σ_f h_f(x − center) · Π_{g<f} B_g.

    The hash sees angles from the origin, so h(a·x) = h(x) for a > 0. A component that all tokens
    share puts them in few buckets; real activations have a large one. `center` takes it away.

    Args:
      x: shared queries and keys [*B, L, N, H].
      rotations: random rotations from `make_rotations`.
      center: vector subtracted before hashing, of x's rank and broadcastable to it: a learned [..,
        N, H], or `running_center(x)`. It must not look ahead if attention is to be causal. Where x
        equals the center up to 1e-5 of their largest component, only rounding is left of the
        difference: zero is hashed instead, which puts all such tokens into bucket 0.

    Returns:
      int32 [*B, R, L, N] in [0, B); no gradient.

    Raises:
      ValueError: shapes that do not fit; too many buckets for 32-bit sort keys.

    Time O(R·L·N·H·Σ B_f/2); memory one round's projection on its largest factor.
    """
    remedy = " (make it with make_rotations)"
    require_instance(
        "rotations", rotations, isinstance(rotations, Rotations), "of the class Rotations", remedy
    )
    num_heads, _, _, head_dim = rotations.factors[0].shape
    [x] = as_floating(x=x)
    require(
        x.shape[-2] % num_heads == 0 and x.shape[-1] == head_dim,
        f"x must be [*batch, length, a multiple of {num_heads} heads, width {head_dim}] for these"
        f" rotations; got {x.shape} (make the rotations with its num_heads and head_dim)",
    )
    *batch_shape, length, heads, width = x.shape
    require_sortable(rotations.num_buckets, length)
    if center is not None:
        center = as_array("center", center)
        require(
            center.ndim == x.ndim and broadcasts_to(center.shape, x.shape),
            f"center must have x's rank and broadcast to it, {x.shape}; got {center.shape} (a mean"
            " of every head is [1, …, 1, heads, width])",
        )
        x = _from_center(x, center)
    with jax.named_scope("lsh_hash"):
        buckets = _hash_over_heads(x.reshape(-1, length, heads, width), rotations)
    return jnp.moveaxis(buckets, 0, 3).reshape(*batch_shape, rotations.num_hashes, length, heads)


def _hash_over_heads(x: jax.Array, rotations: Rotations) -> jax.Array:
    """`_hash`, each device its examples and heads, or positions."""
    factors, groups = rotations.factors, rotations.factors[0].shape[0]
    if current() is not None and groups > 1:
        # The heads of a device may be fewer than share a rotation.
        factors = tuple(jnp.repeat(factor, x.shape[2] // groups, axis=0) for factor in factors)
    by_position = x.shape[1] > 1 and heads_are_too_few(x.shape[2])
    return by_device(
        _hash,
        [divide_positions(x) if by_position else x, Rotations(factors)],
        ["btn", "n"],
        "nbrt",
        name="hashing",
        batch=x.shape[0],
        heads=x.shape[2],
        partitioned=True,
        rings=by_position,
    )


def _from_center(x: jax.Array, center: jax.Array) -> jax.Array:
    """x − center, and zero where that is no more than what rounding leaves of the two."""
    x, center = x.astype(jnp.float32), center.astype(jnp.float32)

    def largest(x):  # a norm whose squares do not overflow
        return jnp.max(jnp.abs(x), axis=-1, keepdims=True)

    rounding = _ROUNDING * jnp.maximum(largest(x), largest(center))
    return jnp.where(largest(x - center) <= rounding, 0, x - center)


@functools.partial(jax.jit, inline=True)
def _hash(x: jax.Array, rotations: Rotations) -> jax.Array:
    """[B, L, N, H] to int32 [N, B, R, L]."""
    x = jax.lax.stop_gradient(x)
    heads, num_heads = x.shape[2], rotations.factors[0].shape[0]

    def one_head(n):
        # Only one head's projections are alive at a time.
        head = jax.lax.dynamic_index_in_dim(x, n, 2, keepdims=False)
        if head.dtype.itemsize > 4:
            head = head.astype(jnp.float32)
        bucket, radix = jnp.zeros((x.shape[0], rotations.num_hashes, x.shape[1]), jnp.int32), 1
        for factor in rotations.factors:
            if factor.shape[2] == 0:  # one bucket
                continue
            rotation = jax.lax.dynamic_index_in_dim(
                factor, n // (heads // num_heads), 0, keepdims=False
            )
            bucket += radix * _nearest_axis(rotation, head)
            radix *= 2 * factor.shape[2]
        return bucket

    return jax.lax.map(one_head, jnp.arange(heads))


def _nearest_axis(rotation: jax.Array, x: jax.Array) -> jax.Array:
    """argmax([xR; −xR]) without building that: [R, B/2, H] and [B, L, H] to int32 [B, R, L]."""
    rounds, half, width = rotation.shape
    # In full precision: a token hashed alone, when decoding, must get the same bucket. Where x has
    # 16 bits, so has the rotation, which is as random then, and the products are exact in float32.
    y = jnp.einsum(
        "gh,blh->bgl",
        rotation.reshape(-1, width).astype(x.dtype),
        x,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    ).reshape(x.shape[0], rounds, half, x.shape[1])
    largest = jnp.max(jnp.abs(y), axis=2, keepdims=True)
    axis = jax.lax.broadcasted_iota(jnp.int32, y.shape, 2)
    # The first axis that reaches the largest; NaN reaches none.
    signed = jnp.where(y == largest, axis, jnp.where(-y == largest, axis + half, 2 * half - 1))
    return jnp.min(signed, axis=2)


def running_center(x: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    """The mean of each token and those before it, for `hash_buckets`: it never looks ahead.

    Args:
      x: vectors to be averaged, [*B, L, N, H].
      valid: booleans [*B, L], True for tokens that count; None = all.

    Returns:
      [*B, L, N, H] float32, zero where nothing has been counted yet.

    Raises:
      ValueError: shapes or dtypes that do not fit.
    """
    [x] = as_floating(x=x)
    if valid is not None:
        valid = as_array("valid", valid)
        require(
            valid.shape == x.shape[:-2] and valid.dtype == bool,
            f"valid must be booleans [*batch, length] = {x.shape[:-2]} for x {x.shape}; got"
            f" {valid.dtype} {valid.shape}",
        )

    def of_device(x: jax.Array, valid: jax.Array | None) -> jax.Array:
        return RunningMean.empty(x.shape).go_on(x, valid)[0]

    batch, length = math.prod(x.shape[:-3]), x.shape[-3]
    counted = None if valid is None else valid.reshape(batch, length)
    center = by_device(
        of_device,
        [x.reshape(batch, *x.shape[-3:]), counted],
        ["btn", "bt"],
        "btn",
        name="a running center",
        batch=batch,
        heads=x.shape[-2],
        partitioned=True,
    )
    return center.reshape(x.shape)
