"""A mechanism as a Flax module or as a bare function, from its name (`mechanisms.attentions`).

All modules do the same work around their attention: `MultiHeadAttention` with all heads and the
projections of queries, keys, values and output, and with one head the published single-head
mechanisms. Two have less to do (`attentions.Kind.note`). With `ops_only` a mechanism is the bare
function, on arrays that are already split into heads.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import masks
from attnlab.bench import inputs, peers
from attnlab.bench.case import DECODE, Case
from attnlab.mechanisms.attentions import Attention, Kind, Surroundings, kind_of, made
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.ops import routes
from attnlab.scores import Dot

_PROBE = 8  # tokens to initialize with: no parameter's shape depends on the input's length


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """Pure functions of one mechanism.

    Attributes:
      init: key -> parameters.
      apply: (parameters, *streams) -> context [B, T, ...]; of the pass decode also the parameters
        with what the tokens left in the cache.
      streams: names of the `inputs.STREAMS` that it takes, in order.
      split_heads: whether streams are [B, T, N, H] rather than [B, T, N * H].
    """

    init: Callable[[jax.Array], Any]
    apply: Callable[..., jax.Array]
    streams: tuple[str, ...] = inputs.STREAMS
    split_heads: bool = False


def build(case: Case) -> Mechanism:
    """The mechanism of a case; the same object for cases that may share parameters.

    Raises:
      Invalid: no mechanism has that name.
    """
    if case.passes == DECODE:
        return _decoder(dataclasses.replace(case, against=None))
    if case.attention.kind not in ("location", "shared"):  # these depend on the length
        case = dataclasses.replace(case, length=0)
    return _build(dataclasses.replace(case, passes="", against=None))


@functools.lru_cache(maxsize=8)
def _build(case: Case) -> Mechanism:
    lsh = routes.LSH(chunk_size=case.chunk_size)
    around = Surroundings(case.causal, case.length, lsh, jnp.dtype(case.dtype))
    kind = kind_of(case.attention.kind)
    if kind.written_in:
        return _peer(case, kind, around)
    if case.ops_only:
        return _function(case, case.attention, kind.parts(case.attention, around))
    return _module(case, around)


def _layer(case: Case, around: Surroundings) -> nn.Module:
    width, dtype = case.width, jnp.dtype(case.dtype)
    whole = MultiHeadAttention(
        case.num_heads,
        qkv_features=width,
        out_features=width,
        dtype=dtype,
        param_dtype=dtype,
        deterministic=True,
    )
    return made(case.attention, whole, around)


def _decoder(case: Case) -> Mechanism:
    """Of a module: its parameters are variables with a cache, and it returns them behind."""
    lsh = routes.LSH(chunk_size=case.chunk_size)
    module = _layer(case, Surroundings(True, case.length, lsh, jnp.dtype(case.dtype)))

    def init(key: jax.Array) -> Any:
        whole = jnp.zeros((case.batch, case.length, case.width), case.dtype)
        return module.init(key, whole, decode=True)

    def apply(variables: Any, x: jax.Array) -> Any:
        context, updated = module.apply(variables, x, decode=True, mutable=["cache"])
        return context, {**variables, **updated}

    return Mechanism(init, apply, ("query",))


def _module(case: Case, around: Surroundings) -> Mechanism:
    width, dtype = case.width, jnp.dtype(case.dtype)
    module = _layer(case, around)
    route = getattr(module, "route", routes.AllPairs())
    # Shared queries and keys are self-attention: one stream, of which it makes all it needs.
    streams = ("query",) if route.shares_qk else inputs.STREAMS

    def init(key: jax.Array) -> Any:
        tokens = min(_PROBE, case.length or _PROBE)
        probe = [jnp.zeros((1, tokens, width), dtype)] * len(streams)
        return module.init(key, *probe)

    def apply(parameters: Any, *arrays: jax.Array) -> Any:
        return module.apply(parameters, *arrays, mask=_mask(case, route))

    return Mechanism(init, apply, streams)


def _peer(case: Case, kind: Kind, around: Surroundings) -> Mechanism:
    """Other people's function, with the parameters of ours that computes the same."""
    ours = Attention(kind.computes)
    init = _function(case, ours, kind_of(kind.computes).parts(ours, around)).init
    return Mechanism(lambda key: init(key)["score"], peers.jax_function(case), split_heads=True)


def _mask(case: Case, route: routes.Route) -> masks.Mask | None:
    # Where the route says it too, it does alone: fewer kernels serve a second mask.
    return masks.Causal() if case.causal and not route.hides_future else None


def _function(case: Case, attention: Attention, parts: dict[str, Any]) -> Mechanism:
    route, score, position_bias = map(parts.get, ("route", "score", "position_bias"))
    assert route is not None
    reads_keys = kind_of(attention.kind).reads_keys and not route.shares_qk
    shape = (1, _PROBE, case.num_heads, case.head_dim)

    def init(key: jax.Array) -> Any:
        x = jnp.zeros(shape, case.dtype)
        of_score = score.init(key, x, x) if isinstance(score, nn.Module) else {}
        sizes = case.num_heads, _PROBE, _PROBE
        of_bias = {} if position_bias is None else position_bias.init(key, *sizes)
        return {"score": of_score, "bias": of_bias}

    def apply(parameters: Any, q: jax.Array, *rest: jax.Array) -> jax.Array:
        # q, k, v: [B, T, N, H]; where keys are not read, those that share the queries or nothing.
        k, v = rest if reads_keys else (q, *rest)
        made = score.apply(parameters["score"], q, k) if isinstance(score, nn.Module) else score
        options: dict[str, Any] = {"mask": _mask(case, route)}
        if position_bias is not None:
            sizes = case.num_heads, q.shape[1], k.shape[1]
            options["bias"] = position_bias.apply(parameters["bias"], *sizes, causal=case.causal)
        return route(made or Dot(), q, k, v, **options)

    streams = inputs.STREAMS if reads_keys else ("query", "value")
    return Mechanism(init, apply, streams, split_heads=True)
