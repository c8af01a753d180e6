"""The one place where a name on the command line becomes a Flax module or a bare function.

All modules do the same work around their attention: `MultiHeadAttention` with all heads and the
projections of queries, keys, values and output, and with one head the published single-head
mechanisms. Two have less to do (`NOTES`). With `ops_only` a mechanism is the bare function, on
arrays that are already split into heads.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab import biases, masks, scores
from attnlab.bench import inputs
from attnlab.bench.case import Case
from attnlab.modules.biases import AlibiBias
from attnlab.modules.lsh import LSHSelfAttention
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.modules.scores import LocationScore
from attnlab.ops import attention, local, routes
from attnlab.ops import named as ops
from attnlab.training.attentions import SCORES

# Exact: for these `implementation` chooses how. LSH has its own way, and a kernel.
EXACT = (
    *("additive", "dot", "general", "cosine", "concat", "location"),
    *("multi_head", "window", "alibi"),
)
NAMES = (*EXACT, "lsh")
NOTES = {  # where a module does other work than the rest
    "lsh": "`lsh` shares one projection between queries and keys: a quarter less to project.",
    "location": "`location` scores positions, so keys are neither projected nor looked at.",
}
IMPLEMENTATIONS = tuple(name for name in attention.IMPLEMENTATIONS if name is not None)
_PROBE = 8  # tokens to initialize with: no parameter's shape depends on the input's length


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """Pure functions of one mechanism.

    Attributes:
      init: key -> parameters.
      apply: (parameters, *streams) -> context [B, T, ...].
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
      ValueError: no mechanism has that name.
    """
    if case.mechanism not in NAMES:
        raise ValueError(f"no mechanism {case.mechanism!r}; valid: {', '.join(NAMES)}")
    length = case.length if case.mechanism == "location" else 0  # it has a weight a position
    return _build(dataclasses.replace(case, passes="", length=length))


@functools.lru_cache(maxsize=8)
def _build(case: Case) -> Mechanism:
    return _function(case) if case.ops_only else _module(case)


def _module(case: Case) -> Mechanism:
    width, n, dtype = case.width, case.num_heads, jnp.dtype(case.dtype)
    of_score: dict[str, Any] = {"param_dtype": dtype}
    common: dict[str, Any] = {
        "qkv_features": n * case.head_dim,
        "out_features": width,
        "use_bias": True,
    }
    common |= {"dtype": dtype, "param_dtype": dtype}
    all_pairs = routes.AllPairs(case.implementation)
    window: Any = routes.Window(*_sides(case), case.implementation)
    route = window if case.mechanism == "window" else all_pairs
    module: nn.Module
    if case.mechanism == "lsh":
        module = LSHSelfAttention(n, _lsh(case), case.causal, **common)
    else:
        score: dict[str, Callable[[], nn.Module | scores.Score]] = {
            **{name: functools.partial(kind, **of_score) for name, kind in SCORES.items()},
            "dot": lambda: scores.Dot(1.0),
            "location": lambda: LocationScore(case.length, **of_score),
        }
        make = score.get(case.mechanism, scores.Dot)
        bias = AlibiBias() if case.mechanism == "alibi" else None
        module = MultiHeadAttention(n, score=make(), route=route, position_bias=bias, **common)
    # LSH shares queries and keys and is self-attention: one stream, of which it makes all it needs.
    streams = ("query",) if case.mechanism == "lsh" else inputs.STREAMS

    def init(key: jax.Array) -> Any:
        tokens = min(_PROBE, case.length or _PROBE)
        probe = [jnp.zeros((1, tokens, width), dtype)] * len(streams)
        return module.init(key, *probe)

    def apply(parameters: Any, *arrays: jax.Array) -> Any:
        options: dict[str, Any] = {"mask": masks.Causal() if case.causal else None}
        if case.mechanism == "lsh":
            options = {}  # whether it is causal is an attribute of it
        return module.apply(parameters, *arrays, **options)

    return Mechanism(init, apply, streams)


def _function(case: Case) -> Mechanism:
    n, h, dtype = case.num_heads, case.head_dim, jnp.dtype(case.dtype)
    options: dict[str, Any] = {}
    if case.mechanism in EXACT:
        options["implementation"] = case.implementation
    streams: tuple[str, ...] = inputs.STREAMS
    shapes: dict[str, tuple[int, ...]] = {}
    function: Callable[..., jax.Array]
    match case.mechanism:
        case "additive":
            function, shapes = ops.additive_attention, {"w": (n, h)}
        case "dot":
            function = functools.partial(ops.dot_product_attention, scale=1.0)
        case "general":
            function, shapes = ops.general_attention, {"w": (n, h, h)}
        case "cosine":
            function = ops.cosine_attention
        case "concat":
            shapes = {"w": (n, h), "wq": (n, h, h), "wk": (n, h, h)}
            function = ops.concat_attention
        case "location":
            function, shapes = ops.location_attention, {"w": (n, h, case.length)}
            streams = ("query", "value")
        case "multi_head":
            function = ops.dot_product_attention
        case "alibi":

            def function(q: jax.Array, k: jax.Array, v: jax.Array, **kw: Any) -> jax.Array:
                bias = biases.alibi(n, q.shape[-3], k.shape[-3])
                return ops.dot_product_attention(q, k, v, bias=bias, **kw)

        case "window":
            function = functools.partial(local.window_attention, window=_sides(case))
        case "lsh":
            streams = ("query", "value")

            def function(qk: jax.Array, v: jax.Array, **kw: Any) -> jax.Array:
                return _lsh(case)(scores.Dot(), qk, qk, v, **kw)

    def init(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 3)
        return {
            name: jax.random.normal(k, shape, dtype) * h**-0.5
            for k, (name, shape) in zip(keys, shapes.items(), strict=False)
        }

    def apply(parameters: dict[str, jax.Array], *arrays: jax.Array) -> jax.Array:
        mask = masks.Causal() if case.causal else None
        return function(*arrays, **parameters, **options, mask=mask)

    return Mechanism(init, apply, streams, split_heads=True)


def _sides(case: Case) -> tuple[int, int]:
    return (case.window, 0 if case.causal else case.window)


def _lsh(case: Case) -> routes.LSH:
    return routes.LSH(
        case.num_hashes, chunk_size=case.chunk_size, implementation=case.implementation
    )
