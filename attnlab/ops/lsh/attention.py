"""LSH attention (Reformer): each query meets the keys that a hash puts near it in sorted order."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.core.checks import points_to
from attnlab.devices import platforms
from attnlab.devices.meshes import like, on_explicit_axes
from attnlab.devices.split import by_device, divide_positions, heads_are_too_few, serves_kernels
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.lsh.dense import attend_dense
from attnlab.ops.lsh.inputs import (
    STRICT,
    LSHOptions,
    as_operands,
    check_knobs,
    check_sortable,
    factor_of,
    read_mask,
)
from attnlab.ops.lsh.kernel import Kernel, attend_with, kernel_for
from attnlab.ops.lsh.order import Order
from attnlab.ops.lsh.published import Published, attend_published
from attnlab.ops.lsh.rounds import attend_rounds
from attnlab.ops.lsh.rows import CallSettings, Operands, multiply_or_zero, row_seeds, sort_operands
from attnlab.ops.lsh.shared_rounds import attend_sharing_rounds

# A row's weights: past this few rows fit into little memory, and few at a time are slow.
_MOST_DENSE_PAIRS = 2**18


@points_to(
    is_causal="use causal=True",
    num_hashes="it belongs to make_rotations, or call routes.LSH(num_hashes=…), which hashes",
    num_buckets="it belongs to make_rotations, or call routes.LSH(num_buckets=…), which hashes",
    scale="use options=LSHOptions(logit_scale=…)",
)
@on_explicit_axes(like("qk"), of="qk")
def lsh_attention(
    qk: jax.Array,
    v: jax.Array,
    buckets: jax.Array,
    *,
    chunk_size: int = 64,
    causal: bool = True,
    mask: masks.Mask | ArrayLike | None = None,
    options: LSHOptions | Published = STRICT,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    rows_at_once: int | None = None,
    implementation: str | Pallas | None = None,
    precision: Any = None,
) -> jax.Array:
    r"""Attention over the keys that hashing puts near each query; causal by default.

    `routes.LSH(num_hashes, …)(scores.Dot(), qk, qk, v, mask=masks.Causal())` hashes as well. Per
    head, with k_j = qk_j / |qk_j| and c = `options.logit_scale`:

        o_i = Σ_j softmax_j(c·⟨qk_i, k_j⟩) v_j    over j ≠ i visible to i in some round,

    and o_i = v_i where no round shows i another key, or 0 if the mask hides i from itself. A round
    sorts tokens by (bucket, position); by default i sees the `chunk_size` tokens before it in that
    order that share its bucket, less those that the mask hides. Which they are depends on the past
    alone: with `causal`, no finite change of the future changes o_i. On a CPU with AVX-512 not one
    bit of it, while chunk_size ≤ 128 and `rows_at_once` is None; past that, on other CPUs and on
    accelerators, a sum may be split elsewhere and round differently.

    Args:
      qk: shared queries and keys [*B, L, N, H], any L ≥ 1.
      v: values [*B, L, K, D], K a divisor of N; head n uses v's head n // (N/K).
      buckets: integers [*B, R, L, N] from `hash_buckets`, equal for tokens that should meet.
      chunk_size: number of slots attended together, C; no more than L of them, but for `Published`
        options.
      causal: whether a token sees only earlier tokens, as `masks.Causal()` in the mask says too;
        default True, because the Reformer is a language model. False leaves it to the mask.
      mask: any mask, or a boolean array. Of `masks.Padding` and a boolean array [*B, 1, 1, L] a
        token that is masked as a key is padding: nobody sees it and its own context is zero.
        `masks.Segments` attend as if each were alone (up to chunk borders, if these decide). All
        other masks than these and `masks.Causal` hide pairs of those that the hash shows.
      options: settings; see `LSHOptions`, and `Published` for those of others, with which some rows
        are computed together and all weights of their chunks are in memory.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      rows_at_once: number of the B·N rows to compute together: memory for speed, the same function
        up to rounding, in which the future may then move the past (4e-7). None = one by one on CPU,
        where any number is slower, up to 3 ×; elsewhere as many as have 65,536 tokens, by "pallas"
        as have 524,288 slots in their rounds.
      implementation: way to compute the result. "sorted" goes through the rounds in sorted order;
        "dense" makes the L × L weights of a row, the same function with other rounding; "pallas"
        (or `Pallas(...)`) goes through the rounds by the kernels of `ops.kernels`, on TPU and
        Hopper GPU, where only the query's own bucket is shown and no weight is dropped; in 16 bits
        it rounds the context and the gradients of each round to them. None = "dense" where that
        visits no more pairs than the rounds would, no more than 2¹⁸, and rows_at_once is None;
        else "pallas" where it serves on a Hopper GPU, on one device or under `attnlab.over` (on an
        H200 it took about 0.4 of the time of "sorted" at 65,536 tokens); else "sorted".
      precision: precision of the matrix products, as in `jax.lax.dot`.

    Returns:
      Context [*B, L, N, D] in v's dtype; softmax and sums in float32 at least.

    Raises:
      ValueError: shapes or dtypes that do not fit; bucket ids that the packed sort key cannot hold
        (under jit they cannot raise: the context is then NaN).
      NotImplementedError: `masks.Causal` with an offset; what a kernel that was named does not
        serve.

    On several devices it belongs under `attnlab.over`, which divides examples, heads or positions;
    compiled for them without, it raises NotImplementedError.

    Time O(R·L·C·(H + D) + R·L·log L); memory O(L·N·(R + H + D)), gradients included.

    Differs from Kitaev, Kaiser & Levskaya, "Reformer" (2020), section 2, in who is seen (chunk
    borders there let the future change the past: `Published` options) and in c = 1, which is what
    its released code has.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> qk, v = jax.random.normal(jax.random.key(0), (2, 1, 100, 4, 16))
      >>> buckets = jnp.zeros((1, 2, 100, 4), jnp.int32)  # all in one bucket: a sliding window
      >>> lsh_attention(qk, v, buckets, chunk_size=8).shape
      (1, 100, 4, 16)
      >>> from attnlab import masks, routes, scores
      >>> lsh = routes.LSH(num_hashes=2, chunk_size=8)  # all of it in one call
      >>> lsh(scores.Dot(), qk, qk, v, mask=masks.Causal()).shape
      (1, 100, 4, 16)
    """
    dropout_rate = check_knobs(
        chunk_size,
        options,
        rows_at_once,
        implementation,
        dropout_rate,
        dropout_key,
        published=True,
    )
    qk, v, buckets = as_operands(qk, v, buckets)
    qk, v = divide_positions(qk, v)
    visibility = read_mask(mask, qk.shape[:-1], causal)
    *batch_shape, length, heads, width = qk.shape
    batch = math.prod(batch_shape)
    if batch == 0:
        return jnp.zeros((*qk.shape[:-1], v.shape[-1]), v.dtype)
    geometry = options.geometry(chunk_size, visibility.causal, length)
    settings = CallSettings(geometry, options.key_norm, dropout_rate, rows_at_once, precision)
    if isinstance(options, Published):
        if implementation not in (None, "sorted"):
            raise NotImplementedError(
                "Published options have one implementation, in sorted order; got"
                f" implementation={implementation!r} (leave it None)"
            )
        shares_rounds = False
        attend = functools.partial(attend_published, settings, options)
    else:
        shares_rounds = heads_are_too_few(heads)
        attend = functools.partial(
            attend_rows, implementation, serves_kernels(), settings, options.scale(width)
        )
    buckets, broken = check_sortable(buckets, length + -length % geometry.chunk_size)

    qk = qk.reshape(batch, *qk.shape[-3:])
    v = v.reshape(batch, *v.shape[-3:])
    buckets = buckets.reshape(batch, *buckets.shape[-3:])
    # [B, L, N, H], [B, L, N, D], [B, R, L, N]: rows are (example, head), whoever shares values.
    v = jnp.repeat(v, heads // v.shape[2], axis=2)
    seeds = row_seeds(dropout_rate, dropout_key, batch, heads)
    # [B, L]: 0 for padding and for queries that see nothing
    masked = visibility.valid, visibility.q_valid
    factor = factor_of(qk.shape[:2], visibility.broken | broken, *masked)
    given = Operands(
        buckets, qk, v, visibility.valid, visibility.segments, visibility.pairs, seeds, factor
    )
    if shares_rounds:
        context = attend_sharing_rounds(implementation, settings, options.scale(width), given)
        context = multiply_or_zero(context, factor)
    else:
        context = by_device(
            lambda *part: attend(Operands(*part)),
            given,
            ["brtn", "btn", "btn", "bt", "bt", "bn", "bn", "bt"],
            "btn",
            name="LSH attention",
            batch=batch,
            heads=heads,
        )
    return divide_positions(context.reshape(*batch_shape, *context.shape[1:]))


def attend_rows(
    implementation: str | Pallas | None,
    kernels: bool,
    settings: CallSettings,
    scale: float,
    given: Operands,
) -> jax.Array:
    """The context [B, L, N, D].

    `kernels` says whether a kernel may be chosen unasked (`split.serves_kernels`).
    """
    length = given.qk.shape[1]
    order, given = sort_operands(settings.geometry, given)
    attend = choose(implementation, order, settings, given.qk, given.v, kernels=kernels)
    seeds = given.seeds.reshape(-1, 2)
    return attend(settings, given.qk, None, given.v, scale, order, seeds)[:, :length]


def choose(
    implementation: str | Pallas | None,
    order: Order,
    settings: CallSettings,
    q: jax.Array,
    v: jax.Array,
    *,
    kernels: bool = False,
) -> Callable[..., jax.Array]:
    """`attend_rounds`, `attend_dense` or a kernel, which compute the same of the same arguments.

    A kernel is chosen unasked only on an NVIDIA GPU, and if `kernels` allows it.

    Raises:
      NotImplementedError: no kernel serves them.
    """
    if implementation == "pallas":
        implementation = Pallas()
    platform = platforms.current()
    if isinstance(implementation, Pallas):
        kernel = kernel_for(implementation, platform, settings, q, v, order)
        if isinstance(kernel, str):
            raise NotImplementedError(
                f'implementation="pallas" {kernel}; use implementation="sorted" or None'
            )
        return functools.partial(attend_with, kernel)
    if implementation is None:
        rows, rounds, slots = order.token.shape
        geometry = settings.geometry
        pairs = order.slot.shape[2] * order.key_slot.shape[2]
        visited = rounds * slots * geometry.span * geometry.chunk_size
        if settings.rows_at_once is None and pairs <= min(visited, _MOST_DENSE_PAIRS):
            return attend_dense
        if platform.name == "cuda" and kernels and isinstance(rows, int):  # no symbolic batch
            kernel = kernel_for(Pallas(), platform, settings, q, v, order)
            if isinstance(kernel, Kernel):
                return functools.partial(attend_with, kernel)
    return attend_dense if implementation == "dense" else attend_rounds
