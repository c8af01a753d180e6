"""Multi-head attention for Linen and NNX alike: what is checked, named and computed."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from attnlab import masks, positions
from attnlab.biases import Bias, as_bias
from attnlab.core.axes import lead_with_ones
from attnlab.core.checks import as_int, as_number, require, require_choice, require_instance
from attnlab.modules.cache import (
    append_to_cache,
    cut_to_queries,
    decode_with_state,
    keep_static,
    tokens_before,
)
from attnlab.modules.conventions import (
    AttentionBase,
    Host,
    Initializer,
    Projection,
    as_query_key_value,
    dropout_options,
    hook,
    read_mask,
)
from attnlab.modules.hash_stats import hash_options
from attnlab.modules.sampling import sample_route
from attnlab.ops.dropout import OnePattern
from attnlab.ops.routes import LSH, Route, StatefulRoute
from attnlab.scores import Dot


class MultiHead(AttentionBase):
    """The computation of `MultiHeadAttention`, whose fields it reads."""

    num_heads: int
    num_kv_heads: int | None
    qkv_features: int | None
    value_features: int | None
    out_features: int | None
    score: Any
    route: Route
    normalize_qk: bool
    rotary: bool | float
    position_bias: Any
    use_bias: bool
    kernel_init: Initializer
    bias_init: Initializer
    out_kernel_init: Initializer | None
    out_bias_init: Initializer | None
    broadcast_dropout: bool
    force_fp32_for_softmax: bool
    decode: bool
    precision: Any

    def _attend(
        self,
        host: Host,
        query: jax.Array,
        key: jax.Array | None,
        value: jax.Array | None,
        *,
        mask: masks.Mask | jax.Array | None,
        bias: Bias | jax.Array | None,
        deterministic: bool | None,
        decode: bool | None,
        return_weights: bool,
        sow_weights: bool | None = None,
        is_causal: bool = False,
        dropout_rng: jax.Array | None = None,
    ) -> Any:
        """The result of a call, [*B, T, out_features], or it and the weights."""
        if key is query and (value is None or value is query):  # Flax's way to say self-attention
            key = value = None
        cross, deterministic = key is not None, self._is_deterministic(deterministic)
        decode = self.decode if decode is None else decode
        self._require_route(cross=cross, decode=decode)
        mask, fits = read_mask(mask)
        mask = masks.combine(masks.Causal() if is_causal else None, self.make_mask(mask))
        query, key, value = as_query_key_value(self, query, key, value)
        q_offset = tokens_before(host, query.shape[-2]) if decode else 0
        dropout = dropout_options(self, host, deterministic, key=dropout_rng)
        if dropout and self.broadcast_dropout:
            dropout["dropout_key"] = OnePattern(dropout["dropout_key"])
        layers = self._projections(query.shape[-1], key.shape[-1], value.shape[-1])

        def project(name: str, x: jax.Array) -> jax.Array:  # to heads, [*B, L, N or K, H]
            x = host.apply_linear(name, layers[name], x)
            norm = self._norm_of(name)
            return x if norm is None else host.apply_norm(norm, x)

        def keys_and_values() -> tuple[jax.Array, jax.Array]:
            k = project("key", key)
            return self._turn(k, 0) if cross else k, project("value", value)

        if self.route.shares_qk:
            q = k = project("query_key", query)
            v = project("value", value)
        else:
            q = project("query", query)
            k, v = keep_static(host, keys_and_values) if cross and decode else keys_and_values()
        training = not decode and not deterministic
        hashing = hash_options(host, self.route, q, mask, training=training, decode=decode)
        uses_positions = self.rotary is not False or self.route.by_position
        position = q_offset + (masks.first_position(mask) if uses_positions else 0)
        q = self._turn(q, position)
        k = k if cross else self._turn(k, q_offset)
        if decode and not cross:
            k, v = append_to_cache(host, q_offset, k, v)
        if self.position_bias is not None:
            bias = self._bias_of_positions(bias, mask, q, k, decode=decode, cross=cross)
        route = self.make_route(q, k)
        call, sampling = sample_route(self, host, route, deterministic, decode=decode)
        if decode and isinstance(route, StatefulRoute):
            call = functools.partial(decode_with_state, host, route)
        elif decode:
            mask, bias = cut_to_queries(mask, bias, q_offset, q, k, causal=not cross)

        score = Dot() if self.score is None else self.score(q, k)
        options = {"mask": mask, "bias": bias, "precision": self.precision, **sampling}
        if decode:
            options["q_offset"] = position
        context = call(score, q, k, v, **options, **dropout, **hashing)
        if decode and not cross:
            fits = jnp.logical_and(fits, q_offset + q.shape[-3] <= k.shape[-3])
        if fits is not True:
            context = jnp.where(fits, context, jnp.nan)
        out = host.apply_linear("out", layers["out"], context)
        looked_at = sow_weights is not False and host.is_mutable_collection("intermediates")
        sows = looked_at and route.sows_weights
        if not return_weights and not sows:
            return out
        weights = route.weights(score, q, k, **options, **hashing)
        if fits is not True:
            weights = jnp.where(fits, weights, jnp.nan)
        if not self.force_fp32_for_softmax:
            weights = weights.astype(q.dtype)
        if sows:
            host.sow("intermediates", "attention_weights", weights)
        return (out, weights) if return_weights else out

    def _projections(
        self, query_width: int, key_width: int, value_width: int
    ) -> dict[str, Projection]:
        """The linear maps by their names, for inputs of these widths: Dq, Dk, Dv."""
        width, width_of_values = self._head_widths(query_width)
        num_kv_heads = self.num_kv_heads or self.num_heads

        bias_init = self.bias_init if self.use_bias else None

        def to_heads(inputs: int, num_heads: int, width: int) -> Projection:
            axes = "embed", "heads", "head_dim"
            return Projection((inputs,), (num_heads, width), axes, self.kernel_init, bias_init)

        if self.route.shares_qk:
            made = {"query_key": to_heads(query_width, self.num_heads, width)}
        else:
            made = {
                "query": to_heads(query_width, self.num_heads, width),
                "key": to_heads(key_width, num_kv_heads, width),
            }
        made["value"] = to_heads(value_width, num_kv_heads, width_of_values)
        made["out"] = Projection(
            (self.num_heads, width_of_values),
            (self.out_features or query_width,),
            ("heads", "head_dim", "embed"),
            self.out_kernel_init or self.kernel_init,
            bias_init and (self.out_bias_init or bias_init),
        )
        return made

    def _norm_of(self, name: str) -> str | None:
        """The name of the norm that follows a projection; None = none does."""
        return f"{name}_norm" if self.normalize_qk and name not in ("value", "out") else None

    def _head_widths(self, query_width: int) -> tuple[int, int]:
        """The widths of a head of queries and keys, and of a head of values: H, D."""
        features = self.qkv_features or query_width
        value_features = self.value_features or features
        for name, size in (("qkv_features", features), ("value_features", value_features)):
            require(
                size % self.num_heads == 0,
                f"{name} must be a multiple of num_heads; got {size} and {self.num_heads}",
            )
        return features // self.num_heads, value_features // self.num_heads

    @hook
    def make_mask(self, mask: masks.Mask | jax.Array | None) -> masks.Mask | jax.Array | None:
        """The mask that is attended with, that of the call; a subclass may hide more."""
        return mask

    @hook
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

    def _require_route(self, *, cross: bool, decode: bool) -> None:
        """Refuses a route that is none, or cannot do what the call asks for."""
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
        by_route = self.route.hides_future
        by_mask = mask is not None and mask.hides_future
        causal: bool | None = bool(decode or by_route or by_mask)
        if not causal and None in (by_route, by_mask):
            causal = None  # not known
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

    def _turn(self, x: jax.Array, offset: ArrayLike) -> jax.Array:
        """x turned by its positions, the first of which is the offset, where the module does so."""
        if self.rotary is False:
            return x
        offset = jnp.asarray(offset)[..., None]
        places = offset + lead_with_ones(jnp.arange(x.shape[-3]), offset.ndim)
        if self.rotary is True:
            return positions.rotary(x, places)
        return positions.rotary(x, places, max_wavelength=as_number("rotary", self.rotary))


class SelfHashed(MultiHead):
    """The computation of `LSHSelfAttention`, whose fields it reads."""

    causal: bool

    @hook
    def make_mask(self, mask: masks.Mask | jax.Array | None) -> masks.Mask | jax.Array | None:
        """The mask of the call, and what follows a token hidden where `causal`."""
        return masks.combine(masks.Causal(), mask) if self.causal else mask

    def _require_route(self, *, cross: bool, decode: bool) -> None:
        """Refuses what does not hash, other keys, and decoding where the future is seen."""
        require_choice("causal", self.causal, (True, False))
        require(
            self.causal or not decode,
            "decode=True needs causal=True: a token is computed before the next is known; got"
            " causal=False",
        )
        wanted, remedy = "a routes.LSH", " (MultiHeadAttention takes any route)"
        require_instance("route", self.route, isinstance(self.route, LSH), wanted, remedy)
        require(
            not cross,
            "LSHSelfAttention attends within one sequence; got key= (use MultiHeadAttention)",
        )
        super()._require_route(cross=cross, decode=decode)
