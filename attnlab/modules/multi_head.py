"""Multi-head attention that hosts any score and any route, with a key/value cache for decoding."""

from __future__ import annotations

import dataclasses
from typing import Literal, Unpack, overload

import flax.linen as nn
import jax

from attnlab import masks
from attnlab.biases import Bias
from attnlab.core.checks import points_to
from attnlab.modules.conventions import (
    AttentionModule,
    CallOptions,
    Initializer,
    require_module_sizes,
    take_flax_names,
)
from attnlab.modules.heads import MultiHead
from attnlab.ops.routes import AllPairs, Route
from attnlab.scores import Score


@points_to(
    causal="the mask says it: call the module with mask=masks.Causal()",
    is_causal="the mask says it: call the module with mask=masks.Causal()",
    implementation="the route says it: route=routes.AllPairs(implementation=…)",
    attention_fn="the score and the route say it: score=scores.Cosine(…), route=routes.Window(…)",
)
class MultiHeadAttention(MultiHead, AttentionModule):
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
    over the whole sequence; past the end of the cache it is NaN or refused. With `routes.LSH` a
    token costs O(rounds · chunk_size); see `LSH.decode` for what it needs.

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
        from the "hash" rng stream if there is one (give all calls that decode with one cache the
        same key), else from its seed. With `centering="learned"` it keeps a center in the
        collection "hash_stats", which moves where that is mutable, unless `deterministic` or
        decoding. Hard samples from the "sample" rng stream unless `deterministic` or decoding, and
        sows `log_prob` and `entropy`, [*B, T, N], where the collection "choice" is mutable.
      normalize_qk: whether to RMS-normalize queries and keys in each head, with a learned scale of
        each of the H entries, the same for all heads. Henry et al. 2020 take the L2 norm, and one
        learned factor of the logits in place of 1/√H: `CosineScore`, with a factor for each head.
      rotary: whether to turn queries and keys by their positions (`positions.rotary`), or a number,
        its `max_wavelength`; a route that hashes does so after the turn, unless told otherwise.
        Products of the two (dot, cosine) then depend on distances; additive, general and concat
        scores do not.
      position_bias: module that makes a bias of the distance, such as `AlibiBias()`; None = the
        logits get what the call gives as `bias=`. Where the mask's q_offset is an argument of
        `jit`, queries that stand behind all keys get NaN.
      use_bias: whether the projections have biases.
      bias_init: initializer of these.
      out_kernel_init: initializer of the last projection; None = kernel_init.
      out_bias_init: initializer of its bias; None = bias_init.
      broadcast_dropout: whether all examples and heads drop the same weights.
      force_fp32_for_softmax: whether weights that are returned or sown are float32 at least, as
        the softmax inside always is; else they have the dtype of the computation, as those of LSH
        and of a function always do.
      decode: whether a call that does not say it decodes.
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
    bias_init: Initializer = nn.initializers.zeros
    out_kernel_init: Initializer | None = None
    out_bias_init: Initializer | None = None
    broadcast_dropout: bool = False
    force_fp32_for_softmax: bool = True
    decode: bool = False

    @overload
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        decode: bool | None = None,
        return_weights: Literal[False] = False,
        sow_weights: bool | None = None,
        dropout_rng: jax.Array | None = None,
        **options: Unpack[CallOptions],
    ) -> jax.Array: ...

    @overload
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        decode: bool | None = None,
        return_weights: Literal[True],
        sow_weights: bool | None = None,
        dropout_rng: jax.Array | None = None,
        **options: Unpack[CallOptions],
    ) -> tuple[jax.Array, jax.Array]: ...

    @nn.compact
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
        return_weights: bool = False,
        sow_weights: bool | None = None,
        dropout_rng: jax.Array | None = None,
    ):
        """The result [*B, T, out_features]; see the class for shapes and decoding.

        Args:
          query: queries [*B, T, Dq].
          key: keys [*B, S, Dk]; None = query.
          value: values [*B, S, Dv]; None = key.
          mask: a mask, or an array of booleans, or of 0 and 1 as Flax makes them, that broadcasts
            to [*B, N, T, S]; True or 1 = may attend. Other numbers give NaN.
          bias: bias of the logits, or an array that broadcasts to [*B, N, T, S].
          deterministic: whether nothing is dropped or sampled; None = what the attribute says.
          decode: whether the query goes on where the cache ends; None = what the attribute says.
          return_weights: whether to return the weights [*B, N, T, S] too.
          sow_weights: whether to sow them where "intermediates" is mutable; None = whether it is.
          dropout_rng: key of the dropout; None = one of the stream "dropout".
        """
        require_module_sizes(self)
        return self._attend(
            self,
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            deterministic=deterministic,
            decode=decode,
            return_weights=return_weights,
            sow_weights=sow_weights,
            dropout_rng=dropout_rng,
        )
