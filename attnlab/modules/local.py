"""Luong's local attention as a module: windows around given or predicted positions."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.core.axes import lead_with_ones
from attnlab.core.checks import as_array, require
from attnlab.core.shapes import fit
from attnlab.modules.conventions import (
    AttentionModule,
    as_query_key_value,
    dropout_options,
)
from attnlab.modules.scores import GeneralScore
from attnlab.ops.local import local_attention
from attnlab.scores import Score

__all__ = ["LocalAttention"]


class LocalAttention(AttentionModule, kw_only=True):
    """Attention to the keys around a center p_t of each query: Luong et al. 2015, §3.2.

    Local-m (`predictive=False`): p_t = t, source and target run in step. Local-p: p_t =
    S·sigmoid(v·tanh(W query_t)), with S the number of real keys, and the weights are multiplied by
    a Gaussian around p_t of σ = half_width / 2 without being renormalized.

    Call it as `module(query, key, value=None)`, query [*B, T, Dq], key [*B, S, Dk], value
    [*B, S, Dv]; returns the context [*B, T, Dv], with `return_weights=True` also the weights
    [*B, T, S]; sown as "attention_weights" where "intermediates" is mutable.

    Cost: O(T·half_width) time and memory.

    The keywords of `AttentionModule` (dropout_rate, dtype, …) belong to it too.

    Attributes:
      predictive: whether the centers are predicted (local-p) rather than given (local-m).
      half_width: reach D of the paper; a query sees at most 2·half_width + 1 keys.
      score: a score module, or a value of `attnlab.scores`; None = `GeneralScore()`.
      features: number of rows of W in local-p; None = width of the query.
    """

    predictive: bool = True
    half_width: int = 10
    score: nn.Module | Score | None = None
    features: int | None = None

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array | None = None,
        *,
        mask: masks.Mask | jax.Array | None = None,
        steps: jax.Array | None = None,
        deterministic: bool | None = None,
        return_weights: bool = False,
    ) -> Any:
        """The context [*B, T, Dv].

        Args:
          query: queries [*B, T, Dq].
          key: keys [*B, S, Dk].
          value: values [*B, S, Dv]; None = key.
          mask: mask or boolean array, as for `local_attention`. S of local-p is the number of keys
            before the padding that `masks.Padding` or `masks.from_padding` says.
          steps: time t of each query [*B, T] for local-m; None = one after the other, from where
            the mask's `q_offset` says, or 0. A decoder of one step at a time passes one of them,
            and a mask of these queries, such as `masks.Causal(t)`.
          deterministic: whether dropout is off; needed if dropout_rate > 0.
          return_weights: whether to return the weights [*B, T, S] too.
        """
        query, key, value = as_query_key_value(self, query, key, value)
        deterministic = self.is_deterministic(deterministic)
        require(
            self.predictive or self.features is None,
            f"features are hidden units of local-p's centers, and predictive=False predicts none;"
            f" got features={self.features} (leave it out)",
        )
        if self.predictive:
            centers = self._predict_centers(query, key.shape[-2], mask)
        else:
            if steps is None:
                first = jnp.asarray(masks.first_position(mask))[..., None]
                steps = first + lead_with_ones(jnp.arange(query.shape[-2]), first.ndim)
            steps = as_array("steps", steps)
            fit("query: *B T D", query, "steps: *B|1 T|1", steps)
            steps = lead_with_ones(steps, query.ndim - 1)
            centers = jnp.broadcast_to(steps, query.shape[:-1])
        score = self.score
        if score is None:
            score = GeneralScore(param_dtype=self.param_dtype, name="score")
        q = query[..., None, :]
        k = key[..., None, :]
        v = value[..., None, :]
        looked_at = return_weights or self.is_mutable_collection("intermediates")
        outputs: Any = local_attention(
            q,
            k,
            v,
            centers,
            half_width=self.half_width,
            score=score(q, k),
            gaussian=self.predictive,
            mask=mask,
            precision=self.precision,
            return_weights=looked_at,
            **dropout_options(self, deterministic),
        )
        if not looked_at:
            return outputs[..., 0, :]
        context, weights = outputs[0][..., 0, :], outputs[1][..., 0, :, :]
        self.sow("intermediates", "attention_weights", weights)
        return (context, weights) if return_weights else context

    def _predict_centers(self, query, num_keys: int, mask: Any) -> jax.Array:
        """S·sigmoid(v·tanh(W query)), [*B, T], at least float32."""
        features = self.features or query.shape[-1]
        hidden = jnp.tanh(self._dense(features, "center_hidden", "embed", "hidden")(query))
        logit = self._dense(1, "center", "hidden", None)(hidden)[..., 0]
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
