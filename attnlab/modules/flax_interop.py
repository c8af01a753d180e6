"""attnlab's attention inside Flax's own multi-head modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from attnlab import masks
from attnlab.biases import Bias
from attnlab.core.checks import require_instance
from attnlab.ops.dropout import OnePattern
from attnlab.ops.routes import AllPairs, Function, Route, SamplingRoute, StatefulRoute
from attnlab.scores import Dot, Score, require_score


def as_flax_attention_fn(
    score: Score | None = None, route: Route | None = None
) -> Callable[..., jax.Array]:
    """A function for `attention_fn=` of `flax.linen` and `flax.nnx` multi-head modules.

    The module's `mask=` may then be lazy too, `masks.Causal() & masks.Padding(lengths)` say; not
    with Flax's `decode=True`, which is causal anyway and combines arrays.

    Args:
      score: a value of `attnlab.scores`; None = scaled dot product.
      route: a value of `attnlab.routes`; None = all pairs. `routes.LSH` takes `shared_qk=False`:
        Flax's modules project queries and keys apart.

    Returns:
      A function of query [*B, T, N, H], key, value [*B, S, N, H] and the keywords that Flax
      passes: Linen those it finds by name in the signature, so none is lost; NNX nine, always. It
      drops weights and sows them as Flax does, `broadcast_dropout=True` being one pattern for all
      examples and heads, with other random bits than Flax's. It is equal to another of an equal
      score and route, as modules with it are.

    Raises:
      ValueError: for a score or route that is none.
      NotImplementedError: for a route that shares queries and keys, or samples; when called, for
        einsums of the caller's, and for a window or LSH where Flax decodes.

    Example:
      >>> import flax.linen as nn, jax, jax.numpy as jnp
      >>> from attnlab import as_flax_attention_fn, masks, routes
      >>> lsh = as_flax_attention_fn(route=routes.LSH(shared_qk=False))
      >>> mha = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=lsh)
      >>> y, _ = mha.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)), mask=masks.Causal())
      >>> y.shape
      (1, 5, 8)
    """
    score = Dot() if score is None else score
    route = AllPairs() if route is None else route
    require_score(score)
    wanted = "a value, such as routes.LSH(shared_qk=False)"
    require_instance("route", route, isinstance(route, Route), wanted)
    if route.shares_qk:
        raise NotImplementedError(
            f"{type(route).__name__} shares queries and keys, which Flax's modules project apart; "
            "use routes.LSH(shared_qk=False), or attnlab.LSHSelfAttention"
        )
    if isinstance(route, SamplingRoute):
        raise NotImplementedError(
            f"{type(route).__name__} draws from a stream of random numbers, which Flax's modules do"
            " not pass; use attnlab.MultiHeadAttention"
        )
    return _AttentionFn(score, route)


class _AttentionFn:
    """Equal where score and route are, so that modules that hold it are: jit looks them up.

    No dataclass, into whose fields `nn.jit` would look for its own hash.
    """

    def __init__(self, score: Score, route: Route):
        self.score, self.route = score, route

    def __repr__(self) -> str:
        return f"as_flax_attention_fn({self.score}, {self.route})"

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: Bias | jax.Array | None = None,
        mask: masks.Mask | jax.Array | None = None,
        broadcast_dropout: bool = False,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: Any = None,
        is_causal: bool = False,
        qk_attn_weights_einsum: object | None = None,
        attn_weights_value_einsum: object | None = None,
    ) -> jax.Array:
        options: dict[str, Any] = {"bias": bias, "precision": precision}
        if not (qk_attn_weights_einsum is None and attn_weights_value_einsum is None):
            raise NotImplementedError(
                "attnlab has an einsum of its own; got qk_attn_weights_einsum or "
                "attn_weights_value_einsum (leave the Flax module's ..._einsum_cls unset)"
            )
        lengths = query.shape[-3], key.shape[-3]
        # Flax always has a mask while it decodes; a single query without one pools.
        may_ask = isinstance(self.route, Function) and mask is not None
        has_places = isinstance(self.route, StatefulRoute) or may_ask
        decodes = has_places and lengths[0] == 1 < lengths[1]
        if decodes or (self.route.by_position and lengths[0] != lengths[1]):
            raise NotImplementedError(
                "Flax does not say where its queries stand, so a window needs one query a key, and "
                f"LSH or a function more than one query; got {lengths[0]} queries and {lengths[1]}"
                " keys (decode with attnlab.MultiHeadAttention)"
            )
        if not (mask is None or isinstance(mask, masks.Mask | str | type)):
            mask = jnp.asarray(mask) != 0  # Flax's own masks are floats of 0 and 1
        visible = masks.combine(masks.Causal() if is_causal else None, mask)
        query, key, value = promote_dtype(query, key, value, dtype=dtype)
        if module is not None:  # Flax's sow_weights=True: they are dense, and not yet dropped
            weights = self.route.weights(self.score, query, key, mask=visible, **options)
            module.sow("intermediates", "attention_weights", weights)  # Linen's and NNX's name
        if dropout_rate > 0.0 and not deterministic:
            dropout_key: Any = dropout_rng
            if broadcast_dropout and dropout_rng is not None:
                dropout_key = OnePattern(dropout_rng)
            options |= {"dropout_rate": dropout_rate, "dropout_key": dropout_key}
        return self.route(self.score, query, key, value, mask=visible, **options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AttentionFn) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def _value(self) -> tuple[object, object]:
        """A score or a route that holds arrays, which have no hash, is equal to itself alone."""

        def value(x: object) -> object:
            try:
                hash(x)
            except TypeError:
                return id(x)
            return x

        return value(self.score), value(self.route)
