"""How a case is split over devices: by batch, by heads or by sequence, as a `shard_map`.

| split      | a device has                     | and the devices exchange                    |
| ---------- | -------------------------------- | ------------------------------------------- |
| `batch`    | its sequences, all parameters    | the gradient of the parameters: a sum       |
| `heads`    | its heads and their projections  | sums of the outputs and of d_inputs         |
| `sequence` | its queries, all parameters      | keys and values, gathered; their gradients  |

Heads as in Megatron-LM (Shoeybi et al. 2019, §3, operators f and g): inputs and contexts are whole
on every device. Sequence gathers the streams of keys and values before they are projected, so that
each device projects all of them. The hash rounds of LSH are drawn alike for each device's heads.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from attnlab.bench import mechanisms
from attnlab.bench.case import Case
from attnlab.bench.mechanisms import Mechanism

AXIS = "split"  # of the mesh
SHARDS = ("batch", "heads", "sequence")


@dataclasses.dataclass(frozen=True)
class Split:
    """What goes where.

    Attributes:
      apply: (parameters, *streams) -> context of one device, inside of the `shard_map`.
      parameters: place of the parameters, a tree of specs or one for all.
      rows: place of the streams, of the context and of its cotangent, a spec.
      partial_loss: whether a device's loss is of its part only.
      partial_gradient: whether a device's gradient of the parameters is of its part only.
    """

    apply: Callable[..., jax.Array]
    parameters: Any
    rows: PartitionSpec
    partial_loss: bool
    partial_gradient: bool


def split(case: Case, mechanism: Mechanism) -> Split:
    """The split that `case.shard` names; by batch if it names none.

    Raises:
      NotImplementedError: the mechanism cannot be split so.
    """
    everywhere = PartitionSpec()
    match case.shard:
        case None | "batch":
            return Split(mechanism.apply, everywhere, PartitionSpec(AXIS), True, True)
        case "sequence":
            if case.mechanism == "lsh":
                raise NotImplementedError(
                    "lsh sorts the whole sequence, so it is not split by sequence; split batch or "
                    "heads"
                )
            rows = PartitionSpec(None, AXIS)
            return Split(_own_queries(mechanism), everywhere, rows, True, True)
        case "heads" if case.ops_only:
            of_heads = PartitionSpec(AXIS)  # every parameter leads with the heads
            rows = PartitionSpec(None, None, AXIS)
            return Split(mechanism.apply, of_heads, rows, True, False)
        case "heads":
            shapes = jax.eval_shape(mechanism.init, jax.random.key(0))
            specs = jax.tree_util.tree_map_with_path(_spec_of_heads, shapes)
            return Split(_own_heads(case), specs, everywhere, False, False)
    raise ValueError(f"no split {case.shard!r}; valid: {', '.join(SHARDS)}")


def _own_queries(mechanism: Mechanism) -> Callable[..., jax.Array]:
    """This device's queries over everybody's keys and values."""

    def apply(parameters: Any, *streams: jax.Array) -> jax.Array:
        named = dict(zip(mechanism.streams, streams, strict=True))
        query = named.pop("query")
        gathered = (jax.lax.all_gather(x, AXIS, axis=1, tiled=True) for x in named.values())
        q_offset = jax.lax.axis_index(AXIS) * query.shape[1]
        return mechanism.apply(parameters, query, *gathered, q_offset=q_offset)

    return apply


def _own_heads(case: Case) -> Callable[..., jax.Array]:
    """This device's heads, added up with everybody's after the output projection."""
    local = mechanisms.build(case, heads_over=case.devices)

    def apply(parameters: Any, *streams: jax.Array) -> jax.Array:
        layers = dict(parameters["params"])
        out = dict(layers["out"])
        bias = out.get("bias", jnp.zeros(()))
        if "bias" in out:
            out["bias"] = jnp.zeros_like(bias)  # added once, below, rather than by every device
        own = local.apply({"params": layers | {"out": out}}, *map(_read_by_all, streams))
        return _add_up(own) + bias.astype(own.dtype).reshape((1,) * (own.ndim - 1) + (-1,))

    return apply


def _spec_of_heads(path: Any, _: jax.ShapeDtypeStruct) -> PartitionSpec:
    """Kernels are [width, N, H], biases [N, H], the last projection [N, H, width] and [width].

    All parameters of a score lead with the heads.
    """
    layer, kind = path[-2].key, path[-1].key
    if layer == "score":
        return PartitionSpec(AXIS)
    if layer == "out":
        return PartitionSpec(AXIS) if kind == "kernel" else PartitionSpec()
    return PartitionSpec(None, AXIS) if kind == "kernel" else PartitionSpec(AXIS)


@jax.custom_vjp
def _read_by_all(x: jax.Array) -> jax.Array:
    """x; the gradient is the sum of all devices', each of which knows its heads' share."""
    return x


_read_by_all.defvjp(lambda x: (x, None), lambda _, g: (jax.lax.psum(g, AXIS),))


@jax.custom_vjp
def _add_up(x: jax.Array) -> jax.Array:
    """Σ over the devices, the same on all; so the gradient of each summand is the sum's."""
    return jax.lax.psum(x, AXIS)


_add_up.defvjp(lambda x: (jax.lax.psum(x, AXIS), None), lambda _, g: (g,))
