"""A call of exact attention, which an implementation computes or refuses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from attnlab.core.axes import HeadLayout
from attnlab.devices.platforms import Platform
from attnlab.devices.split import by_device
from attnlab.masks import Mask
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.layout import Prepared, prepare
from attnlab.scores import Dot, Score


@dataclasses.dataclass(frozen=True)
class Call:
    """The checked arguments of `attention`, and what the program is traced for.

    Attributes:
      score: score that the user gave.
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      mask: a mask or None; in layout, [B|1, 1, …], where `attend_over_heads` gives it.
      bias: term added to the logits, or None.
      dropout_rate: probability of dropping a weight.
      precision: precision of the matrix products.
      platform: accelerator that the program is traced for.
      pallas: options of this project's own kernels.
      dropout_key: PRNG key, if weights are dropped.
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
    dropout_key: jax.Array | None = None

    @property
    def lengths(self) -> tuple[int, int]:
        """T and S."""
        return self.q.shape[-3], self.k.shape[-3]

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The masks that `&` joined; none without a mask."""
        return () if self.mask is None else self.mask.parts()

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """`Mask.reach`, no more than there are keys: kernels add it up in 32 bits."""
        left, right = (None, None) if self.mask is None else self.mask.reach
        most = self.lengths[1]
        left = None if left is None else min(left, most)
        right = None if right is None else min(right, most)
        return left, right

    def prepared(self) -> Prepared:
        """The operands in layout."""
        arrays, terms = (self.q, self.k, self.v), (self.mask, self.bias)
        return prepare(self.score, *arrays, *terms, self.precision, self.dropout_key)


def attend_over_heads(
    attend: Callable[[Call], jax.Array], call: Call, *, partitioned: bool = False
) -> jax.Array:
    """attend(call) [*B, T, N, D], each device its examples and heads (`split.by_device`).

    What `attend` is given has one batch axis, and the mask in layout.
    """
    layout = HeadLayout.of(call.q, call.k)
    batch = math.prod(layout.batch_shape)
    # [B, T, K, G, H]
    shape = batch, layout.num_queries, layout.num_kv_heads, layout.group_size, call.q.shape[-1]

    def of_device(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask | None) -> jax.Array:
        # [B, T, K, G, H] to [B, T, N, H]: divided by key/value heads, attended to by query heads
        merged = q.reshape(*q.shape[:2], -1, q.shape[-1])
        context = attend(dataclasses.replace(call, q=merged, k=k, v=v, mask=mask))
        return context.reshape(*q.shape[:-1], v.shape[-1])

    context = by_device(
        of_device,
        [
            call.q.reshape(shape),
            *(x.reshape(batch, *x.shape[-3:]) for x in (call.k, call.v)),
            None if call.mask is None else call.mask.in_layout(layout),
        ],
        ["btn", "btn", "btn", "bn"],
        "btn",
        name="attention by a kernel",
        batch=batch,
        heads=layout.num_kv_heads,
        partitioned=partitioned,
    )
    return context.reshape(*call.q.shape[:-1], call.v.shape[-1])


def not_for(call: Call, *names: str) -> str | None:
    """Refuses every platform but these."""
    if call.platform.name in names or call.pallas.interpret:
        return None
    known = {"cuda": "NVIDIA GPU", "tpu": "TPU"}
    return f"is for {' and '.join(known[name] for name in names)}, not for {call.platform.name}"


def refuse_all_but_dot(call: Call) -> str | None:
    """Why a kernel for the plain dot product cannot serve, its masks aside."""
    if type(call.score) is not Dot:  # nor a subclass, which may compute another
        return f"computes the dot score only, not {type(call.score).__name__}"
    if call.bias is not None or call.dropout_rate > 0.0:
        return "takes no bias and no dropout here"
    return None
