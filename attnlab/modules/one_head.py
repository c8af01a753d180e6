"""The published single-head mechanisms for Linen and NNX alike: what is checked and computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.core.axes import lead_with_ones
from attnlab.core.checks import as_array, require, require_instance
from attnlab.core.shapes import fit
from attnlab.modules.conventions import (
    AttentionBase,
    Host,
    Initializer,
    Projection,
    as_query_key_value,
    dropout_options,
    name_axes,
)
from attnlab.modules.sampling import sample_route
from attnlab.modules.scores import AdditiveScore, ConcatScore, GeneralScore, LocationScore
from attnlab.ops.attention import Implementation
from attnlab.ops.local import local_attention
from attnlab.ops.routes import AllPairs, Exact, Route


class OneHead(AttentionBase):
    """The computation of the single-head modules, whose fields it reads."""

    route: Route
    implementation: Implementation
    precision: Any
    param_dtype: Any
    kernel_init: Initializer

    def _attend(
        self,
        host: Host,
        query: jax.Array,
        key: jax.Array | None,
        value: jax.Array | None,
        *,
        mask: Any,
        bias: Any,
        deterministic: bool | None,
        return_weights: bool,
    ) -> Any:
        """The context of a call, [*B, T, Dv], or it and the weights."""
        route, deterministic = self._route(), self._is_deterministic(deterministic)
        query, key, value = as_query_key_value(self, query, key, value)
        layers = self._projections(query.shape[-1], key.shape[-1])
        if layers:
            query = host.apply_linear("query", layers["query"], query)
            key = host.apply_linear("key", layers["key"], key)
        q = query[..., None, :]
        k = key[..., None, :]
        v = value[..., None, :]
        score = host.own_child("score", self._own_score)(q, k)
        call, sampling = sample_route(self, host, route, deterministic)
        options = {"mask": mask, "bias": bias, "precision": self.precision, **sampling}
        dropout = dropout_options(self, host, deterministic)
        context = call(score, q, k, v, **options, **dropout)[..., 0, :]
        sows = host.is_mutable_collection("intermediates") and route.sows_weights
        if not return_weights and not sows:
            return context
        weights = route.weights(score, q, k, **options)[..., 0, :, :]
        if sows:
            host.sow("intermediates", "attention_weights", weights)
        return (context, weights) if return_weights else context

    def _projections(self, query_width: int, key_width: int) -> dict[str, Projection]:
        """The linear maps of queries and keys by their names; none where these meet as they are."""
        del query_width, key_width
        return {}

    def _own_score(self, **named: Any) -> Any:
        """The score, or the Linen module that makes it and its parameters."""
        raise NotImplementedError

    def _route(self) -> Route:
        wanted = "a value that does not hash, such as routes.Hard()"
        require_instance("route", self.route, isinstance(self.route, Exact), wanted)
        if self.implementation is None:
            return self.route
        require(
            self.route == AllPairs(),
            f"implementation= is that of all pairs; got {self.implementation!r} and a route,"
            f" {type(self.route).__name__} (give it to the route, if that takes one)",
        )
        return AllPairs(self.implementation)


def _meet_at(features: int, widths: tuple[int, int], init: Initializer) -> dict[str, Projection]:
    axes = "embed", "hidden"
    return {
        "query": Projection(widths[:1], (features,), axes, init),
        "key": Projection(widths[1:], (features,), axes, init),
    }


class Additive(OneHead):
    """The computation of `AdditiveAttention`."""

    features: int
    normalize: bool

    def _projections(self, query_width: int, key_width: int) -> dict[str, Projection]:
        """W and U, to the hidden width."""
        return _meet_at(self.features, (query_width, key_width), self.kernel_init)

    def _own_score(self, **named: Any) -> Any:
        """w·tanh(q + k), or its normalized form."""
        return AdditiveScore(self.normalize, param_dtype=self.param_dtype, **named)


class _Multiplied(AttentionBase):
    """A module whose score is a product, of the user's choice."""

    score: Any
    param_dtype: Any

    def _own_score(self, **named: Any) -> Any:
        """The score that was given, or q·W·k."""
        if self.score is not None:
            return self.score
        return GeneralScore(param_dtype=self.param_dtype, **named)


class Multiplicative(_Multiplied, OneHead):
    """The computation of `MultiplicativeAttention`."""

    features: int | None

    def _projections(self, query_width: int, key_width: int) -> dict[str, Projection]:
        """Maps to `features`, where there are some."""
        if self.features is None:
            return {}
        return _meet_at(self.features, (query_width, key_width), self.kernel_init)


class Concat(OneHead):
    """The computation of `ConcatAttention`."""

    features: int | None

    def _own_score(self, **named: Any) -> Any:
        """w·tanh(W [q; k])."""
        kernel_init = name_axes(self, self.kernel_init, None, "embed", "hidden")
        return ConcatScore(self.features, kernel_init, self.param_dtype, **named)


class Location(OneHead):
    """The computation of `LocationAttention`."""

    max_length: int

    def _own_score(self, **named: Any) -> Any:
        """W q, whatever the keys."""
        kernel_init = name_axes(self, self.kernel_init, None, "embed", None)
        return LocationScore(self.max_length, kernel_init, self.param_dtype, **named)


class Local(_Multiplied):
    """The computation of `LocalAttention`, whose fields it reads."""

    predictive: bool
    half_width: int
    features: int | None
    precision: Any
    kernel_init: Initializer

    def _attend(
        self,
        host: Host,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array | None,
        *,
        mask: Any,
        steps: jax.Array | None,
        deterministic: bool | None,
        return_weights: bool,
    ) -> Any:
        """The context of a call, [*B, T, Dv], or it and the weights."""
        query, key, value = as_query_key_value(self, query, key, value)
        deterministic = self._is_deterministic(deterministic)
        require(
            self.predictive or self.features is None,
            f"features are hidden units of local-p's centers, and predictive=False predicts none;"
            f" got features={self.features} (leave it out)",
        )
        if self.predictive:
            centers = self._predict_centers(host, query, key.shape[-2], mask)
        else:
            if steps is None:
                first = jnp.asarray(masks.first_position(mask))[..., None]
                steps = first + lead_with_ones(jnp.arange(query.shape[-2]), first.ndim)
            steps = as_array("steps", steps)
            fit("query: *B T D", query, "steps: *B|1 T|1", steps)
            steps = lead_with_ones(steps, query.ndim - 1)
            centers = jnp.broadcast_to(steps, query.shape[:-1])
        q = query[..., None, :]
        k = key[..., None, :]
        v = value[..., None, :]
        looked_at = return_weights or host.is_mutable_collection("intermediates")
        outputs: Any = local_attention(
            q,
            k,
            v,
            centers,
            half_width=self.half_width,
            score=host.own_child("score", self._own_score)(q, k),
            gaussian=self.predictive,
            mask=mask,
            precision=self.precision,
            return_weights=looked_at,
            **dropout_options(self, host, deterministic),
        )
        if not looked_at:
            return outputs[..., 0, :]
        context, weights = outputs[0][..., 0, :], outputs[1][..., 0, :, :]
        if host.is_mutable_collection("intermediates"):
            host.sow("intermediates", "attention_weights", weights)
        return (context, weights) if return_weights else context

    def _projections(self, query_width: int, key_width: int) -> dict[str, Projection]:
        """The two maps that predict a center."""
        del key_width
        if not self.predictive:
            return {}
        features, init = self.features or query_width, self.kernel_init
        return {
            "center_hidden": Projection((query_width,), (features,), ("embed", "hidden"), init),
            "center": Projection((features,), (1,), ("hidden", None), init),
        }

    def _predict_centers(self, host: Host, query, num_keys: int, mask: Any) -> jax.Array:
        """S·sigmoid(v·tanh(W query)), [*B, T], at least float32."""
        layers = self._projections(query.shape[-1], query.shape[-1])
        hidden = jnp.tanh(host.apply_linear("center_hidden", layers["center_hidden"], query))
        logit = host.apply_linear("center", layers["center"], hidden)[..., 0]
        logit = logit.astype(jnp.promote_types(logit.dtype, jnp.float32))
        num_real, mask = jnp.asarray(num_keys), masks.as_mask(mask)
        for part in () if mask is None else mask.parts():
            if part.lengths is not None:
                name, lengths = "Padding.kv_lengths", jnp.asarray(part.lengths.kv_lengths)
            elif part.keys is not None:  # [*B, S] to the place behind the last key that is seen
                places = jnp.where(part.keys, jnp.arange(1, num_keys + 1), 0)
                name, lengths = "a mask of keys", places.max(-1)
            else:
                continue
            fit(f"{name}: *B|1", lengths, B=logit.shape[:-1])
            lengths = lead_with_ones(lengths[..., None], logit.ndim)
            num_real = jnp.minimum(num_real, lengths)
        return num_real * jax.nn.sigmoid(logit)
