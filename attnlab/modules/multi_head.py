"""Multi-head attention that hosts any score and any route, with a key/value cache for decoding."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import masks, positions
from attnlab.checks import require
from attnlab.modules.conventions import (
    Initializer,
    as_query_key_value,
    dropout_options,
    lecun_normal,
    partitioned,
)
from attnlab.modules.scores import DotScore
from attnlab.ops.routes import AllPairs, Route

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Concat(head_1 … head_N) W^O, head_n = attention(query W_n^Q, key W_n^K, value W_n^V).

    The score and the route are values: scaled dot over all pairs unless told otherwise. With
    `num_kv_heads` < `num_heads` query head n shares the keys and values of head
    n // (num_heads / num_kv_heads) (Ainslie et al. 2023). Source: Vaswani et al. 2017, §3.2.2.

    Call it as `module(query, key=None, value=None)`, query [*B, T, Dq], key [*B, S, Dk], value
    [*B, S, Dv] (key=None: self-attention; value=None: the keys). It returns [*B, T, out_features],
    with `return_weights=True` also the weights [*B, N, T, S]. Applied with
    `mutable=["intermediates"]` it sows them as "attention_weights".

    Decoding: initialise with `decode=True` and inputs as long as the cache should be; then apply
    with `decode=True, mutable=["cache"]` to the next tokens, one or many at a time, and with the
    mask and bias of the whole sequence, as in training. The result is that of the causal forward
    over the whole sequence; past the end of the cache it is NaN.

        >>> import jax, jax.numpy as jnp
        >>> mha = MultiHeadAttention(num_heads=2)
        >>> x = jnp.ones((1, 5, 8))
        >>> variables = mha.init(jax.random.key(0), x, decode=True)
        >>> step = jax.jit(lambda v, x: mha.apply(v, x, decode=True, mutable=["cache"]))
        >>> y, updated = step(variables, x[:, :3])  # a prompt of three tokens at once
        >>> y, updated = step({**variables, **updated}, x[:, 3:4])
        >>> y.shape
        (1, 1, 8)

    Attributes:
      num_heads: N.
      num_kv_heads: K, a divisor of N; None = N.
      qkv_features: width of all heads together, a multiple of N; None = width of the query.
      out_features: width of the result; None = width of the query.
      score: a module of `attnlab.modules.scores`; None = `DotScore()`, the scaled dot product.
      route: `routes.AllPairs()`, `routes.Window(...)` or `routes.LSH(...)`. LSH shares one
        projection between queries and keys; its rotations come from the "hash" rng stream if there
        is one, else from its seed.
      normalize_qk: RMS-normalise queries and keys a head, with a learned scale (Henry et al. 2020).
      rotary: turn queries and keys by their positions (`positions.rotary`).
      use_bias: in the projections.
      dropout_rate: on the weights; the "dropout" rng stream.
      dtype: of the computation; None = that of inputs and parameters.
      param_dtype: of the parameters.
      precision: of the matrix products.
      kernel_init: for all projections.
      logical_axes: name the axes of the kernels ("embed", "heads", "head_dim") for partitioning.
    """

    num_heads: int
    num_kv_heads: int | None = None
    qkv_features: int | None = None
    out_features: int | None = None
    score: nn.Module | None = None
    route: Route = AllPairs()
    normalize_qk: bool = False
    rotary: bool = False
    use_bias: bool = True
    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = lecun_normal
    logical_axes: bool = False

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: masks.Mask | jax.Array | None = None,
        bias: jax.Array | None = None,
        deterministic: bool | None = None,
        decode: bool = False,
        return_weights: bool = False,
    ):
        """The result [*B, T, out_features]; see the class for shapes and decoding."""
        require(
            not decode or key is None,
            "decode=True caches the keys of self-attention; got key= (leave it out)",
        )
        require(
            key is None or not self.route.shares_qk,
            f"{type(self.route).__name__} shares queries and keys, so it is self-attention; "
            "got key= (leave it out)",
        )
        out_features = self.out_features or query.shape[-1]
        query, key, value = as_query_key_value(self, query, key, value)
        q, k, v = self._project(query, key, value)
        index = self._cache_index() if decode else None
        q_offset = 0 if index is None else index.value
        if self.rotary:
            q_positions = q_offset + jnp.arange(q.shape[-3])
            k_positions = q_positions if decode else jnp.arange(k.shape[-3])
            q, k = positions.rotary(q, q_positions), positions.rotary(k, k_positions)
        if decode:
            k, v = self._update_cache(index, k, v)
            mask, bias = _cut_to_queries(mask, bias, q_offset, q.shape[-3])
            mask = masks.combine(masks.Causal(q_offset), mask)

        score = DotScore()(q, k) if self.score is None else self.score(q, k)
        options: dict[str, Any] = {"mask": mask, "bias": bias, "precision": self.precision}
        if decode:
            options["q_offset"] = q_offset
        extra = dropout_options(self, deterministic)
        if self.route.shares_qk and self.has_rng("hash"):
            extra["hash_key"] = self.make_rng("hash")
        context = self.route(score, q, k, v, **options, **extra)
        if decode:
            fits = q_offset + q.shape[-3] <= k.shape[-3]
            context = jnp.where(fits, context, jnp.nan)
        out = nn.DenseGeneral(
            out_features,
            axis=(-2, -1),
            kernel_init=partitioned(self, self.kernel_init, "heads", "head_dim", "embed"),
            name="out",
            **self._dense_options(),
        )(context)
        # A route without weights to show sows none, so that a whole model can be looked into.
        sows = self.is_mutable_collection("intermediates") and not self.route.shares_qk
        if not return_weights and not sows:
            return out
        weights = self.route.weights(score, q, k, **options)
        self.sow("intermediates", "attention_weights", weights)
        return (out, weights) if return_weights else out

    def _project(self, query, key, value):
        """Heads of queries [*B, T, N, H], keys and values [*B, S, K, H]."""
        features = self.qkv_features or query.shape[-1]
        num_kv_heads = self.num_kv_heads or self.num_heads
        require(
            features % self.num_heads == 0,
            f"qkv_features must be a multiple of num_heads; got {features} and {self.num_heads}",
        )
        require(
            self.num_heads % num_kv_heads == 0,
            "num_heads must be a multiple of num_kv_heads; "
            f"got {self.num_heads} and {num_kv_heads}",
        )

        def project(x, num_heads: int, name: str):
            return nn.DenseGeneral(
                (num_heads, features // self.num_heads),
                kernel_init=partitioned(self, self.kernel_init, "embed", "heads", "head_dim"),
                name=name,
                **self._dense_options(),
            )(x)

        def normalize(x, name: str):
            if not self.normalize_qk:
                return x
            return nn.RMSNorm(dtype=self.dtype, param_dtype=self.param_dtype, name=name)(x)

        v = project(value, num_kv_heads, "value")
        if self.route.shares_qk:
            q = normalize(project(query, self.num_heads, "query_key"), "query_key_norm")
            return q, q, v
        q = normalize(project(query, self.num_heads, "query"), "query_norm")
        k = normalize(project(key, num_kv_heads, "key"), "key_norm")
        return q, k, v

    def _dense_options(self) -> dict[str, Any]:
        return {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "precision": self.precision,
        }

    def _cache_index(self):
        return self.variable("cache", "cache_index", lambda: jnp.zeros((), jnp.int32))

    def _update_cache(self, index, k, v):
        """Writes the new keys and values behind the `index` cached ones; returns all of them."""
        require(
            self.is_initializing() or self.has_variable("cache", "cached_key"),
            "decode=True needs a cache; got none (init with decode=True and inputs as long as the"
            ' cache should be, and apply with mutable=["cache"])',
        )
        cached_k = self.variable("cache", "cached_key", jnp.zeros, k.shape, k.dtype)
        cached_v = self.variable("cache", "cached_value", jnp.zeros, v.shape, v.dtype)
        if self.is_initializing():
            return k, v
        size = cached_k.value.shape[-3]
        require(
            k.shape[-3] <= size,
            f"the cache holds {size} tokens; got {k.shape[-3]} at once (init with longer inputs)",
        )
        for cached, new in ((cached_k, k), (cached_v, v)):
            cached.value = jax.lax.dynamic_update_slice_in_dim(
                cached.value, new.astype(cached.value.dtype), index.value, new.ndim - 3
            )
        index.value += k.shape[-3]
        return cached_k.value, cached_v.value


def _cut_to_queries(mask, bias, offset, count: int):
    """The rows of the whole sequence's mask and bias that belong to the new tokens."""
    mask = masks.as_mask(mask)
    if mask is not None:
        mask = mask.for_queries(offset, count)
    if bias is not None and bias.shape[-2] != 1:
        bias = jax.lax.dynamic_slice_in_dim(bias, offset, count, bias.ndim - 2)
    return mask, bias
