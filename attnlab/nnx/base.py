"""Parameters, random numbers and variables of an NNX module: all that differs from Linen."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnlab.core.checks import require
from attnlab.modules.conventions import AttentionBase, Projection, require_module_sizes
from attnlab.ops.routes import Route, SamplingRoute
from attnlab.scores import Score

__all__ = [
    "AttentionModule",
    "Call",
    "HashStats",
    "Learned",
    "SampledChoice",
    "SourceCache",
    "make_score",
]


# Flax's registry says which type of variable stands for a collection of Linen's, here and in
# `nnx.bridge.ToNNX`, in which the models are.
@nnx.register_variable_name("static", overwrite=True)
class SourceCache(nnx.Cache):
    """Keys and values of another sequence, which the first call that decodes projects."""


@nnx.register_variable_name("hash_stats", overwrite=True)
class HashStats(nnx.Variable):
    """The learned center of a route that hashes."""


@nnx.register_variable_name("choice", overwrite=True)
class SampledChoice(nnx.Intermediate):
    """What REINFORCE needs of a sample: `log_prob` and `entropy`, [*B, T, N]."""


class Learned(nnx.Module):
    """A score or a bias of positions with its parameters, each an `nnx.Param` of Linen's name.

    Args:
      module: Linen module that says which parameters there are, and makes the score of them.
      *inputs: inputs of a call.
      rngs: random numbers for the parameters.
      **options: keywords of a call.
    """

    def __init__(self, module: nn.Module, *inputs: Any, rngs: nnx.Rngs, **options: Any):
        self.module = module
        params: Any = module.init(rngs.params(), *inputs, **options).get("params", {})
        for name, made in params.items():
            setattr(self, name, as_parameters(made))

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The score of queries and keys, or the bias of numbers of heads, queries and keys."""
        params = nnx.to_pure_dict(nnx.state(self, nnx.Param))
        return self.module.apply({"params": params}, *inputs, **options)


def as_parameters(made: Any) -> Any:
    """Linen's arrays, or dicts of them, as `nnx.Param`s with the names of their axes."""
    if isinstance(made, dict):
        return nnx.Dict({name: as_parameters(one) for name, one in made.items()})
    if isinstance(made, nn.Partitioned):
        return nnx.Param(made.value, out_sharding=made.names)
    return nnx.Param(made)


class AttentionModule(AttentionBase, nnx.Module):
    """What every module here is: the fields of Linen's module as attributes, and the parameters.

    Initializers are no attributes: as functions that are equal to themselves alone, they would make
    two modules of one definition differ, so that `jit` compiles for each.

    Attributes:
      linen: Linen's module of the same name, which says the fields, their defaults and checks.
    """

    linen: ClassVar[Any]
    dtype: Any
    param_dtype: Any
    precision: Any
    logical_axes: bool
    dropout_rate: Any
    route: Route
    kernel_init: Any = None
    bias_init: Any = None
    out_kernel_init: Any = None
    out_bias_init: Any = None

    def set_fields(self, *sizes: int, rngs: nnx.Rngs, keep_rngs: bool, **fields: Any) -> Any:
        """Sets `rngs`, and the fields as attributes but for initializers and what holds arrays.

        Returns:
          Linen's module that has all of them.
        """
        given = self.linen(*sizes, parent=None, **fields)
        require_module_sizes(given)
        for field in dataclasses.fields(given):
            name = field.name
            kept = name not in ("parent", "name", "score", "position_bias")
            if field.init and kept and not name.endswith("_init"):
                setattr(self, name, getattr(given, name))
        streams = [name for name in self._streams() if name != "hash" or name in rngs]
        own = {name: rngs[name]() for name in streams if keep_rngs}
        self.rngs = nnx.Rngs(**own) if own else None
        return given

    def _streams(self) -> list[str]:
        """The streams of random numbers that a call draws from."""
        route = getattr(self, "route", None)
        drawn = {
            "dropout": self.dropout_rate > 0,
            "sample": isinstance(route, SamplingRoute),
            "hash": route is not None and "hash_key" in route.hash_keywords,
        }
        return [name for name, draws in drawn.items() if draws]

    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets what `nnx.view` changes in the module that it makes.

        Args:
          deterministic: whether nothing is dropped or sampled; None = as it was.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def make_linear(self, projection: Projection, rngs: nnx.Rngs) -> nnx.LinearGeneral:
        """The layer of a projection."""
        kernel_init = projection.kernel_init
        if self.logical_axes:
            kernel_init = nnx.with_partitioning(kernel_init, projection.axes)
        return nnx.LinearGeneral(
            projection.inputs,
            projection.outputs,
            axis=tuple(range(-len(projection.inputs), 0)),
            use_bias=projection.bias_init is not None,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=kernel_init,
            bias_init=projection.bias_init or nnx.initializers.zeros,
            rngs=rngs,
        )

    def make_norm(self, width: int, rngs: nnx.Rngs) -> nnx.RMSNorm:
        """The RMS norm of vectors of this width."""
        return nnx.RMSNorm(width, dtype=self.dtype, param_dtype=self.param_dtype, rngs=rngs)


class Given(nnx.Module):
    """A score whose arrays are variables, so that they are part of the state.

    Args:
      score: a value of `attnlab.scores` that holds arrays.
    """

    def __init__(self, score: Score):
        arrays, self.structure = jax.tree.flatten(score)
        self.arrays = nnx.List([nnx.Variable(jnp.asarray(x)) for x in arrays])

    def __call__(self, q: jax.Array, k: jax.Array) -> Score:
        """The score, whatever q and k."""
        return jax.tree.unflatten(self.structure, [x[...] for x in self.arrays])


def make_score(
    score: Any, num_heads: tuple[int, int], widths: tuple[int, int], rngs: nnx.Rngs
) -> Any:
    """A score with its arrays as variables; without any, or as a module of NNX, as it is.

    Args:
      score: a value of `attnlab.scores`, or a module that makes one, of Linen or NNX.
      num_heads: numbers of heads of queries and of keys.
      widths: widths of a head of queries and of keys.
      rngs: random numbers for its parameters.
    """
    if isinstance(score, nn.Module):
        shapes = [(1, 1, *sizes) for sizes in zip(num_heads, widths, strict=True)]
        return Learned(score, *map(jnp.zeros, shapes), rngs=rngs)
    if any(isinstance(x, jax.Array | np.ndarray) for x in jax.tree.leaves(score)):
        return score if isinstance(score, nnx.Module) else Given(score)
    return score


class Call:
    """One call of a module: the `Host` of what is computed.

    Args:
      module: module that is called.
      query: query of the call.
      rngs: random numbers of the call; None = those of the module.
      sow_weights: whether weights are sown, as Flax's modules do.
      decode: whether it decodes; then it draws no hash key, as those of two calls differ.

    Raises:
      ValueError: the module was made for queries of another width.
    """

    def __init__(self, module: Any, query: Any, rngs: Any, sow_weights: bool, decode: bool = False):
        width, name = module.in_features, type(module).__name__
        got = np.shape(query)
        rule = f"query must be [*B, T, {width}], as {name} was made with in_features={width}"
        require(got[-1:] == (width,), f"{rule}; got {got}")
        self.module, self.sow_weights, self.decode = module, sow_weights, decode
        self.rngs = module.rngs if rngs is None else rngs

    def apply_linear(self, name: str, projection: Projection, x: jax.Array) -> jax.Array:
        """x through the module's layer of this name."""
        return getattr(self.module, name)(x)

    def apply_norm(self, name: str, x: jax.Array) -> jax.Array:
        """x through the module's norm of this name."""
        return getattr(self.module, name)(x)

    def own_child(self, name: str, make: Any) -> Any:
        """The module's child of this name, made with it."""
        return getattr(self.module, name)

    def is_initializing(self) -> bool:
        """Whether parameters are being made: never in a call."""
        return False

    def is_mutable_collection(self, collection: str) -> bool:
        """Whether what is sown there, or moves, is kept."""
        return collection != "intermediates" or self.sow_weights

    def has_rng(self, name: str) -> bool:
        """Whether a call draws from a stream of just this name."""
        if name == "hash" and self.decode:
            return False
        return isinstance(self.rngs, nnx.Rngs) and name in self.rngs

    def make_rng(self, name: str) -> jax.Array:
        """A new key of the stream, or of the default one."""
        if isinstance(self.rngs, nnx.RngStream):
            return self.rngs()
        require(
            self.rngs is not None and (name in self.rngs or "default" in self.rngs),
            f"{type(self.module).__name__} draws from the stream {name!r}, which it was not made"
            f" with; call it with rngs=nnx.Rngs({name}=seed)",
        )
        return self.rngs[name]()

    def get_variable(self, collection: str, name: str, default: Any = None) -> Any:
        """The value of the module's variable, or the default where it is not there."""
        variable = getattr(self.module, name, None)
        return default if variable is None else variable.get_value()

    def put_variable(self, collection: str, name: str, value: Any) -> None:
        """Sets the module's variable."""
        variable = getattr(self.module, name, None)
        if variable is None:
            setattr(self.module, name, nnx.variable_type_from_name(collection)(value))
        else:
            variable.set_value(value)

    def sow(self, collection: str, name: str, value: Any) -> bool:
        """Keeps weights as Flax does; a choice where `nnx.capture` looks for it."""
        if collection == "choice" and not hasattr(self.module, "__captures__"):
            return False
        return self.module.sow(nnx.variable_type_from_name(collection), name, value)
