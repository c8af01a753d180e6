"""Routes: which pairs of query and key are visited at all, as values.

A route is called with a score and the arrays, and is what a multi-head module is given as `route=`.
All take q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, D] and the keywords of `attention`. A new
route is a frozen dataclass with the members that `Route` lists; a subclass of `Exact` defines only
`__call__` and `weights`.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab import masks
from attnlab.core.axes import lead_with_ones
from attnlab.core.checks import (
    as_share,
    require,
    require_dropout,
    require_instance,
)
from attnlab.core.shapes import fit
from attnlab.ops import dense, dropout
from attnlab.ops.attention import Implementation, attention, attention_weights
from attnlab.ops.hard import Choice, hard_attention
from attnlab.ops.layout import merge_output
from attnlab.ops.local import within
from attnlab.ops.lsh.route import LSH
from attnlab.scores import Dot, Score

__all__ = [
    "LSH",
    "AllPairs",
    "Chunked",
    "Exact",
    "Function",
    "Hard",
    "Masked",
    "Route",
    "SamplingRoute",
    "StatefulRoute",
    "Window",
]


@runtime_checkable
class Route(Protocol):
    """What a module asks of a route.

    Attributes:
      shares_qk: whether q and k must be the same.
      by_position: whether the pairs depend on where queries and keys stand.
      hides_future: whether no query visits a key that follows it, whatever the mask; None = not
        known while tracing.
      sows_weights: whether a module may sow the weights, which are dense.
      hash_keywords: names of the keywords that say how to hash, some of these: "hash_key", a PRNG
        key; "hash_inputs", the queries before rotary positions; "center", the learned center.
    """

    @property
    def shares_qk(self) -> bool: ...

    @property
    def by_position(self) -> bool: ...

    @property
    def hides_future(self) -> bool | None: ...

    @property
    def sows_weights(self) -> bool: ...

    @property
    def hash_keywords(self) -> frozenset[str]: ...

    def __call__(self, *args: Any, **options: Any) -> jax.Array:
        """(score, q, k, v) and the keywords of `attention` → the context [*B, T, N, D]."""
        ...

    def weights(self, score: Score, q: jax.Array, k: jax.Array, **options: Any) -> jax.Array:
        """The weights [*B, N, T, S], dense, with the keywords of a call."""
        ...


@runtime_checkable
class StatefulRoute(Route, Protocol):
    """A route whose decoding keeps more than keys and values, beside a cache of these."""

    def empty_state(self, k: jax.Array) -> Any:
        """The state before the first token, for a cache of keys like k [*B, S, K, H]."""
        ...

    def decode(self, *args: Any, **options: Any) -> tuple[jax.Array, Any]:
        """(score, q, k, v, state) → the context of the new tokens, and the state after them.

        q is of the new tokens, from the keyword `q_offset` on, k and v of all in the cache, mask
        and bias of the whole sequence.
        """
        ...


@runtime_checkable
class SamplingRoute(Route, Protocol):
    """A route that draws while a model is trained, and whose gradient wants what was drawn."""

    def choose(self, *args: Any, **options: Any) -> Choice:
        """(score, q, k, v), the keywords of a call, and `sample_key`; None = the likeliest.

        A route that cannot drop weights refuses to here.
        """
        ...


class Exact:
    """A route that needs nothing but its mask and where its queries stand; the base of your own.

    A subclass may define `weights` alone: a call then makes all T·S of them, hides what its mask
    does, drops some in training, and sums the values.
    """

    shares_qk: bool = False
    by_position: bool = True
    hides_future: bool | None = False
    sows_weights: bool = True
    hash_keywords: frozenset[str] = frozenset()

    def __call__(
        self,
        score: Score,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        dropout_rate: float = 0.0,
        dropout_key: jax.Array | None = None,
        precision: jax.lax.PrecisionLike = None,
        **options: Any,
    ) -> jax.Array:
        """The context [*B, T, N, D]: Σ_j weights_ij v_j. O(T·S) time and memory."""
        dropout_rate = require_dropout(dropout_rate, dropout_key)
        weights = self.weights(score, q, k, precision=precision, **options)
        *batch, num_queries, num_heads, _ = q.shape
        num_keys = k.shape[-3]
        returned = f"what {type(self).__name__}.weights returns: *B N T S"
        fit("q: *B T N H", q, "k: *B S K H", k, returned, weights)
        mask = masks.as_mask(options.get("mask"))
        if mask is not None:  # so that no huge value there gets into the gradient
            visible = mask.as_array(num_queries, num_keys)
            weights = jnp.where(lead_with_ones(visible, weights.ndim), weights, 0)
        # [*B, N, T, S] to [B, K, G, T, S], and values [*B, S, K, D] to [B, K, 1, S, D]
        lead = math.prod(batch), v.shape[-2], num_heads // v.shape[-2]
        seeds = None if dropout_key is None else dropout.seeds(dropout_key, *lead)
        context = dense.context(
            weights.reshape(*lead, num_queries, num_keys),
            jnp.moveaxis(v.reshape(lead[0], *v.shape[-3:]), 2, 1)[:, :, None],
            seeds,
            dropout_rate=dropout_rate,
            precision=precision,
        )
        return merge_output(context, tuple(batch))

    def weights(self, score, q, k, *, q_offset=None, mask=None, **options) -> jax.Array:
        """The weights [*B, N, T, S], dense; the keywords of `attention_weights`."""
        mask = self._mask(q_offset, mask, q.shape[-3])
        return attention_weights(score, q, k, mask=mask, **options)

    def _mask(self, q_offset, mask: masks.Mask | ArrayLike | None, num_queries: int) -> Any:
        """What the queries see, the first of which is at q_offset, or where the mask says."""
        return mask


class _Within(Exact):
    """A route of the pairs that a mask of its own shows, beside what the mask of the call says."""

    implementation: Implementation

    def __call__(
        self,
        score: Score,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        q_offset: ArrayLike | None = None,
        mask: masks.Mask | ArrayLike | None = None,
        **options: Any,
    ) -> jax.Array:
        """The context [*B, T, N, D]."""
        mask = self._mask(q_offset, mask, q.shape[-3])
        return attention(score, q, k, v, mask=mask, implementation=self.implementation, **options)

    def _mask(self, q_offset, mask, num_queries):
        first = masks.first_position(mask) if q_offset is None else q_offset
        return masks.combine(self._own(first, num_queries), mask)

    def _own(self, first: ArrayLike, num_queries: int) -> masks.Mask:
        """The mask of its own, of queries from the position `first` on."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class AllPairs(_Within):
    """Every query visits every key that its mask shows; exact.

    Args:
      implementation: None, a name, or `Pallas(...)`, as for `attention`.
    """

    implementation: Implementation = None
    by_position = False

    def _mask(self, q_offset, mask, num_queries):
        return mask  # all pairs, wherever the queries stand


@dataclasses.dataclass(frozen=True)
class Window(_Within):
    """A query visits the keys around its own position: `window_attention`; exact within the window.

    Args:
      left: number of keys before the query.
      right: number of keys after the query.
      implementation: None, a name, or `Pallas(...)`, as for `attention`.
    """

    left: int
    right: int
    implementation: Implementation = None

    def __post_init__(self):
        masks.Window(self.left, self.right)  # which checks the rest of them
        require(
            self.left is not None and self.right is not None,
            f"routes.Window wants numbers of keys; got Window({self.left}, {self.right}) (for all"
            " keys of a side write AllPairs(), and masks.Window or masks.Causal() as the mask)",
        )
        object.__setattr__(self, "hides_future", self.right == 0)

    def _mask(self, q_offset, mask, num_queries):
        return within(self.left, self.right, q_offset, mask)


@dataclasses.dataclass(frozen=True)
class Chunked(_Within):
    """A query visits the keys of its own chunk and of those before: the Reformer's local attention.

    These are (look_back + 1) · size keys; under a causal mask about (look_back + ½) · size on
    average, as many as a `Window` of that many has, with more work for most implementations. It is
    what weights were trained with (Kitaev et al. 2020, released code).

    Args:
      size: number of positions of a chunk.
      look_back: number of chunks visited before a query's own.
      implementation: None, a name, or `Pallas(...)`, as for `attention`.
    """

    size: int
    _: dataclasses.KW_ONLY
    look_back: int = 1
    implementation: Implementation = None

    def __post_init__(self):
        checked = self._own(0, 1)
        object.__setattr__(self, "size", checked.size)
        object.__setattr__(self, "look_back", checked.look_back)
        object.__setattr__(self, "hides_future", self.size == 1)

    def _own(self, first, num_queries):
        return masks.Chunks(self.size, self.look_back, first)


@dataclasses.dataclass(frozen=True)
class Masked(_Within):
    """A query visits the keys that a mask shows, beside what the mask of the call says.

    So a mask may be the attention of a layer, or of every other one.

    Args:
      mask: mask of the whole sequence, whose queries begin at position 0. Arrays in it leave the
        route, and a module that has it, without a hash, which `nn.jit` needs.
      implementation: None, a name, or `Pallas(...)`, as for `attention`.
    """

    mask: masks.Mask
    implementation: Implementation = None

    def __post_init__(self):
        fits = isinstance(self.mask, masks.Mask)
        require_instance("Masked.mask", self.mask, fits, "a value of attnlab.masks")
        object.__setattr__(self, "hides_future", self.mask.hides_future)

    def _own(self, first, num_queries):
        at_zero = isinstance(first, int) and first == 0
        return self.mask if at_zero else self.mask.for_queries(first, num_queries)


@dataclasses.dataclass(frozen=True)
class Function(Exact):
    """A function of your own as a route: what it computes of q, k and v is the context.

    It is called as `function(q, k, v, mask=mask)`, with the keywords that a call uses and no
    others: mask, a value of `masks` (`mask.as_array(T, S)` makes booleans of it); bias;
    dropout_rate and dropout_key; precision. One that the function does not take is refused, but for
    q_offset, the position of the first query while decoding. The mask says it too, but not where
    the keys are another sequence's: a function of positions takes q_offset= there.

    Args:
      function: function of q [*B, T, N, H], k [*B, S, K, H] and v [*B, S, K, D] that returns the
        context [*B, T, N, D] in their dtype.
    """

    function: Callable[..., jax.Array]
    by_position = False
    sows_weights = False

    def __call__(
        self, score: Score, q: jax.Array, k: jax.Array, v: jax.Array, **options: Any
    ) -> jax.Array:
        """The context [*B, T, N, D].

        Raises:
          ValueError: the call has a score or a keyword that the function does not take, or what it
            returns is no context.
        """
        name = getattr(self.function, "__name__", type(self.function).__name__)
        require(
            score == Dot(),
            f"{name} is a function, which has a score of its own; got score={score} (leave it out)",
        )
        parameters = inspect.signature(self.function).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        taken = options.keys() if takes_all else {p.name for p in parameters}
        for keyword in ("mask", "bias", "dropout_key", "precision"):
            require(
                keyword in taken or options.get(keyword) is None,
                f"{name}(q, k, v) must take {keyword}= here, or its meaning is lost; got a function"
                " without it (add the keyword, or call without it)",
            )
        require(
            not isinstance(options.get("dropout_key"), dropout.OnePattern),
            f"{name} drops by a PRNG key of its own; got broadcast_dropout=True, which drops the"
            " same weights in all heads and examples (set it to False)",
        )
        given = {keyword: x for keyword, x in options.items() if keyword in taken}
        if "mask" in given:
            given["mask"] = masks.as_mask(given["mask"])
        context = self.function(q, k, v, **given)
        got = getattr(context, "dtype", type(context).__name__)
        rule = f"{name}(q, k, v) must return the context, in the dtype {v.dtype}"
        require(got == v.dtype, f"{rule}; got {got}")
        returned = f"what {name}(q, k, v) returns: *B T N D"
        fit("q: *B T N H", q, "v: *B S K D", v, returned, context)
        return context

    def weights(self, score, q, k, **options) -> jax.Array:
        """The weights [*B, N, T, S], dense: the context of values that are the unit vectors."""
        units = jnp.eye(k.shape[-3], dtype=k.dtype)[:, None]  # [S, 1, S]
        v = jnp.broadcast_to(units, (*k.shape[:-1], k.shape[-3]))
        return jnp.moveaxis(self(score, q, k, v, **options), -2, -3)


@dataclasses.dataclass(frozen=True)
class Hard(Exact):
    """A query takes the value of one key that its mask shows: `hard_attention`.

    Sampled where there is a `sample_key`, which modules draw from the rng stream "sample" while a
    model is trained; else the likeliest key. Source: Xu et al. 2015, §4.1.

    Args:
      expected_rate: probability that a sampled example takes the expected context; 0.5 in the
        paper.
      straight_through: whether queries, keys and what else makes the weights get the gradient of
        the expected context; values get that of the choice.
    """

    expected_rate: float = 0.0
    straight_through: bool = False
    by_position = False

    def __post_init__(self):
        as_share("expected_rate", self.expected_rate)

    def __call__(
        self, score: Score, q: jax.Array, k: jax.Array, v: jax.Array, **options: Any
    ) -> jax.Array:
        """The context [*B, T, N, D]."""
        return self.choose(score, q, k, v, **options).context

    def choose(
        self,
        score: Score,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        q_offset: ArrayLike | None = None,
        dropout_rate: float = 0.0,
        dropout_key: jax.Array | None = None,
        **options: Any,
    ) -> Choice:
        """The context, and what was chosen; the keywords of `hard_attention`.

        Raises:
          ValueError: weights are to be dropped.
        """
        del q_offset, dropout_key  # all pairs, wherever the queries stand
        require(
            dropout_rate == 0.0,
            "Hard() takes one key, of which no weight can be dropped; got"
            f" dropout_rate={dropout_rate} (set it to 0, and drop the context instead)",
        )
        return hard_attention(
            q,
            k,
            v,
            score=score,
            expected_rate=self.expected_rate,
            straight_through=self.straight_through,
            **options,
        )

    def weights(self, score, q, k, *, q_offset: ArrayLike | None = None, **options) -> jax.Array:
        """The weights [*B, N, T, S], dense: 1 at the chosen key; the keywords of a call."""
        choice = self.choose(score, q, k, k, q_offset=q_offset, **options)
        expected = {name: x for name, x in options.items() if name in ("mask", "bias", "precision")}
        dtype = choice.log_prob.dtype
        one_hot = jax.nn.one_hot(choice.place, k.shape[-3], dtype=dtype)
        one_hot = jnp.moveaxis(one_hot, -2, -3)
        if options.get("sample_key") is None or self.expected_rate == 0.0:
            return one_hot
        # Of an expected context log_prob is 0; of a choice only where the two agree.
        expects = jnp.swapaxes(choice.log_prob == 0, -1, -2)[..., None]
        return jnp.where(expects, attention_weights(score, q, k, **expected), one_hot)
