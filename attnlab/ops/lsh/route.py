"""The route of LSH attention: projections, a mask and a key in, buckets and attention done."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.biases import Bias
from attnlab.core.axes import lead_with_ones
from attnlab.core.checks import as_int, as_size, require, require_choice
from attnlab.devices.meshes import like, on_explicit_axes
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.decode import DecodeState, empty_state, lsh_decode
from attnlab.ops.lsh.hashing import (
    Rotations,
    as_num_buckets,
    default_num_buckets,
    hash_buckets,
    make_rotations,
    running_center,
)
from attnlab.ops.lsh.inputs import (
    STRICT,
    LSHOptions,
    read_mask,
    require_implementation,
    require_options,
)
from attnlab.ops.lsh.order import require_sortable
from attnlab.ops.lsh.published import Published
from attnlab.scores import Dot, Score


@dataclasses.dataclass(frozen=True)
class LSH:
    """A query visits the keys that hash into its bucket: `lsh_attention`; approximate.

    Queries and keys are one projection, as the Reformer has it: the route reads q and takes k to be
    the same. With `shared_qk=False` they are not, and keys may be of another sequence
    (`lsh_cross_attention`). Like every route, it is causal where the mask has `masks.Causal()`. No
    parameter depends on the other fields: another route may be used at evaluation.

    Args:
      num_hashes: number of rounds, R; more come nearer to all pairs, at R times the cost.
      num_buckets: number of buckets, 1 or even, or a tuple of even factors, of which (2, 2, …) are
        the signs at random planes, a hash of bits; None = 2·L/chunk_size, as the paper has it, for
        the number L of keys at hand (`hashing.default_num_buckets`; fewer from half a million keys
        on). While decoding, L is the length of the cache, so a forward
        over another length has other buckets: give a number if both should compute the same. 1 =
        no hashing, all tokens in one bucket: with a chunk of L tokens exact attention with shared
        queries and keys, which every number of rounds and buckets is an approximation of; with a
        smaller one a sliding window. One round is enough then.
      chunk_size: number of slots of sorted order attended together, C.
      options: settings; default strictly causal. `Published` ones are as an implementation has
        them, slow.
      seed: seed of the rotations where no `hash_key` is given, so that evaluation is deterministic.
      shared_rotations: whether all heads share one rotation.
      centering: center subtracted before hashing, because a component that all tokens share puts
        them in few buckets. None = nothing; "running" = the mean of the valid tokens up to each
        (`hashing.running_center`); "learned" = a mean for each head that the modules track in
        training, given as `center`. Neither looks ahead.
      hash_before_rotary: whether to hash queries and keys as they were before rotary positions
        turned them, which the modules give as `hash_inputs`.
      shared_qk: whether queries and keys are the same. Decoding, centering, hashing before rotary
        and `Published` options are only for those that are.
      implementation: None, "sorted", "dense" or "pallas", as for `lsh_attention`; a token that is
        decoded alone has only one way.
    """

    num_hashes: int = 4
    _: dataclasses.KW_ONLY
    num_buckets: int | tuple[int, ...] | None = None
    chunk_size: int = 64
    options: LSHOptions | Published = STRICT
    seed: int = 0
    shared_rotations: bool = False
    centering: str | None = None
    hash_before_rotary: bool = False
    shared_qk: bool = True
    implementation: str | Pallas | None = None

    def __post_init__(self):
        for name in ("num_hashes", "chunk_size"):
            object.__setattr__(self, name, as_size(name, getattr(self, name)))
        if self.num_buckets is not None:
            object.__setattr__(self, "num_buckets", as_num_buckets(self.num_buckets))
        require_choice("centering", self.centering, (None, "running", "learned"))
        for name in ("shared_rotations", "hash_before_rotary", "shared_qk"):
            require_choice(name, getattr(self, name), (True, False))
        seed = as_int(self.seed)
        require(
            seed is not None and 0 <= seed < 2**32,
            f"seed must be an int in [0, 2³²); got {self.seed!r}",
        )
        require_options(self.options, published=True)
        require_implementation(self.implementation)
        if not self.shared_qk and (self.centering is not None or self.hash_before_rotary):
            raise NotImplementedError(
                "centering and hash_before_rotary are for shared queries and keys; got"
                f" centering={self.centering!r} and hash_before_rotary={self.hash_before_rotary}"
                " with shared_qk=False (leave them unset)"
            )

    by_position = False
    hides_future = False  # the mask alone says it
    sows_weights = False  # at the lengths that LSH is for, T × S weights may not fit

    @property
    def shares_qk(self) -> bool:
        """Whether q and k must be the same, as every route says."""
        return self.shared_qk

    @property
    def hash_keywords(self) -> frozenset[str]:
        """The keywords of a call that say how to hash, as every route says."""
        names = {"hash_key"}
        names |= {"hash_inputs"} if self.hash_before_rotary else set()
        names |= {"center"} if self.centering == "learned" else set()
        return frozenset(names)

    @on_explicit_axes(like("q"), of="q")
    def __call__(
        self,
        score: Score,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        mask: masks.Mask | ArrayLike | None = None,
        bias: Bias | ArrayLike | None = None,
        dropout_rate: float = 0.0,
        dropout_key: jax.Array | None = None,
        hash_key: jax.Array | None = None,
        hash_inputs: jax.Array | None = None,
        center: jax.Array | None = None,
        precision: jax.lax.PrecisionLike = None,
        q_offset: ArrayLike | None = None,
    ) -> jax.Array:
        """The context [*B, L, N, D]; causal where the mask has `masks.Causal()`.

        Beside the keywords of `attention`: hash_key for other rotations than those of the seed,
        hash_inputs [*B, L, N, H] to be hashed in place of q, and the learned center [N, H].
        """
        if q_offset is not None:
            raise NotImplementedError(
                "LSH does not decode with a key/value cache alone, and gives no weights while it"
                " decodes; got q_offset (use LSH.decode, in a module without return_weights)"
            )
        self._refuse(score, bias)
        require(
            0 not in (q.shape[-3], k.shape[-3]),
            f"q and k must have no axis of length 0; got {q.shape} and {k.shape}",
        )
        x, center = self._hashed(q, hash_inputs, center)
        options: dict[str, Any] = {
            "chunk_size": self.chunk_size,
            "causal": False,
            "mask": mask,
            "options": self.options,
            "dropout_rate": dropout_rate,
            "dropout_key": dropout_key,
            "implementation": self.implementation,
            "precision": precision,
        }
        if not self.shared_qk:
            rotations = self._rotations(k.shape, hash_key, queries=q.shape[-3])
            buckets = (hash_buckets(x, rotations) for x in (q, k))
            return lsh_cross_attention(q, k, v, *buckets, **options)
        require(
            q.shape == k.shape,
            "LSH takes keys that are the queries, and looks at these alone; got queries of"
            f" {q.shape} and keys of {k.shape} (set shared_qk=False)",
        )
        if self.centering == "running":
            center = running_center(x, _count_tokens(mask, x.shape[:-1]))
        rotations = self._rotations(q.shape, hash_key)
        return lsh_attention(q, v, hash_buckets(x, rotations, center=center), **options)

    def empty_state(self, k: jax.Array) -> DecodeState:
        """What `decode` needs before the first token, for a cache of keys like k [*B, L, N, H]."""
        options: Any = self.options  # which `empty_state` refuses where they are Published
        return empty_state(
            k.shape,
            num_hashes=self.num_hashes,
            num_buckets=_product(self._num_buckets(k.shape[-3])),
            chunk_size=self.chunk_size,
            options=options,
            running_mean=self.centering == "running",
        )

    def decode(
        self,
        score: Score,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        state: DecodeState,
        *,
        q_offset: ArrayLike,
        mask: masks.Mask | ArrayLike | None = None,
        bias: Bias | ArrayLike | None = None,
        dropout_rate: float = 0.0,
        dropout_key: jax.Array | None = None,
        hash_key: jax.Array | None = None,
        hash_inputs: jax.Array | None = None,
        center: jax.Array | None = None,
        precision: jax.lax.PrecisionLike = None,
    ) -> tuple[jax.Array, DecodeState]:
        """The context [*B, T, N, D] of the tokens from q_offset on, and the state after them.

        The contexts are rows of the causal forward over all tokens, up to rounding: a token whose
        hash is a tie in float32 may fall into another bucket than there.

        Args:
          score: score, as for a call.
          q: queries of the new tokens, [*B, T, N, H].
          k: keys of all tokens in the cache, the new ones included, [*B, L, N, H].
          v: values of all tokens in the cache, [*B, L, K, D].
          state: `empty_state(k)`, or what the call before returned.
          q_offset: position of the first new token, a scalar.
          mask: mask of the whole sequence, as for `lsh_decode`.
          bias: None; any other is refused.
          dropout_rate: 0; any other rate is refused.
          dropout_key: PRNG key that is not used.
          hash_key: PRNG key of the rotations, as for a call; it must not change between calls.
          hash_inputs: vectors of the new tokens that are hashed in place of q, [*B, T, N, H].
          center: learned center [N, H], as for a call; it must not change between calls.
          precision: precision of the matrix products.

        Raises:
          NotImplementedError: what a call or `lsh_decode` refuses; dropout.
          ValueError: a state of another route or cache.
        """
        del dropout_key
        self._refuse(score, bias)
        if not self.shared_qk:
            raise NotImplementedError(
                "LSH decodes with shared queries and keys; got shared_qk=False (decode with"
                " AllPairs, or share them)"
            )
        if dropout_rate > 0:
            raise NotImplementedError(
                f"LSH decodes without dropout; got dropout_rate={dropout_rate} (set it to 0, in a"
                " module with deterministic=True)"
            )
        got = jax.tree.map(jnp.shape, state)
        wanted = jax.tree.map(jnp.shape, jax.eval_shape(self.empty_state, k))
        require(
            got == wanted,
            f"the state must be of this route and of a cache of {k.shape[-3]} tokens, {wanted}; got"
            f" {got} (start with LSH.empty_state, in a module with init(…, decode=True))",
        )
        options: Any = self.options
        x, center = self._hashed(q, hash_inputs, center)
        if state.mean is not None:
            counted = _count_tokens(mask, k.shape[:-1])
            if counted is not None:
                counted = jax.lax.dynamic_slice_in_dim(
                    counted, q_offset, x.shape[-3], counted.ndim - 1
                )
            center, mean = state.mean.go_on(x, counted)
            state = dataclasses.replace(state, mean=mean)
        return lsh_decode(
            k,
            v,
            hash_buckets(x, self._rotations(k.shape, hash_key), center=center),
            state,
            q_offset,
            chunk_size=self.chunk_size,
            mask=mask,
            options=options,
            implementation=self.implementation,
            precision=precision,
        )

    def weights(self, score: Score, q: jax.Array, k: jax.Array, **options: Any) -> jax.Array:
        """The weights [*B, N, T, S], dense: for looking at, since the route is there to avoid them.

        The weights are the context of the values e_j = (0 … 1 … 0), with the keywords of a call, in
        the dtype of q.
        """
        num_keys, num_heads = k.shape[-3:-1]
        units = jnp.eye(num_keys, dtype=q.dtype)[:, None]
        units = jnp.broadcast_to(units, (*k.shape[:-3], num_keys, num_heads, num_keys))
        return jnp.swapaxes(self(score, q, k, units, **options), -3, -2)

    def _refuse(self, score, bias):
        if not (type(score) is Dot and score.scale is None):
            raise NotImplementedError(
                "LSH has a score of its own, the dot product with unit keys; got "
                f"{score} (leave score unset, and scale with LSHOptions.logit_scale)"
            )
        if bias is not None:
            raise NotImplementedError(
                "LSH takes no bias, as it never makes the T × S logits; got one (leave it out, or"
                " take AllPairs)"
            )

    def _hashed(self, q, hash_inputs, center):
        """What is hashed, and the center, if it is given, in the rank of that."""
        require(
            (hash_inputs is not None) == self.hash_before_rotary,
            "hash_inputs, the queries before rotary, belong to hash_before_rotary=True; got"
            f" hash_before_rotary={self.hash_before_rotary} and"
            f" {'no ' if hash_inputs is None else ''}hash_inputs",
        )
        require(
            (center is not None) == (self.centering == "learned"),
            'center, a mean for each head, belongs to centering="learned"; got'
            f" centering={self.centering!r} and {'no ' if center is None else ''}center",
        )
        x = q if hash_inputs is None else hash_inputs
        for name, got, wanted in (
            ("hash_inputs", x.shape, q.shape),
            ("center", q.shape[-2:] if center is None else center.shape, q.shape[-2:]),
        ):
            require(got == wanted, f"{name} must have shape {wanted} for q {q.shape}; got {got}")
        return x, None if center is None else lead_with_ones(center, q.ndim)

    def _num_buckets(self, length, queries=0):
        if self.num_buckets is None:
            return default_num_buckets(length, self.chunk_size, queries)
        slots = length + -length % self.chunk_size + queries  # sorted together
        require_sortable(_product(self.num_buckets), slots)
        return self.num_buckets

    def _rotations(self, shape: tuple[int, ...], hash_key, queries: int = 0):
        """The rotations for keys of this shape, [*B, S, K, H], and other queries beside them."""
        sizes = {
            "num_heads": shape[-2],
            "head_dim": shape[-1],
            "num_hashes": self.num_hashes,
            "num_buckets": self._num_buckets(shape[-3], queries),
            "shared": self.shared_rotations,
        }
        if hash_key is not None:
            return make_rotations(hash_key, **sizes)
        return _constant_rotations(self.seed, tuple(sizes.items()))


def _product(num_buckets: int | tuple[int, ...]) -> int:
    return math.prod(num_buckets) if isinstance(num_buckets, tuple) else num_buckets


# jit: an eager `shard_map` evaluates nothing at compile time.
@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _constant_rotations(seed: int, sizes: tuple[tuple[str, Any], ...]) -> Rotations:
    """Constants of the program: to draw them for each token decoded takes longer than attention."""
    with jax.ensure_compile_time_eval():
        return make_rotations(jax.random.key(seed), **dict(sizes))


def _count_tokens(mask, shape: tuple[int, ...]) -> jax.Array | None:
    """Which of the tokens [*B, L, N] count in a running center, [*B, L]: valid ones; None = all."""
    visibility = read_mask(mask, shape, causal=True)
    if visibility.segments is not None:
        raise NotImplementedError(
            'centering="running" would carry the mean of one segment into the next; got'
            ' masks.Segments (use centering="learned")'
        )
    return None if visibility.valid is None else visibility.valid.reshape(shape[:-1])
