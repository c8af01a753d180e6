"""What a module does around a route that samples: its rng stream, and what it sows."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from attnlab.checks import require
from attnlab.ops.routes import Route, SamplingRoute

__all__ = ["choose_and_sow", "sampling_options"]


def sampling_options(
    module: Any, route: Route, deterministic: bool | None, *, decode: bool = False
) -> dict[str, Any]:
    """The keyword that says what to sample with; none for a route that does not sample.

    Args:
      module: module that has the rng stream "sample".
      route: route of the module.
      deterministic: argument of the module's call: whether to take the likeliest key.
      decode: whether the module decodes, and so takes the likeliest key.

    Raises:
      ValueError: the module was not told whether to sample.
    """
    if not isinstance(route, SamplingRoute):
        return {}
    require(
        deterministic is not None or decode,
        f"{type(module).__name__} with routes.{type(route).__name__} must be told whether to"
        " sample: call it with deterministic=True or False; got None",
    )
    if deterministic or decode:
        return {}
    return {"sample_key": module.make_rng("sample")}


def choose_and_sow(
    module: nn.Module, route: SamplingRoute, *arrays: Any, **options: Any
) -> jax.Array:
    """The route's context; sows the choice's `log_prob` and `entropy`, [*B, T, N], as "choice"."""
    choice = route.choose(*arrays, **options)
    if not module.is_initializing():
        module.sow("choice", "log_prob", choice.log_prob)
        module.sow("choice", "entropy", choice.entropy)
    return choice.context
