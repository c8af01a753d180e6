"""LSH attention (Reformer): each query meets the keys that a hash puts near it in sorted order."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.checks import as_int, points_to, require, require_choice
from attnlab.meshes import like, on_explicit_axes
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.lsh.implementations import attend_rows
from attnlab.ops.lsh.inputs import (
    check_arrays,
    check_knobs,
    check_sortable,
    nan_where,
    read_mask,
)
from attnlab.ops.lsh.order import Geometry
from attnlab.ops.lsh.rows import Settings, row_seeds
from attnlab.ops.lsh.shared_rounds import attend_sharing_rounds
from attnlab.split import by_device, divide_positions, heads_are_too_few

__all__ = ["LUCIDRAINS", "PAPER", "STRICT", "TRAX", "LSHOptions", "lsh_attention"]


@dataclasses.dataclass(frozen=True)
class LSHOptions:
    """What published implementations disagree about. The defaults are the preset `STRICT`.

    | field       | STRICT   | TRAX (= Hugging Face) | LUCIDRAINS (reformer-pytorch) | PAPER |
    | ----------- | -------- | --------------------- | ----------------------------- | ----- |
    | strict      | True     | False                 | False                         | False |
    | same_bucket | True     | False                 | False                         | True  |
    | union       | True     | False                 | False                         | True  |
    | wrap        | False    | True                  | True                          | False |
    | logit_scale | 1        | 1                     | 1/√H                          | 1/√H  |
    | key_norm    | "rms"    | "rms"                 | "l2"                          | "l2"  |
    | look_ahead  | see below | 0                    | 0                             | 0     |

    Attributes:
      strict: whether a query sees the `window` nearest slots of its own bucket, so that nothing in
        the future changes what it sees. False: it sees its chunk and the chunks beside it, whose
        borders depend on all tokens, as in every published implementation.
      same_bucket: whether only keys in the query's bucket are visible. `strict` needs it.
      union: whether a pair that several rounds show counts once: the result is then exactly the
        softmax over the union of the rounds' keys, and more rounds only bring it nearer to full
        attention. False: a pair counts as often as it is shown (a multiset), which sharpens the
        weights of near keys by an amount that depends on the number of rounds. The paper defines
        the union, its code computes the multiset. Error against full attention, 2048 noisy tokens
        in 40 clusters: the union's is 3–4 % less at 4 rounds, 20–25 % less at 16.
      wrap: whether the chunks of all rounds form a ring, so that the first chunk of a round looks
        back at the last chunk of the round before. Published code does that; it makes a round
        depend on the others, so it is on for parity only.
      logit_scale: factor c in c·⟨q_i, k_j⟩; None = 1/√H. Keys have unit norm, so the norm of a
        query is already a learned temperature.
      key_norm: norm that keys are divided by: "rms" divides by √(mean(x²) + 1e-6)·√H, "l2" by |x|,
        None by nothing. A key whose squares leave the range of float32 becomes zero: |x| above
        1e19, with "l2" also below 1e-19.
      look_back: number of chunks visited before a query's own.
      look_ahead: number of chunks visited after a query's own. None = 0 if causal or not strict,
        else `look_back`.
      window: number of slots seen on each side (before only, if causal) where `strict`; None = the
        most that can be, look_back · chunk_size.
    """

    strict: bool = True
    same_bucket: bool = True
    union: bool = True
    wrap: bool = False
    logit_scale: float | None = 1.0
    key_norm: str | None = "rms"
    look_back: int = 1
    look_ahead: int | None = None
    window: int | None = None

    def __post_init__(self):
        require_choice("key_norm", self.key_norm, ("rms", "l2", None))
        require(
            not self.strict or (self.same_bucket and not self.wrap),
            f"strict=True needs same_bucket=True and wrap=False; got {self.same_bucket} and"
            f" {self.wrap} (set strict=False to have chunk borders decide)",
        )
        require(
            not self.wrap or not self.same_bucket,
            "wrap=True shows only keys of other rounds' buckets, so it needs same_bucket=False;"
            " got same_bucket=True (set wrap=False)",
        )
        if self.wrap and self.union:
            raise NotImplementedError(
                "union=True with wrap=True is not supported; got both (set union=False, as the"
                " implementations that wrap do)"
            )
        for name in ("look_back", "look_ahead"):
            chunks = getattr(self, name)
            require(
                (chunks is None and name == "look_ahead")
                or (as_int(chunks) is not None and chunks >= 0),
                f"{name} counts chunks, an int ≥ 0; got {chunks!r}",
            )
        require(
            not self.strict or self.look_back >= 1,
            f"strict=True needs look_back ≥ 1; got {self.look_back}",
        )
        require(
            self.window is None
            or (self.strict and as_int(self.window) is not None and self.window >= 1),
            f"window counts slots, an int ≥ 1, and needs strict=True; got window={self.window!r},"
            f" strict={self.strict}",
        )

    def scale(self, width: int) -> float:
        """c of the logits, for heads of this width."""
        return 1 / math.sqrt(width) if self.logit_scale is None else self.logit_scale

    def geometry(self, chunk_size: int, causal: bool, length: int) -> Geometry:
        """The neighborhood of a slot among `length` tokens."""
        window, look_back, look_ahead = None, self.look_back, self.look_ahead
        if self.strict:
            reach = self.look_back * chunk_size
            window = reach if self.window is None else self.window
            require(
                window <= reach,
                f"window must be at most look_back · chunk_size = {reach}; got {window}"
                " (raise chunk_size or look_back)",
            )
            wanted = 0 if causal else self.look_back
            require(
                look_ahead in (None, wanted),
                f"strict=True, causal={causal} visits look_ahead={wanted} chunks; got {look_ahead}"
                " (leave it None)",
            )
            look_ahead, window = wanted, min(window, length)
            if length <= chunk_size:
                # The window says who sees whom, and one chunk without neighbors holds everyone.
                chunk_size, look_back, look_ahead = length, 0, 0
        return Geometry(
            chunk_size,
            look_back,
            look_ahead or 0,
            window,
            causal,
            self.same_bucket,
            self.wrap,
            self.union,
        )


STRICT = LSHOptions()
TRAX = LSHOptions(strict=False, same_bucket=False, union=False, wrap=True)
LUCIDRAINS = dataclasses.replace(TRAX, logit_scale=None, key_norm="l2")
PAPER = LSHOptions(strict=False, logit_scale=None, key_norm="l2")


@points_to(
    is_causal="use causal=True",
    num_hashes="it belongs to make_rotations, which hash_buckets takes",
    num_buckets="it belongs to make_rotations, which hash_buckets takes",
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
    options: LSHOptions = STRICT,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    rows_at_once: int | None = None,
    implementation: str | Pallas | None = None,
    precision: Any = None,
) -> jax.Array:
    r"""Attention over the keys that hashing puts near each query.

    Per head, with k_j = qk_j / |qk_j| and c = `options.logit_scale`:

        o_i = Σ_j softmax_j(c·⟨qk_i, k_j⟩) v_j    over j ≠ i visible to i in some round,

    and o_i = v_i where no round shows i another key. A round sorts tokens by (bucket, position); by
    default i sees the `chunk_size` tokens before it in that order that share its bucket. Which they
    are depends on the past alone: with `causal`, no finite change of the future changes o_i. On a
    CPU with AVX-512 not one bit of it, while chunk_size ≤ 128 and `rows_at_once` is None; past
    that, on other CPUs and on accelerators, a sum may be split elsewhere and round differently.

    Args:
      qk: shared queries and keys [*B, L, N, H], any L ≥ 1.
      v: values [*B, L, K, D], K a divisor of N; head n uses v's head n // (N/K).
      buckets: integers [*B, R, L, N] from `hash_buckets`, equal for tokens that should meet.
      chunk_size: number of slots attended together, C; where strict, no more than L of them.
      causal: whether a token sees only earlier tokens, as `masks.Causal()` in the mask says too;
        default True, because the Reformer is a language model. False leaves it to the mask.
      mask: `masks.Padding`, `masks.Segments`, `masks.Causal`, an `Explicit` or a boolean array
        [*B, 1, 1, L] of keys that may be seen, or several of these with `&`. A token that is
        masked as a key is padding: nobody sees it and its own context is zero. Segments attend as
        if each were alone (up to chunk borders, if these decide).
      options: settings that published implementations disagree about; see `LSHOptions`.
      dropout_rate: probability of dropping a weight.
      dropout_key: a PRNG key, needed if dropout_rate > 0.
      rows_at_once: number of the B·N rows to compute together: memory for speed, the same function
        up to rounding. None = 1 on CPU, elsewhere as many as have 65,536 tokens.
      implementation: way to compute the result. "sorted" goes through the rounds in sorted order;
        "dense" makes the L × L weights of a row, the same function with other rounding; "pallas"
        (or `Pallas(...)`) goes through the rounds by the kernels of `ops.kernels`, on TPU and
        Hopper GPU, where only the query's own bucket is shown and no weight is dropped. None =
        "dense" where that visits no more pairs than the rounds would, no more than 2¹⁸, and
        rows_at_once is None; else "sorted".
      precision: precision of the matrix products, as in `jax.lax.dot`.

    Returns:
      Context [*B, L, N, D] in v's dtype; softmax and sums in float32 at least.

    Raises:
      ValueError: shapes or dtypes that do not fit; bucket ids that the packed sort key cannot hold
        (under jit they cannot raise: the context is then NaN).
      NotImplementedError: other masks; what a kernel that was named does not serve.

    On several devices it belongs under `attnlab.over`, which divides examples, heads or positions;
    compiled for them without, it raises NotImplementedError.

    Time O(R·L·C·(H + D) + R·L·log L); memory O(L·N·(R + H + D)), gradients included.

    Differs from Kitaev, Kaiser & Levskaya, "Reformer" (2020), section 2, in `options.strict` (chunk
    borders there let the future change the past) and in c = 1, which is what its released code has.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> qk, v = jax.random.normal(jax.random.key(0), (2, 1, 100, 4, 16))
      >>> buckets = jnp.zeros((1, 2, 100, 4), jnp.int32)  # all in one bucket: a sliding window
      >>> lsh_attention(qk, v, buckets, chunk_size=8).shape
      (1, 100, 4, 16)
    """
    dropout_rate = check_knobs(chunk_size, rows_at_once, implementation, dropout_rate, dropout_key)
    check_arrays(qk, v, buckets)
    qk, v = divide_positions(qk, v)
    *batch_shape, length, heads, width = qk.shape
    visibility = read_mask(mask, tuple(batch_shape), length, causal)
    geometry = options.geometry(chunk_size, visibility.causal, length)
    batch, padding = math.prod(batch_shape), -length % geometry.chunk_size
    if batch == 0:
        return jnp.zeros((*qk.shape[:-1], v.shape[-1]), v.dtype)
    buckets, broken = check_sortable(buckets, length + padding)

    qk, v, buckets = (x.reshape(batch, *x.shape[-3:]) for x in (qk, v, buckets))
    v = jnp.repeat(v, heads // v.shape[2], axis=2)
    seeds = row_seeds(dropout_rate, dropout_key, batch, heads)
    settings = Settings(geometry, options.key_norm, dropout_rate, rows_at_once, precision)
    operands = [buckets, qk, v, visibility.valid, visibility.segments, seeds]
    if heads_are_too_few(heads):
        context = attend_sharing_rounds(implementation, settings, options.scale(width), operands)
    else:
        context = by_device(
            functools.partial(attend_rows, implementation, settings, options.scale(width)),
            operands,
            ["brtn", "btn", "btn", "bt", "bt", "bn"],
            "btn",
            name="LSH attention",
            batch=batch,
            heads=heads,
        )
    for visible in (visibility.valid, visibility.q_valid):
        if visible is not None:
            context = jnp.where(visible[:, :, None, None], context, 0)
    context = nan_where(visibility.broken | broken, context)
    return divide_positions(context.reshape(*batch_shape, *context.shape[1:]))
