"""Luong's local attention as a module: windows around given or predicted positions."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from attnlab import masks
from attnlab.modules.conventions import AttentionModule, require_module_sizes
from attnlab.modules.one_head import Local
from attnlab.scores import Score


class LocalAttention(Local, AttentionModule, kw_only=True):
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
        require_module_sizes(self)
        return self._attend(
            self,
            query,
            key,
            value,
            mask=mask,
            steps=steps,
            deterministic=deterministic,
            return_weights=return_weights,
        )
