"""A case as one program, lowered from shapes alone: nothing is allocated before it is known to fit.

`lower` also accepts devices that are only described (`jax.experimental.topologies`), so that the
memory of a program can be had for an accelerator that is not there.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from attnlab.bench import sharding
from attnlab.bench.case import DECODE, Case
from attnlab.bench.mechanisms import Mechanism


def lower(case: Case, mechanism: Mechanism, devices: Sequence[jax.Device]) -> jax.stages.Lowered:
    """Traces and lowers the case for the devices; allocates nothing."""
    parameters, *inputs = _shapes(case, mechanism)
    function = _function(case, mechanism)
    if case.parallel == "pmap":
        count = len(devices)
        shapes = (
            jax.tree.map(lambda x: _struct((count, *x.shape), x.dtype), parameters),
            *(_struct((count, case.batch // count, *x.shape[1:]), x.dtype) for x in inputs),
        )
        parallel = jax.pmap(function, axis_name=sharding.AXIS, devices=list(devices))
        return parallel.lower(*shapes)
    of_parameters, of_rows = _shardings(case, parameters, devices)
    shapes = (
        jax.tree.map(lambda x, s: _struct(x.shape, x.dtype, s), parameters, of_parameters),
        *(_struct(x.shape, x.dtype, of_rows) for x in inputs),
    )
    if len(devices) == 1:
        donated = 0 if case.passes == DECODE else ()  # else a token would copy the cache
        return jax.jit(function, donate_argnums=donated).lower(*shapes)
    mesh = _mesh(devices)
    whole = NamedSharding(mesh, PartitionSpec())
    of_results = of_rows
    if case.passes == "forward_backward":
        of_results = whole, of_parameters, (of_rows,) * len(mechanism.streams)

    def over_mesh(*arguments: Any) -> Any:
        with sharding.over_devices(case, mesh):
            return function(*arguments)

    return jax.jit(over_mesh, out_shardings=of_results).lower(*shapes)


def traceable(case: Case, mechanism: Mechanism) -> tuple[Any, ...]:
    """The function of a case and the shapes of its arguments, all of it on one device."""
    alone = dataclasses.replace(case, devices=1, shard=None, parallel="jit")
    return (_function(alone, mechanism), *_shapes(alone, mechanism))


def _shapes(case: Case, mechanism: Mechanism) -> list[Any]:
    """Of the parameters, the streams and, for a gradient, the cotangent."""
    parameters = jax.eval_shape(mechanism.init, jax.random.key(0))
    rows = _shape(case, mechanism)
    inputs = [rows] * len(mechanism.streams)
    if case.passes == "forward_backward":
        example = _struct((1, *rows.shape[1:]), rows.dtype)
        context = jax.eval_shape(mechanism.apply, parameters, *([example] * len(inputs)))
        inputs.append(_struct((case.batch, *context.shape[1:]), context.dtype))
    return [parameters, *inputs]


def arguments(
    case: Case,
    mechanism: Mechanism,
    devices: Sequence[jax.Device],
    streams: dict[str, np.ndarray],
    lowered: jax.stages.Lowered,
) -> tuple[Any, ...]:
    """The arguments on their devices: parameters, streams and, for a gradient, a cotangent.

    The cotangent is random: with all ones a softmax's gradient nearly cancels.
    """
    if case.passes == DECODE:
        whole = streams[mechanism.streams[0]].reshape(case.batch, case.length, case.width)
        whole = jax.device_put(whole.astype(case.dtype), devices[0])
        before = case.length - new_tokens(case)

        @jax.jit  # the context is not returned, so that no attention is computed
        def fill(variables: Any, tokens: jax.Array) -> Any:
            return mechanism.apply(variables, tokens)[1]

        return fill(_initialize(mechanism), whole[:, :before]), whole[:, before:][:, :1]
    rows = _shape(case, mechanism)
    batched = [streams[name].reshape(rows.shape).astype(rows.dtype) for name in mechanism.streams]
    parameters = _initialize(mechanism)
    if case.passes == "forward_backward":
        like = lowered.args_info[0][-1]
        width = like.shape[3:] if case.parallel == "pmap" else like.shape[2:]
        shape = (case.batch, case.length, *width)
        random = np.random.default_rng(1).standard_normal(shape, np.float32)
        batched.append(random.astype(like.dtype))
    if case.parallel == "pmap":
        count = len(devices)
        stacked = jax.tree.map(lambda x: np.stack([np.asarray(x)] * count), parameters)
        split = [x.reshape(count, case.batch // count, *x.shape[1:]) for x in batched]
        place = jax.pmap(lambda *x: x, devices=list(devices))  # puts each part on its device
        return tuple(place(stacked, *split))
    of_parameters, of_rows = _shardings(case, parameters, devices)
    return (
        jax.device_put(parameters, of_parameters),
        *(jax.device_put(x, of_rows) for x in batched),
    )


def new_tokens(case: Case) -> int:
    """Of the tokens of a cache that is decoded with, how many are new: the last ones."""
    return min(256, case.length // 2)


def _function(case: Case, mechanism: Mechanism) -> Any:
    """(parameters, *inputs) -> context, or (…, cotangent) -> (loss, two gradients)."""
    if case.passes in ("forward", DECODE):
        return mechanism.apply

    def loss(weights: Any, inputs: Any, cotangent: jax.Array) -> jax.Array:
        context = mechanism.apply(weights, *inputs)
        return jnp.vdot(context.astype(jnp.float32), cotangent.astype(jnp.float32))

    def forward_backward(weights: Any, *inputs: jax.Array) -> Any:
        *streams, cotangent = inputs
        value, (d_weights, d_inputs) = jax.value_and_grad(loss, argnums=(0, 1))(
            weights, tuple(streams), cotangent
        )
        if case.parallel == "pmap":  # as data-parallel training does
            value, d_weights = jax.lax.psum((value, d_weights), sharding.AXIS)
        return value, d_weights, d_inputs

    return forward_backward


def _shape(case: Case, mechanism: Mechanism) -> jax.ShapeDtypeStruct:
    tail = (case.num_heads, case.head_dim) if mechanism.split_heads else (case.width,)
    length = 1 if case.passes == DECODE else case.length
    return _struct((case.batch, length, *tail), case.dtype)


def _struct(shape: tuple[int, ...], dtype: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)


def _mesh(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.array(devices), (sharding.AXIS,))


def _shardings(case: Case, parameters: Any, devices: Sequence[jax.Device]) -> tuple[Any, Any]:
    """Where each of the parameters, and where the rows, live under jit."""
    if len(devices) == 1:
        alone = SingleDeviceSharding(devices[0])
        return jax.tree.map(lambda _: alone, parameters), alone
    mesh = _mesh(devices)
    specs = sharding.specs_of_parameters(case, parameters)
    of_parameters = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return of_parameters, NamedSharding(mesh, sharding.spec_of_rows(case))


@functools.lru_cache(maxsize=1)  # the lengths of one mechanism share their parameters
def _initialize(mechanism: Mechanism) -> Any:
    return jax.block_until_ready(jax.jit(mechanism.init)(jax.random.key(0)))
