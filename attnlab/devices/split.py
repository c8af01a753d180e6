"""Attention over the devices of a mesh: each computes the rows of its own examples and heads.

XLA divides matrix products over devices by itself. What goes through rows in a loop or sorts them
(LSH, blocks on a CPU), and a kernel, it does not: every device would gather everything and compute
all of it. `over` says which axes of a mesh divide the examples and the heads; what attends then
does only its device's part, under `jit`, forward and gradient, with nothing to change in a model:

    with attnlab.over(mesh, batch="data", heads="model"):
        state = step(state, batch)

Letters of a layout name the axes of an array: b examples, n heads or key/value heads, t positions,
which are whole except in a ring; any other is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from attnlab.core.checks import require, require_instance

__all__ = [
    "Split",
    "Uneven",
    "as_tuple",
    "by_device",
    "copies_of_kv_heads",
    "current",
    "divide_examples",
    "divide_positions",
    "enter",
    "gathered",
    "heads_are_too_few",
    "over",
    "serves_kernels",
    "share_heads",
]

Axes = str | Sequence[str] | None


@dataclasses.dataclass(frozen=True)
class Split:
    """Which axes of a mesh divide what; hashable, as JAX's contexts are.

    Attributes:
      mesh: mesh of the devices.
      batch: axes that divide the examples.
      heads: axes that divide the heads.
      length: axes that divide the positions outside attention, and the heads within.
    """

    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
    batch: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    length: tuple[str, ...] = ()

    def size(self, axes: Sequence[str]) -> int:
        """Number of devices along these axes."""
        return math.prod(self.mesh.shape[axis] for axis in axes)


class Uneven(ValueError):
    """The devices of a mesh cannot share something evenly."""


# JAX counts it in when it looks for a trace that it has made already.
_split: Any = jax.make_user_context(None)


@contextlib.contextmanager
def over(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    *,
    batch: Axes = None,
    heads: Axes = None,
    length: Axes = None,
) -> Iterator[None]:
    """A context: what is traced in it attends device by device, each to its examples and heads.

    It must be entered where the step is traced or called, in the thread that does so. Inside
    `jax.shard_map` over the whole mesh, where a function is one device's already, it changes
    nothing. With no axes every device computes everything, which is asked for then and no accident.
    Arrays on Explicit axes say themselves what divides examples and heads, and need no context.

    Args:
      mesh: mesh of the devices, with Auto axes.
      batch: axis, or axes, of the mesh that divide the examples: the first batch axis of the
        arrays, which the number of devices must divide. A single example is computed by all.
      heads: axis, or axes, that divide the heads. Key/value heads fewer than the devices are
        copied.
      length: axis, or axes, that divide the positions of queries and keys, which they must share
        evenly. Attention exchanges positions for heads and back (all-to-all): in it a device has
        all positions of some heads. Where these devices do not divide the heads, exact attention
        sends keys and values round a ring of them instead, and in LSH attention several devices
        share the hash rounds of a head (not with `Published` options).

    Raises:
      ValueError: a mesh with Explicit axes; an axis that the mesh lacks or that is named twice;
        where it attends, as `Uneven`, sizes that the devices do not divide.
      RuntimeError: it is left in another thread than it was entered in.

    Source: all-to-all, DeepSpeed-Ulysses (Jacobs et al. 2023, §3); the ring, Liu et al. 2023.

    Example:
      >>> import attnlab, jax
      >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> qk, v = jax.random.normal(jax.random.key(0), (2, 2, 9, 1, 4))
      >>> with attnlab.over(mesh, batch="data"):
      ...     jax.jit(attnlab.routes.LSH())(attnlab.scores.Dot(), qk, qk, v).shape
      (2, 9, 1, 4)
    """
    fits = isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh)
    require_instance("mesh", mesh, fits, "a mesh", ' (jax.sharding.Mesh(jax.devices(), ("data",)))')
    require(
        jax.sharding.AxisType.Explicit not in mesh.axis_types,
        "over(mesh) divides the work on Auto axes; got Explicit ones, arrays on which say it"
        " themselves (make the mesh with axis_types=(jax.sharding.AxisType.Auto,) * axes)",
    )
    named = {"batch": batch, "heads": heads, "length": length}
    tuples = {name: as_tuple(axes) for name, axes in named.items()}
    used: list[str] = []
    for name, axes in tuples.items():
        for axis in axes:
            known = ", ".join(map(repr, mesh.axis_names))
            require(axis in mesh.axis_names, f"{name}={axis!r} is no axis of the mesh: {known}")
            require(axis not in used, f"an axis divides one thing; got {axis!r} twice")
            used.append(axis)
    # JAX's collectives may refuse axes in another order than the mesh's.
    tuples["length"] = tuple(sorted(tuples["length"], key=mesh.axis_names.index))
    thread = threading.get_ident()
    with _split(Split(mesh, **tuples)):
        yield
        if threading.get_ident() != thread:
            raise RuntimeError(
                "over(mesh) belongs to one thread; it was left in another (enter it in each)"
            )


def enter(split: Split | None) -> contextlib.AbstractContextManager[Any]:
    """A context like `over`, of a split that is known: for what is traced later."""
    return _split(split)


def current() -> Split | None:
    """The split of `over`; None outside, and inside `jax.shard_map`."""
    return None if jax.sharding.get_abstract_mesh().manual_axes else _split.value


def serves_kernels() -> bool:
    """Whether a kernel may be chosen unasked: `over` divides the work, or there is one device.

    Inside the user's own `jax.shard_map` it may not: with its defaults that refuses kernels.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        return False
    return _split.value is not None or jax.device_count() == 1


def by_device(
    function: Callable[..., Any],
    operands: Sequence[Any],
    layouts: Sequence[str],
    out: str | tuple[str, ...],
    *,
    name: str,
    batch: int,
    heads: int,
    partitioned: bool = False,
    rings: bool = False,
) -> Any:
    """function(*operands), each device with the part of the operands that `over` gives it.

    Args:
      function: function of arrays, independent between examples and between heads.
      operands: trees of arrays.
      layouts: layout of each operand: that of all of its arrays, as far as they have axes. An axis
        of size 1 is whole: it is meant for all.
      out: layout of the result, or of each of its parts.
      name: words for what is computed, in messages.
      batch: number of examples, b.
      heads: number of heads, n.
      partitioned: whether XLA divides the function over devices by itself, so that it may be
        compiled for several without `over`.
      rings: whether devices keep their positions, and the function exchanges them.

    Raises:
      Uneven: the devices do not divide the examples or the heads.
      NotImplementedError: when compiled for several devices outside of `over` what XLA would
        compute in full on each.
    """
    split = current()
    if split is not None and (split.mesh.size == 1 or batch == 0):
        return function(*operands)
    if split is None:
        if partitioned:
            return function(*operands)
        first, *rest = operands
        first = jax.tree.map(lambda x: _require_one_device.bind(x, name=name), first)
        return function(first, *rest)
    of_heads = {"heads": split.heads} | ({} if rings else {"length": split.length})
    axes = {"b": split.batch if batch > 1 else (), "n": sum(of_heads.values(), ())}
    axes |= {"t": split.length} if rings else {}
    if partitioned and not any(axes.values()):
        return function(*operands)
    if batch > 1:
        _require_even(split, f"{name}: {batch} examples", batch, batch=split.batch)
    _require_even(split, f"{name}: {heads} heads", heads, **of_heads)
    set_mesh = jax.sharding.get_abstract_mesh()
    require(
        set_mesh.empty or set_mesh.shape == split.mesh.shape,
        f"over(mesh) must be given the mesh of jax.set_mesh, {dict(set_mesh.shape)}; got"
        f" {dict(split.mesh.shape)}",
    )

    def spec(layout: str, x: Any) -> PartitionSpec:
        sizes = zip(layout, x.shape, strict=False)
        return PartitionSpec(*(axes.get(a) or None if size > 1 else None for a, size in sizes))

    in_specs = tuple(
        jax.tree.map(lambda x, layout=layout: spec(layout, x), operand)
        for operand, layout in zip(operands, layouts, strict=True)
    )
    # vma is not checked because kernels do not say over which axes their results vary.
    return jax.shard_map(
        function,
        mesh=None if _mesh_is_set() else split.mesh,
        in_specs=in_specs,
        out_specs=jax.tree.map(
            lambda layout: PartitionSpec(*(axes.get(letter) or None for letter in layout)), out
        ),
        check_vma=False,
    )(*operands)


def heads_are_too_few(num_heads: int) -> bool:
    """Whether positions are divided by devices that cannot have heads in exchange for them."""
    split = current()
    if split is None or not split.length:
        return False
    return num_heads % split.size(split.heads + split.length) != 0


def divide_positions(*arrays: jax.Array) -> Any:
    """The same arrays [*B, T, N, H], divided by positions where `over` says so; one alone, or all.

    Attention itself divides heads instead; XLA exchanges the one for the other (all-to-all).

    Raises:
      Uneven: the devices do not divide the positions.
    """
    split = current()

    def divide(x: jax.Array) -> jax.Array:
        length = x.shape[-3]
        if split is None or not split.length or length == 1:  # a decoder's step
            return x
        _require_even(split, f"a sequence of {length} positions", length, length=split.length)
        free = PartitionSpec.UNCONSTRAINED
        spec = PartitionSpec(*[free] * (x.ndim - 3), split.length, free, free)
        return jax.lax.with_sharding_constraint(x, _place(split, spec))

    results = tuple(map(divide, arrays))
    return results[0] if len(results) == 1 else results


def share_heads(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
    """q, k and v with positions divided, and key/value heads copied for the devices to share.

    Raises:
      Uneven: the devices do not divide the positions.
    """
    q, k, v = divide_positions(q, k, v)
    if (copies := copies_of_kv_heads(k.shape[-2], q.shape[-2])) > 1:
        k = jax.numpy.repeat(k, copies, axis=-2)
        v = jax.numpy.repeat(v, copies, axis=-2)
    return q, k, v


def divide_examples(tree: Any) -> Any:
    """The same arrays [B, …], divided by examples where `over` says so.

    In a backward pass over a divided state: else XLA may divide widths, and their sums travel.
    """
    split = current()
    if split is None or not split.batch:
        return tree

    def divide(x: jax.Array) -> jax.Array:
        if x.shape[0] % split.size(split.batch):
            return x
        spec = PartitionSpec(split.batch, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
        return jax.lax.with_sharding_constraint(x, _place(split, spec))

    return jax.tree.map(divide, tree)


def gathered(weights: jax.Array, hidden: int | None = None) -> jax.Array:
    """The same weights, on each device whole but for the hidden units, which `heads` divides too.

    To call before a loop over positions: else XLA gathers a divided state in each of its turns.

    Args:
      weights: weights of any shape.
      hidden: axis of the hidden units; None = there is none.
    """
    split = current()
    if split is None or split.mesh.size == 1:
        return weights
    spec: list[Any] = [None] * weights.ndim
    if hidden is not None and weights.shape[hidden] % split.size(split.heads) == 0:
        spec[hidden] = split.heads or None
    return jax.lax.with_sharding_constraint(weights, _place(split, PartitionSpec(*spec)))


def copies_of_kv_heads(num_kv_heads: int, num_heads: int) -> int:
    """How many of each key/value head let the devices of `over` share them evenly.

    Where no number does, those for the devices of `heads` alone: `length` then needs a ring.

    >>> auto = (jax.sharding.AxisType.Auto,)
    >>> mesh = jax.sharding.AbstractMesh((4,), ("model",), axis_types=auto)
    >>> with over(mesh, heads="model"):
    ...     copies_of_kv_heads(8, 8), copies_of_kv_heads(2, 8), copies_of_kv_heads(1, 6)
    (1, 2, 1)
    """
    split = current()
    if split is None:
        return 1
    group_size = num_heads // num_kv_heads
    copies = [n for n in range(1, group_size + 1) if group_size % n == 0]
    for devices in (split.size(split.heads + split.length), split.size(split.heads)):
        for n in copies:
            if num_kv_heads * n % devices == 0:
                return n
    return 1


def _require_even(split: Split, what: str, number: int, **axes: tuple[str, ...]) -> None:
    devices = split.size(sum(axes.values(), ()))
    named = ", ".join(f"{name}={'+'.join(x)!r}" for name, x in axes.items() if x)
    if number % devices:
        raise Uneven(
            f"{what} cannot be shared evenly by {devices} devices, over(mesh, {named}); make them a"
            f" multiple of {devices}, or share them over fewer"
        )


def as_tuple(axes: Axes) -> tuple[str, ...]:
    """The axes, of a name, several, or None."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def _mesh_is_set() -> bool:
    """Whether `jax.set_mesh` or an Explicit axis has said which mesh it is."""
    return not jax.sharding.get_abstract_mesh().empty


def _place(split: Split, spec: PartitionSpec) -> Any:
    return spec if _mesh_is_set() else NamedSharding(split.mesh, spec)


def _lower(ctx: Any, x: Any, *, name: str) -> list[Any]:
    # As `pallas_call` for TPUs asks: only here the number of devices is known.
    context = ctx.module_context.axis_context
    devices = getattr(context, "num_devices", 1)
    remedy = (
        'say what they share: with attnlab.over(mesh, batch="data", heads="model"), axes of your'
        " mesh"
    )
    if manual := getattr(context, "manual_axes", None):  # perhaps a part of the mesh
        left = [axis for axis in context.mesh.axis_names if axis not in manual]
        devices = math.prod(context.mesh.shape[axis] for axis in left)
        remedy = (
            "inside a shard_map attnlab.over divides nothing: make it one over the whole mesh,"
            f" also {', '.join(map(repr, left))}"
        )
    if devices > 1:
        raise NotImplementedError(
            f"{name} compiled for {devices} devices would be computed in full on each; {remedy}"
        )
    return [x]


_require_one_device = Primitive("require_one_device")
_require_one_device.def_impl(lambda x, name: x)
_require_one_device.def_abstract_eval(lambda x, name: x)
ad.deflinear(_require_one_device, lambda dx, name: [dx])
batching.defvectorized(_require_one_device)
mlir.register_lowering(_require_one_device, _lower)
