"""A module's part in a route that samples: its rng stream, and what it sows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from attnlab.core.checks import require
from attnlab.modules.conventions import Host
from attnlab.ops.routes import Route, SamplingRoute


def sample_route(
    module: Any, host: Host, route: Route, deterministic: bool | None, *, decode: bool = False
) -> tuple[Callable[..., jax.Array], dict[str, Any]]:
    """The route as the module calls it, and the keyword that says what to sample with.

    They are the route itself and no keyword for a route that does not sample. One that does sows
    its choice's `log_prob` and `entropy`, [*B, T, N], as "choice".

    Args:
      module: module that has the route.
      host: host that has the rng stream "sample".
      route: route of the module.
      deterministic: argument of the module's call: whether to take the likeliest key.
      decode: whether the module decodes, and so takes the likeliest key.

    Raises:
      ValueError: the module was not told whether to sample.
    """
    if not isinstance(route, SamplingRoute):
        return route, {}
    require(
        deterministic is not None or decode,
        f"{type(module).__name__} with routes.{type(route).__name__} must be told whether to"
        " sample: call or make it with deterministic=True or False; got None",
    )
    call = functools.partial(_choose_and_sow, host, route)
    return call, {} if deterministic or decode else {"sample_key": host.make_rng("sample")}


def _choose_and_sow(host: Host, route: SamplingRoute, *arrays: Any, **options: Any) -> jax.Array:
    choice = route.choose(*arrays, **options)
    if not host.is_initializing():
        host.sow("choice", "log_prob", choice.log_prob)
        host.sow("choice", "entropy", choice.entropy)
    return choice.context
