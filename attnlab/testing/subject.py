"""The subject of a contract: a function of named arrays and a mask, and how these are made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attnlab import masks
from attnlab.core.checks import require
from attnlab.mechanisms import own
from attnlab.mechanisms.attentions import Surroundings, kind_of, parse
from attnlab.mechanisms.own import Own
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.ops.routes import LSH, Function, Route
from attnlab.runs.errors import Invalid
from attnlab.scores import Dot

Arrays = dict[str, Any]


class Sizes(NamedTuple):
    """Distinct primes, as far as heads allow, so that a swapped axis cannot pass."""

    batch: int = 5
    queries: int = 17
    keys: int = 23
    num_kv_heads: int = 3
    group_size: int = 2
    width: int = 7
    value_width: int = 11
    hidden: int = 13

    @property
    def num_heads(self) -> int:
        """N = K·G."""
        return self.num_kv_heads * self.group_size


@dataclass(frozen=True, eq=False)  # its layer may hold an array
class Subject:
    """One function of named arrays and a mask.

    Attributes:
      name: name of the mechanism.
      apply: function of arrays and a mask that returns the context [*B, T, ...].
      make: function of a NumPy generator and sizes that returns the arrays, in float64; a value may
        be a pytree of parameters.
      queries: names of the arrays [*B, T, ...]; of [*B, L, ...] if among `keys` too, L = T = S.
      keys: names of the arrays [*B, S, ...].
      mask: function of the visible keys [B, S], and whether the future is hidden, that returns a
        mask; None = it takes no mask.
      hides_anywhere: whether `mask` can hide any key; otherwise only those from some position on.
      causal: whether `mask` can hide the future.
      definition: function of arrays and a mask that computes the same plainly; None = it has none.
      group_size: number of query heads that share keys, in its arrays.
      projects: whether it projects its arrays, as a module does.
      layer: module that attends so, and may decode; None = it is no part of one.
      straight_through: whether its gradient is that of another function, as its route says by a
        member of this name.
    """

    name: str
    apply: Callable[[Arrays, Any], jax.Array]
    make: Callable[[np.random.Generator, Sizes], Arrays]
    queries: tuple[str, ...] = ("q",)
    keys: tuple[str, ...] = ("k", "v")
    mask: Callable[[np.ndarray, bool], Any] | None = None
    hides_anywhere: bool = True
    causal: bool = True
    definition: Callable[[Arrays, Any], jax.Array] | None = None
    group_size: int = 2
    projects: bool = False
    layer: nn.Module | None = None
    straight_through: bool = False

    @property
    def batched(self) -> tuple[str, ...]:
        """Names of the arrays that lead with the batch."""
        return tuple(dict.fromkeys(self.queries + self.keys))

    @property
    def shares(self) -> bool:
        """Whether an array is of queries and of keys, so that T = S."""
        return bool(set(self.queries) & set(self.keys))

    def sizes(self, **changed: int) -> Sizes:
        """The sizes of its arrays; T = S where queries and keys are one array."""
        sizes = Sizes(**{"group_size": self.group_size} | changed)
        return sizes._replace(queries=sizes.keys) if self.shares else sizes

    def arrays(self, seed: int = 0, dtype: Any = jnp.float32, sizes: Sizes | None = None) -> Arrays:
        """Its arrays in this dtype."""
        made = self.make(np.random.default_rng(seed), sizes or self.sizes())
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), made)

    def mask_of(
        self, *, causal: bool = False, visible: np.ndarray | None = None, sizes: Sizes | None = None
    ) -> Any:
        """Its mask, of all keys or these alone; None where it takes none."""
        if self.mask is None:
            return None
        sizes = sizes or self.sizes()
        everything = np.ones((sizes.batch, sizes.keys), bool)
        return self.mask(everything if visible is None else visible, causal)

    def visible_keys(self) -> np.ndarray:
        """[B, S]: padding in front, in the middle, behind, everywhere and nowhere."""
        sizes = self.sizes()
        visible = np.ones((sizes.batch, sizes.keys), bool)
        if self.hides_anywhere:
            visible[0, :2] = False
            visible[1, [0, *range(5, 17)]] = False
            visible[2, 1] = visible[2, -1] = False
        else:
            visible[0, 1:] = visible[1, 2:] = visible[2, -1:] = False
        visible[3] = False
        return visible


def subject_of(mechanism: Any) -> Subject:
    """The subject of a mechanism: itself, a name of `attentions`, or what `own.as_own` takes.

    Raises:
      Invalid: it is no mechanism; one line.
    """
    if isinstance(mechanism, Subject):
        return mechanism
    if isinstance(mechanism, str):
        return _subject_of_name(mechanism)
    return _subject_of(mechanism if isinstance(mechanism, Own) else own.as_own(mechanism))


@functools.cache
def _subject_of_name(name: str) -> Subject:
    attention, *more = parse(name)
    kind = kind_of(attention.kind)
    if more or not kind.in_models:
        raise Invalid(f"{name} cannot be checked; give one attention that any layer can have")
    if kind.own is not None:
        return _subject_of(kind.own)
    lsh = LSH(num_buckets=4, chunk_size=8)
    parts = kind.parts(attention, Surroundings(length=Sizes().keys, lsh=lsh))
    return _function(name, parts, MultiHeadAttention(num_heads=2, **parts))


@functools.cache
def _subject_of(mine: Own) -> Subject:
    layer = mine.in_place_of(MultiHeadAttention(num_heads=2))
    if mine.kind == "module":
        return _module(mine.name, layer)
    return _function(mine.name, mine.parts, layer)


def _function(name: str, parts: dict[str, Any], layer: nn.Module) -> Subject:
    """The parts of a `MultiHeadAttention`, on arrays that are split into heads."""
    route: Route = parts["route"]
    score, bias = parts.get("score"), parts.get("position_bias")
    takes_mask, is_function = True, isinstance(route, Function)
    if isinstance(route, Function):
        takes_mask = "mask" in inspect.signature(route.function).parameters

    def make(rng, sizes):
        q = rng.normal(size=(sizes.batch, sizes.queries, sizes.num_heads, sizes.width))
        keys = (sizes.batch, sizes.keys, sizes.num_kv_heads)
        k = rng.normal(size=(*keys, sizes.width))
        v = rng.normal(size=(*keys, sizes.value_width))
        if route.shares_qk:
            v = rng.normal(size=(*q.shape[:-1], sizes.value_width))
        arrays = {"q": q, "v": v} | ({} if route.shares_qk else {"k": k})
        key, floats = jax.random.key(0), (jnp.asarray(q), jnp.asarray(arrays.get("k", q)))
        if isinstance(score, nn.Module):
            arrays["parameters of the score"] = score.init(key, *floats).get("params", {})
        if bias is not None:
            sizes_of = sizes.num_heads, sizes.queries, sizes.keys
            made = bias.init(key, *sizes_of, causal=False)
            arrays["parameters of the bias"] = made.get("params", {})
        return {name: x for name, x in arrays.items() if jax.tree.leaves(x)}

    def operands(arrays, mask):
        q, v = arrays["q"], arrays["v"]
        k = arrays.get("k", q)
        made = Dot() if score is None else score
        if isinstance(score, nn.Module):
            parameters = arrays.get("parameters of the score", {})
            made = score.apply(_variables(parameters, score, q, k), q, k)
        options = {} if mask is None else {"mask": mask}
        if bias is not None:
            causal = mask is not None and mask.hides_future
            sizes_of = q.shape[-2], q.shape[-3], k.shape[-3]
            parameters = arrays.get("parameters of the bias", {})
            variables = _variables(parameters, bias, *sizes_of, causal=causal)
            options["bias"] = bias.apply(variables, *sizes_of, causal=causal)
        return made, q, k, v, options

    def apply(arrays, mask):
        made, q, k, v, options = operands(arrays, mask)
        hashing = {"hash_inputs": q, "center": jnp.zeros(q.shape[-2:], q.dtype)}
        options |= {name: x for name, x in hashing.items() if name in route.hash_keywords}
        return route(made, q, k, v, **options)

    def definition(arrays, mask):
        made, q, k, v, options = operands(arrays, mask)
        weights = route.weights(made, q, k, **options)  # [*B, N, T, S]
        whole = jnp.repeat(v, q.shape[-2] // v.shape[-2], axis=-2)
        return jnp.einsum("...nts,...snd->...tnd", weights, whole)

    names = ("q",) if route.shares_qk else ("k",)
    return Subject(
        name,
        apply,
        make,
        keys=(*names, "v"),
        mask=_keys_and_causal if takes_mask else None,
        causal=takes_mask,
        definition=None if is_function else definition,
        group_size=1,
        layer=layer,
        straight_through=getattr(route, "straight_through", False),
    )


def _module(name: str, layer: nn.Module) -> Subject:
    """A module that attends from a sequence [B, L, 14] to itself."""
    width = 2 * Sizes().width
    at_rest = keywords_at_rest(layer)

    def make(rng, sizes):
        x = rng.normal(size=(sizes.batch, sizes.keys, width))
        made = layer.init(jax.random.key(0), jnp.asarray(x, jnp.float32), **at_rest)
        return {"x": x, "parameters": made.get("params", {})}

    def apply(arrays, mask):
        options = at_rest if mask is None else {"mask": mask, **at_rest}
        x = arrays["x"]
        in_dtype = layer.clone(dtype=x.dtype) if hasattr(layer, "dtype") else layer
        variables = _variables(arrays["parameters"], in_dtype, x, **at_rest)
        y: Any = in_dtype.apply(variables, x, **options)
        wanted, got = f"one array, {x.dtype} {x.shape}", type(y).__name__
        require(hasattr(y, "shape"), f"{type(layer).__name__} must return {wanted}; got {got}")
        return y

    return Subject(
        name,
        apply,
        make,
        queries=("x",),
        keys=("x",),
        mask=_keys_and_causal,
        projects=True,
        layer=layer,
    )


def _variables(parameters: Any, module: nn.Module, *args: Any, **options: Any) -> dict[str, Any]:
    """The variables of a module: these parameters, and the rest as `init` makes it."""
    return {**module.init(jax.random.key(0), *args, **options), "params": parameters}


def keywords_at_rest(layer: nn.Module) -> dict[str, Any]:
    """The keyword that a layer without dropout and samples is called with, if it takes it."""
    takes = "deterministic" in inspect.signature(layer).parameters
    return {"deterministic": True} if takes else {}


def _keys_and_causal(visible: np.ndarray, causal: bool) -> masks.Mask:
    keys = masks.Explicit(jnp.asarray(visible)[:, None, None])
    return masks.Causal() & keys if causal else keys
