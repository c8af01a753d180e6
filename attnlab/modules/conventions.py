"""Conventions of Flax that every attention module keeps, written once.

What Linen's modules and those of `attnlab.nnx` check, name and compute is written for both: an
`AttentionBase` computes with what its `Host` lends it. A Linen module is its own host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax.typing import ArrayLike

from attnlab.biases import Bias
from attnlab.core.checks import as_array, as_rate, require, require_sizes
from attnlab.core.shapes import fit
from attnlab.masks import Mask

Initializer = Callable[..., Any]

lecun_normal = nn.initializers.lecun_normal()
lecun_normal_per_head = nn.initializers.lecun_normal(batch_axis=(0,))


class Projection(NamedTuple):
    """One linear map of a module, x·W + b.

    Attributes:
      inputs: sizes of the axes of x that are summed over, the last ones.
      outputs: sizes of the axes that stand in their place.
      axes: names of the axes of W, for partitioning.
      kernel_init: initializer of W.
      bias_init: initializer of b, of the shape `outputs`; None = there is none.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: tuple[str | None, ...]
    kernel_init: Initializer
    bias_init: Initializer | None = None


class Host(Protocol):
    """What a call of a module has of its framework: layers, random numbers, variables.

    Most names are Linen's. A collection is "cache", "static", "hash_stats", "intermediates" or
    "choice".
    """

    def apply_linear(self, name: str, projection: Projection, x: jax.Array) -> jax.Array:
        """x through the layer of this name."""
        ...

    def apply_norm(self, name: str, x: jax.Array) -> jax.Array:
        """x through the RMS norm of this name, over its last axis."""
        ...

    def own_child(self, name: str, make: Callable[..., Any]) -> Any:
        """The child of this name, which Linen makes with `make(name=name)`."""
        ...

    def is_initializing(self) -> bool:
        """Whether parameters and caches are being made, and nothing is decoded."""
        ...

    def is_mutable_collection(self, collection: str) -> bool:
        """Whether what is sown there, or moves, is kept."""
        ...

    def has_rng(self, name: str) -> bool:
        """Whether the call has a stream of this name."""
        ...

    def make_rng(self, name: str) -> jax.Array:
        """A new key of a stream."""
        ...

    def get_variable(self, collection: str, name: str, default: Any = None) -> Any:
        """The value of a variable, or the default where it is not there."""
        ...

    def put_variable(self, collection: str, name: str, value: Any) -> None:
        """Sets a variable, which need not be there yet."""
        ...

    def sow(self, collection: Any, name: str, value: Any) -> bool:
        """Keeps a value for those who look."""
        ...


_Call = TypeVar("_Call", bound=Callable[..., Any])
_FLAX_NAMES = {"inputs_q": "query", "inputs_k": "key", "inputs_v": "value"}


def take_flax_names(call: _Call) -> _Call:
    """A decorator of `__call__`, which then takes its inputs by Flax's names as well."""

    @functools.wraps(call)
    def renamed(self: Any, *inputs: Any, **named: Any) -> Any:
        theirs = [name for name in _FLAX_NAMES if name in named]
        renamed_inputs = {_FLAX_NAMES[name]: named.pop(name) for name in theirs}
        return call(self, *inputs, **named, **renamed_inputs)  # a name that is there twice raises

    return cast(_Call, renamed)


class hook:  # noqa: N801, a decorator
    """A method that a subclass may write anew, and that returns no arrays.

    It is no function of its class: `nnx.tabulate` runs those of a module's class under `jit`.
    """

    def __init__(self, method: Callable[..., Any]):
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        return self if module is None else MethodType(self.method, module)


class AttentionBase:
    """What the modules of both frameworks share; their fields are those of `AttentionModule`."""

    deterministic: bool | None

    def _is_deterministic(self, called: bool | None) -> bool | None:
        """The call's `deterministic`, or the attribute where that is None."""
        return self.deterministic if called is None else called


class AttentionModule(nn.Module, kw_only=True):
    """What every attention module may be told, all keywords.

    Attributes:
      dropout_rate: probability of dropping a weight, drawn from the "dropout" rng stream.
      dtype: dtype of the computation; None = that of inputs and `param_dtype` together.
      param_dtype: dtype of the parameters.
      precision: precision of the matrix products.
      kernel_init: initializer of the projections and of other matrices.
      logical_axes: whether to name the axes of these for partitioning: "embed", "heads",
        "head_dim", and "hidden" of what is no head.
      deterministic: whether nothing is dropped or sampled, where the call does not say. Under
        `nn.remat` it must be said here, as that makes tracers of a call's keywords.
    """

    dropout_rate: float = 0.0
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = lecun_normal
    logical_axes: bool = False
    deterministic: bool | None = None

    @nn.nowrap  # here and below: no call that `capture_intermediates` would look at
    def apply_linear(self, name: str, projection: Projection, x: jax.Array) -> jax.Array:
        """x through the `nn.DenseGeneral` of this name, as `Host` has it."""
        return nn.DenseGeneral(
            projection.outputs,
            axis=tuple(range(-len(projection.inputs), 0)),
            use_bias=projection.bias_init is not None,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=name_axes(self, projection.kernel_init, *projection.axes),
            bias_init=projection.bias_init or nn.initializers.zeros,
            name=name,
        )(x)

    @nn.nowrap
    def apply_norm(self, name: str, x: jax.Array) -> jax.Array:
        """x through the `nn.RMSNorm` of this name."""
        return nn.RMSNorm(dtype=self.dtype, param_dtype=self.param_dtype, name=name)(x)

    @nn.nowrap
    def own_child(self, name: str, make: Callable[..., Any]) -> Any:
        """A child of this name."""
        return make(name=name)


class CallOptions(TypedDict, total=False):
    """Keywords of a call."""

    mask: Mask | jax.Array | None
    bias: Bias | jax.Array | None
    deterministic: bool | None


def as_query_key_value(module: Any, query, key, value) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Fills in key and value, and brings all three to the module's dtype."""
    require(
        key is not None or value is None,
        "value= needs key=: the values belong to keys; got value without key",
    )
    key = query if key is None else key
    value = key if value is None else value
    query, key, value = as_array("query", query), as_array("key", key), as_array("value", value)
    remedy = "one query an example is query[:, None]"
    fit("query: *B T Dq", query, "key: *B S Dk", key, "value: *B S Dv", value, remedy=remedy)
    dtype = module.dtype
    if dtype is None:  # that of all projections, so that what is not projected has it too
        dtype = jnp.result_type(query, key, value, module.param_dtype)
    query, key, value = promote_dtype(query, key, value, dtype=dtype)
    return query, key, value


def require_module_sizes(module: Any) -> None:
    """The fields of a module that count something must be sizes."""
    require_sizes(module, *(name for name in _SIZES if hasattr(module, name)))


def read_mask(mask: Any) -> tuple[Any, ArrayLike]:
    """A mask of a call with 0 and 1 as booleans, and whether it has no other numbers.

    Flax's own helpers make masks of 0.0 and 1.0. An array with other numbers, such as a term that
    is added to the logits, would be read as its contrary.

    Raises:
      ValueError: there are others, as far as that is known while tracing.
    """
    if mask is None or isinstance(mask, Mask | str | type):
        return mask, True
    array = as_array("mask", mask)
    if array.dtype == jnp.bool_:
        return mask, True
    visible = array == 1
    fits = jnp.all(visible | (array == 0))
    require(
        isinstance(fits, jax.core.Tracer) or bool(fits),
        f"a mask of numbers must be of 0 and 1, 1 = may attend; got others, {array.dtype} (additive"
        " terms go to bias=)",
    )
    return visible, fits


_SIZES = (
    "num_heads",
    "num_kv_heads",
    "qkv_features",
    "value_features",
    "out_features",
    "features",
    "max_length",
)


def dropout_options(
    module: Any, host: Host, deterministic: bool | None, *, key: jax.Array | None = None
) -> dict[str, Any]:
    """The dropout keywords of `attention`, with `key` or one from the "dropout" stream."""
    rate = as_rate(module.dropout_rate)
    if rate == 0.0 or deterministic:
        return {}
    require(
        deterministic is not None,
        f"{type(module).__name__} with dropout_rate={rate} must be told whether to "
        "drop: call or make it with deterministic=True or False; got None",
    )
    key = host.make_rng("dropout") if key is None else key
    return {"dropout_rate": rate, "dropout_key": key}


def name_axes(module, init: Initializer, *names: str | None) -> Initializer:
    """`init`, with the axes of the parameter named where the module asks for it."""
    return nn.with_logical_partitioning(init, names) if module.logical_axes else init
