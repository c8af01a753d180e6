"""Multi-head attention and the Reformer's self-attention as NNX modules."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from attnlab import masks
from attnlab.biases import Bias
from attnlab.core.checks import as_size
from attnlab.modules import lsh, multi_head
from attnlab.modules.conventions import take_flax_names
from attnlab.modules.heads import MultiHead, SelfHashed
from attnlab.nnx.base import AttentionModule, Call, HashStats, Learned, make_score
from attnlab.ops.routes import StatefulRoute


class MultiHeadAttention(MultiHead, AttentionModule):
    """`attnlab.MultiHeadAttention` as an NNX module: the same fields, parameters and numbers.

    Call it as `module(query, key=None, value=None)`, query [*B, T, Dq], key [*B, S, Dk], value
    [*B, S, Dv]; it returns [*B, T, out_features], with `return_weights=True` also the weights
    [*B, N, T, S]. The projections are `nnx.LinearGeneral`s called query, key, value and out (or
    query_key, value and out, where the route shares queries and keys), the norms of `normalize_qk`
    are `nnx.RMSNorm`s called query_norm and key_norm.

    Decoding: `init_cache` makes an empty cache, of the type `nnx.Cache`; calls with `decode=True`
    then take the next tokens, one or many at a time, and the mask and bias of the whole sequence.
    The result is that of the causal forward; past the end of the cache it is NaN or refused. With
    `key=` the first call projects the keys of the source and keeps them, of the type `SourceCache`;
    later ones look at `key` and `value` no more, until `init_cache` is called again. A module has
    one cache: one that is called at two places of a model decodes as two modules that share their
    layers, `second.query = first.query` and so on.

        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> mha = MultiHeadAttention(2, 8, rngs=nnx.Rngs(0))
        >>> x = jnp.ones((1, 5, 8))
        >>> mha.init_cache(x.shape)
        >>> step = nnx.jit(lambda mha, x: mha(x, decode=True))
        >>> y = step(mha, x[:, :3])  # a prompt of three tokens at once
        >>> step(mha, x[:, 3:4]).shape, mha.cache_index[...].item()
        ((1, 1, 8), 4)

    Args:
      num_heads: number of query heads, N.
      in_features: width of the query, Dq.
      in_kv_features: width of the keys, Dk; None = in_features.
      in_value_features: width of the values, Dv; None = in_kv_features.
      rngs: random numbers: "params" for the parameters, and where a call draws "dropout", "sample"
        or, if it has such a stream, "hash". All calls that decode with one cache take the key that
        `init_cache` draws from the module's own stream, or that of the route's seed.
      keep_rngs: whether the module keeps streams of its own of these; else calls take `rngs=`.
      **fields: fields of `attnlab.MultiHeadAttention`, attributes of this module too, but for the
        initializers. A score or a position_bias may be an `nnx.Module` of your own.
    """

    linen = multi_head.MultiHeadAttention

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        *,
        in_kv_features: int | None = None,
        in_value_features: int | None = None,
        rngs: nnx.Rngs,
        keep_rngs: bool = True,
        **fields: Any,
    ):
        given = self.set_fields(num_heads, rngs=rngs, keep_rngs=keep_rngs, **fields)
        self._require_route(cross=False, decode=False)
        key_features = in_features if in_kv_features is None else in_kv_features
        value_features = key_features if in_value_features is None else in_value_features
        self.in_features = as_size("in_features", in_features)
        width, _ = self._head_widths(in_features)
        layers = given._projections(in_features, key_features, value_features)
        for name, projection in layers.items():
            setattr(self, name, self.make_linear(projection, rngs))
            norm = self._norm_of(name)
            if norm is not None:
                setattr(self, norm, self.make_norm(width, rngs))
        heads = num_heads, num_heads if self.route.shares_qk else self.num_kv_heads or num_heads
        self.score = make_score(given.score, heads, (width, width), rngs)
        position_bias = given.position_bias
        if isinstance(position_bias, nn.Module):
            position_bias = Learned(position_bias, num_heads, 1, 1, causal=True, rngs=rngs)
        self.position_bias = position_bias
        if "center" in self.route.hash_keywords:
            self.center = HashStats(jnp.zeros((num_heads, width), jnp.float32))
        self.clear_cache()

    @take_flax_names
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: masks.Mask | jax.Array | None = None,
        bias: Bias | jax.Array | None = None,
        deterministic: bool | None = None,
        decode: bool | None = None,
        is_causal: bool = False,
        return_weights: bool = False,
        sow_weights: bool = False,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Any:
        """The result [*B, T, out_features]; see the class for shapes and decoding.

        Args:
          query: queries [*B, T, Dq].
          key: keys [*B, S, Dk]; None = query.
          value: values [*B, S, Dv]; None = key.
          mask: a mask, or an array of booleans, or of 0 and 1, that broadcasts to [*B, N, T, S];
            True or 1 = may attend.
          bias: bias of the logits, or an array that broadcasts to [*B, N, T, S].
          deterministic: whether nothing is dropped or sampled; None = what the attribute says.
          decode: whether the query goes on where the cache ends; None = what the attribute says.
          is_causal: whether the mask is causal too, as `masks.Causal()` says.
          return_weights: whether to return the weights [*B, N, T, S] too.
          sow_weights: whether to sow them, as `nnx.Intermediate`.
          rngs: random numbers of this call; None = those of the module.
        """
        decode = self.decode if decode is None else decode
        return self._attend(
            Call(self, query, rngs, sow_weights, decode),
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            deterministic=deterministic,
            decode=decode,
            return_weights=return_weights,
            is_causal=is_causal,
        )

    def set_view(
        self,
        deterministic: bool | None = None,
        decode: bool | None = None,
        batch_size: int | tuple[int, ...] | None = None,
        max_length: int | None = None,
    ) -> None:
        """Sets what `nnx.view` changes in the module that it makes.

        Args:
          deterministic: whether nothing is dropped or sampled; None = as it was.
          decode: whether a call that does not say it decodes; None = as it was.
          batch_size: batch of an empty cache, made where `max_length` is given too.
          max_length: length of that cache.
        """
        super().set_view(deterministic)
        if decode is not None:
            self.decode = decode
        if batch_size is not None and max_length is not None:
            batch = (batch_size,) if isinstance(batch_size, int) else batch_size
            self.init_cache((*batch, max_length, self.in_features))

    def init_cache(
        self, input_shape: tuple[int, ...], dtype: Any = None, *, cross: bool = False
    ) -> None:
        """Makes an empty cache, in place of what was decoded before.

        Args:
          input_shape: shape of the inputs, [*B, L, Dq], with the length of the cache as L.
          dtype: dtype of keys and values; None = that of the module, or of its parameters, to
            which keys and values of inputs with more bits are rounded.
          cross: whether the keys are of another sequence, so that they need no place.
        """
        self.clear_cache()
        self.cache_index = nnx.Cache(jnp.zeros((), jnp.int32))
        if cross:
            return
        *batch, length, _ = input_shape
        width, width_of_values = self._head_widths(self.in_features)
        num_kv_heads = self.num_kv_heads or self.num_heads
        num_key_heads = self.num_heads if self.route.shares_qk else num_kv_heads
        dtype = dtype or self.dtype or self.param_dtype
        k = jnp.zeros((*batch, length, num_key_heads, width), dtype)
        v = jnp.zeros((*batch, length, num_kv_heads, width_of_values), dtype)
        self.cached_key, self.cached_value = nnx.Cache(k), nnx.Cache(v)
        if isinstance(self.route, StatefulRoute):
            self.route_state = nnx.Cache(self.route.empty_state(k))
        if self.rngs is not None and "hash" in self.rngs:
            self.hash_key = nnx.Cache(self.rngs["hash"]())

    def clear_cache(self) -> None:
        """Leaves the module without a cache, as it is when it is made."""
        for name in ("cache_index", "cached_key", "cached_value", "route_state", "hash_key"):
            setattr(self, name, nnx.data(None))
        self.source_key, self.source_value = nnx.data(None), nnx.data(None)


class LSHSelfAttention(SelfHashed, MultiHeadAttention):
    """`attnlab.LSHSelfAttention` as an NNX module: the same fields, parameters and numbers.

    `MultiHeadAttention` with the other defaults of that module; it is made, called and decodes in
    the same way.
    """

    linen = lsh.LSHSelfAttention
