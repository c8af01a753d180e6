"""What an implementation of exact attention is asked to compute, and may refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from attnlab.masks import Both, Causal, Mask, Window
from attnlab.ops.kernels.pallas import Pallas
from attnlab.platforms import Platform
from attnlab.scores import Dot, Score

__all__ = ["Call", "not_for", "parts", "refuse_all_but_dot", "starts_at_zero"]


@dataclasses.dataclass(frozen=True)
class Call:
    """The checked arguments of `attention`, and what the program is traced for.

    Attributes:
      score: score that the user gave.
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      mask: a mask or None.
      bias: term added to the logits, or None.
      dropout_rate: probability of dropping a weight.
      precision: precision of the matrix products.
      platform: accelerator that the program is traced for.
      pallas: options of this project's own kernels.
    """

    score: Score
    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: Mask | None
    bias: Any
    dropout_rate: float
    precision: Any
    platform: Platform
    pallas: Pallas = Pallas()

    @property
    def lengths(self) -> tuple[int, int]:
        """T and S."""
        return self.q.shape[-3], self.k.shape[-3]


def not_for(call: Call, *names: str) -> str | None:
    """Refuses every platform but these."""
    if call.platform.name in names or call.pallas.interpret:
        return None
    known = {"cuda": "NVIDIA GPU", "tpu": "TPU"}
    return f"is for {' and '.join(known[name] for name in names)}, not for {call.platform.name}"


def refuse_all_but_dot(call: Call) -> str | None:
    """Why a kernel for the plain dot product cannot serve, its masks aside."""
    if not isinstance(call.score, Dot):
        return f"computes the dot score only, not {type(call.score).__name__}"
    if call.bias is not None or call.dropout_rate > 0.0:
        return "takes no bias and no dropout here"
    return None


def parts(mask: Mask | None) -> list[Mask]:
    """The masks that `&` joined."""
    if isinstance(mask, Both):
        return parts(mask.first) + parts(mask.second)
    return [] if mask is None else [mask]


def starts_at_zero(mask: Causal | Window) -> bool:
    """Whether query i stands at position i, known while tracing."""
    return isinstance(mask.q_offset, int) and mask.q_offset == 0
