"""Multi-head attention that hosts any score and any route, with a key/value cache for decoding."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, Unpack, overload

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from attnlab import masks, positions
from attnlab.biases import Bias, as_bias
from attnlab.core.axes import lead_with_ones
from attnlab.core.checks import as_int, as_number, points_to, require, require_instance
from attnlab.modules.cache import (
    append_to_cache,
    cut_to_queries,
    decode_with_state,
    keep_static,
    tokens_before,
)
from attnlab.modules.conventions import (
    AttentionModule,
    CallOptions,
    as_query_key_value,
    dropout_options,
    name_axes,
)
from attnlab.modules.hash_stats import hash_options
from attnlab.modules.sampling import sample_route
from attnlab.ops.routes import AllPairs, Route, StatefulRoute
from attnlab.scores import Dot, Score

__all__ = ["MultiHeadAttention"]


@points_to(
    causal="the mask says it: call the module with mask=masks.Causal()",
    is_causal="the mask says it: call the module with mask=masks.Causal()",
    implementation="the route says it: route=routes.AllPairs(implementation=…)",
    decode="it belongs to the call: module.apply(variables, x, decode=True)",
)
class MultiHeadAttention(AttentionModule):
    """Concat(head_1 … head_N) W^O, head_n = attention(query W_n^Q, key W_n^K, value W_n^V).

    The score and the route are values: scaled dot over all pairs unless told otherwise. With
    `num_kv_heads` < `num_heads` query head n shares the keys and values of head
    n // (num_heads / num_kv_heads) (Ainslie et al. 2023). Source: Vaswani et al. 2017, §3.2.2.

    Call it as `module(query, key=None, value=None)`, query [*B, T, Dq], key [*B, S, Dk], value
    [*B, S, Dv] (key=None: self-attention; value=None: the keys). It returns [*B, T, out_features],
    with `return_weights=True` also the weights [*B, N, T, S]. Applied with
    `mutable=["intermediates"]` it sows them as "attention_weights".

    Decoding: initialize with `decode=True` and inputs as long as the cache should be; then apply
    with `decode=True, mutable=["cache"]` to the next tokens, one or many at a time, and with the
    mask and bias of the whole sequence, as in training. The result is that of the causal forward
    over the whole sequence; past the end of the cache it is NaN. With `routes.LSH` a token costs
    O(rounds · chunk_size); see `LSH.decode` for what it needs.

    With `key=` (encoder–decoder attention) the keys do not grow: the first call, applied with
    `mutable=["cache", "static"]`, projects them and keeps what it made in the collection "static";
    later calls read that, and look at `key` and `value` no more. `init` makes no "static".

    A module has one cache and one source. Layers that share parameters have caches of their own by
    `nn.scan` with `variable_broadcast="params"` and `variable_axes={"cache": 0, "static": 0}`.

    The module is causal where the mask has `masks.Causal()` or the route hides the future, as
    `routes.Window(left, 0)` does, and where it decodes self-attention.
    Queries stand where the mask says, from its `q_offset` on: rows 3, 4, … of the causal forward
    are `module(x[:, 3:], x, mask=masks.Causal(3))`, with rotary, biases of positions, windows too.

        >>> import jax, jax.numpy as jnp
        >>> mha = MultiHeadAttention(num_heads=2)
        >>> x = jnp.ones((1, 5, 8))
        >>> variables = mha.init(jax.random.key(0), x, decode=True)
        >>> step = jax.jit(lambda v, x: mha.apply(v, x, decode=True, mutable=["cache"]))
        >>> y, updated = step(variables, x[:, :3])  # a prompt of three tokens at once
        >>> y, updated = step({**variables, **updated}, x[:, 3:4])
        >>> y.shape
        (1, 1, 8)

    The keywords of `AttentionModule` (dropout_rate, dtype, …) belong to it too.

    Attributes:
      num_heads: number of query heads, N.
      num_kv_heads: number of key/value heads, K, a divisor of N; None = N.
      qkv_features: width of all heads of the queries together, a multiple of N; None = width of the
        query.
      value_features: width of N heads of the values together, a multiple of N; None = qkv_features.
      out_features: width of the result; None = width of the query.
      score: a module of `attnlab.modules.scores`, or a value of `attnlab.scores`, with nothing to
        learn; None = `scores.Dot()`, the scaled dot product.
      route: a value of `attnlab.routes`, such as `Window(...)`, `LSH(...)` or `Hard(...)`. LSH
        shares one projection between queries and keys unless told otherwise; its rotations come
        from the "hash" rng stream if there is one, else from its seed. With `centering="learned"`
        it keeps a center in the collection "hash_stats", which moves where that is mutable, unless
        `deterministic` or decoding. Hard samples from the "sample" rng stream unless
        `deterministic` or decoding, and sows `log_prob` and `entropy`, [*B, T, N], where the
        collection "choice" is mutable.
      normalize_qk: whether to RMS-normalize queries and keys in each head, with a learned scale of
        each of the H entries, the same for all heads. Henry et al. 2020 take the L2 norm, and one
        learned factor of the logits in place of 1/√H: `CosineScore`, with a factor for each head.
      rotary: whether to turn queries and keys by their positions (`positions.rotary`), or a number,
        its `max_wavelength`; a route that hashes does so after the turn, unless told otherwise.
      position_bias: module that makes a bias of the distance, such as `AlibiBias()`; None = the
        logits get what the call gives as `bias=`. Where the mask's q_offset is an argument of
        `jit`, queries that stand behind all keys get NaN.
      use_bias: whether the projections have biases.
    """

    num_heads: int
    _: dataclasses.KW_ONLY
    num_kv_heads: int | None = None
    qkv_features: int | None = None
    value_features: int | None = None
    out_features: int | None = None
    score: nn.Module | Score | None = None
    route: Route = AllPairs()
    normalize_qk: bool = False
    rotary: bool | float = False
    position_bias: nn.Module | None = None
    use_bias: bool = True

    @overload
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        decode: bool = False,
        return_weights: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> jax.Array: ...

    @overload
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        decode: bool = False,
        return_weights: Literal[True],
        **options: Unpack[CallOptions],
    ) -> tuple[jax.Array, jax.Array]: ...

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: masks.Mask | jax.Array | None = None,
        bias: Bias | jax.Array | None = None,
        deterministic: bool | None = None,
        decode: bool = False,
        return_weights: bool = False,
    ):
        """The result [*B, T, out_features]; see the class for shapes and decoding."""
        cross, deterministic = key is not None, self.is_deterministic(deterministic)
        self._require_route(cross=cross, decode=decode)
        mask = self.make_mask(mask)
        query, key, value = as_query_key_value(self, query, key, value)
        q_offset = tokens_before(self, query.shape[-2]) if decode else 0
        dropout = dropout_options(self, deterministic)
        q, k, v = self._project_heads(query, key, value, cross=cross, keep=cross and decode)
        training = not decode and not deterministic
        hashing = hash_options(self, self.route, q, mask, training=training)
        uses_positions = self.rotary is not False or self.route.by_position
        position = q_offset + (masks.first_position(mask) if uses_positions else 0)
        q = self._turn(q, position)
        k = k if cross else self._turn(k, q_offset)
        if decode and not cross:
            k, v = append_to_cache(self, q_offset, k, v)
        if self.position_bias is not None:
            bias = self._bias_of_positions(bias, mask, q, k, decode=decode, cross=cross)
        route = self.make_route(q, k)
        attend, sampling = sample_route(self, route, deterministic, decode=decode)
        if decode and isinstance(route, StatefulRoute):
            attend = functools.partial(decode_with_state, self, route)
        elif decode:
            mask, bias = cut_to_queries(mask, bias, q_offset, q, k, causal=not cross)

        score = Dot() if self.score is None else self.score(q, k)
        options = {"mask": mask, "bias": bias, "precision": self.precision, **sampling}
        if decode:
            options["q_offset"] = position
        context = attend(score, q, k, v, **options, **dropout, **hashing)
        if decode and not cross:
            fits = q_offset + q.shape[-3] <= k.shape[-3]
            context = jnp.where(fits, context, jnp.nan)
        out = nn.DenseGeneral(
            self.out_features or query.shape[-1],
            axis=(-2, -1),
            kernel_init=name_axes(self, self.kernel_init, "heads", "head_dim", "embed"),
            name="out",
            **self._dense_options(),
        )(context)
        sows = self.is_mutable_collection("intermediates") and route.sows_weights
        if not return_weights and not sows:
            return out
        weights = route.weights(score, q, k, **options, **hashing)
        self.sow("intermediates", "attention_weights", weights)
        return (out, weights) if return_weights else out

    @nn.nowrap
    def make_mask(self, mask: masks.Mask | jax.Array | None) -> masks.Mask | jax.Array | None:
        """The mask that is attended with, that of the call; a subclass may hide more."""
        return mask

    @nn.nowrap
    def make_route(self, q: jax.Array, k: jax.Array) -> Route:
        """The route that is called, `route`; a subclass may make it, with parameters of its own.

        Args:
          q: queries [*B, T, N, H], as the route is called with.
          k: keys [*B, S, K, H].

        Returns:
          A route whose members are those of `route`, but for `sows_weights` and `weights`.
        """
        del q, k
        return self.route

    @nn.nowrap
    def _require_route(self, *, cross: bool, decode: bool) -> None:
        name = type(self.route).__name__
        wanted = "a value, such as routes.LSH(num_hashes=4)"
        require_instance("route", self.route, isinstance(self.route, Route), wanted)
        require(
            not cross or not self.route.shares_qk,
            f"{name} shares queries and keys, so it is self-attention; got key= (leave it out)",
        )
        if cross and decode and isinstance(self.route, StatefulRoute):
            raise NotImplementedError(
                f"{name} decodes self-attention only; got key= with decode=True (use AllPairs)"
            )

    def _bias_of_positions(
        self, bias, mask, q: jax.Array, k: jax.Array, *, decode: bool, cross: bool
    ) -> Bias:
        """What `position_bias` makes; while decoding, of the whole sequence."""
        require(
            bias is None,
            "logits take the call's bias or that of position_bias; got both (make one of them)",
        )
        if decode and cross:
            raise NotImplementedError(
                "position_bias does not know how long the queries of another sequence will be; got"
                " key= with decode=True (give the whole sequence's bias= to the call)"
            )
        mask, num_keys = masks.as_mask(mask), k.shape[-3]
        causal = decode or self.route.hides_future or (mask is not None and mask.hides_future)
        num_queries = num_keys if decode else q.shape[-3]
        first = masks.first_position(mask)
        known = as_int(first)
        if np.ndim(first) > 0 or (known or 0) < 0:
            raise NotImplementedError(
                "position_bias takes queries that begin at one position ≥ 0 in all examples; got"
                f" {f'shape {np.shape(first)}' if known is None else known} (give the call bias=)"
            )
        make: Any = self.position_bias
        rows = num_queries + (num_keys if known is None else known)
        made: Any = as_bias(make(self.num_heads, rows, num_keys, causal=causal))
        name = type(make).__name__
        require(made is not None, f"{name} must return a bias; got None (does it say return?)")
        # Small types of an offset do not hold the number of rows.
        first = jnp.asarray(first, jnp.int32) if known is None else known
        return made.for_queries(first, num_queries, num_keys) if known != 0 else made

    def _project_heads(
        self, query: jax.Array, key: jax.Array, value: jax.Array, *, cross: bool, keep: bool
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The heads of queries [*B, T, N, H], keys [*B, S, K, H] and values [*B, S, K, D].

        Args:
          query: query of the call, [*B, T, Dq].
          key: key of the call, [*B, S, Dk]; looked at unless the route shares queries and keys.
          value: value of the call, [*B, S, Dv].
          cross: whether they are of another sequence, where keys are turned at once.
          keep: whether keys and values are kept as "static", and read from there if they are there.
        """
        width, value_width = self._widths(query.shape[-1])
        num_kv_heads = self.num_kv_heads or self.num_heads

        def keys_and_values():
            k = self._normalize(self._project(key, num_kv_heads, width, "key"), "key_norm")
            v = self._project(value, num_kv_heads, value_width, "value")
            return self._turn(k, 0) if cross else k, v

        name = "query_key" if self.route.shares_qk else "query"
        q = self._normalize(self._project(query, self.num_heads, width, name), f"{name}_norm")
        if self.route.shares_qk:
            return q, q, self._project(value, num_kv_heads, value_width, "value")
        return q, *(keep_static(self, keys_and_values) if keep else keys_and_values())

    @nn.nowrap
    def _widths(self, query_width: int) -> tuple[int, int]:
        """The widths of a head of queries and keys, and of a head of values: H, D."""
        features = self.qkv_features or query_width
        value_features = self.value_features or features
        for name, size in (("qkv_features", features), ("value_features", value_features)):
            require(
                size % self.num_heads == 0,
                f"{name} must be a multiple of num_heads; got {size} and {self.num_heads}",
            )
        return features // self.num_heads, value_features // self.num_heads

    def _project(self, x: jax.Array, num_heads: int, width: int, name: str) -> jax.Array:
        """x projected to heads [*B, L, num_heads, width]."""
        return nn.DenseGeneral(
            (num_heads, width),
            kernel_init=name_axes(self, self.kernel_init, "embed", "heads", "head_dim"),
            name=name,
            **self._dense_options(),
        )(x)

    def _turn(self, x: jax.Array, offset: ArrayLike) -> jax.Array:
        """x turned by its positions, the first of which is the offset, where the module does so."""
        if self.rotary is False:
            return x
        offset = jnp.asarray(offset)[..., None]
        places = offset + lead_with_ones(jnp.arange(x.shape[-3]), offset.ndim)
        if self.rotary is True:
            return positions.rotary(x, places)
        return positions.rotary(x, places, max_wavelength=as_number("rotary", self.rotary))

    def _normalize(self, x: jax.Array, name: str) -> jax.Array:
        if not self.normalize_qk:
            return x
        return nn.RMSNorm(dtype=self.dtype, param_dtype=self.param_dtype, name=name)(x)

    @nn.nowrap
    def _dense_options(self) -> dict[str, Any]:
        return {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "precision": self.precision,
        }
