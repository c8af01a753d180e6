"""Arrays on a mesh of devices: inside `jax.shard_map`, and on a mesh with Explicit axes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from attnlab.devices.split import Split, as_tuple, enter

__all__ = ["as_examples", "like", "on_explicit_axes", "spec_of", "vary_like"]

P = ParamSpec("P")
T = TypeVar("T")


def vary_like(tree: T, *operands: object) -> T:
    """The tree, its arrays typed as different on all devices that any array here differs on.

    Inside `jax.shard_map` the type of an array says over which mesh axes it varies. Operations
    settle that between them, but the carry of a loop must begin as it ends, and a constant varies
    over nothing. A custom VJP must return gradients typed as what it was given: where all of that
    varies alike, the sum over the devices that share a parameter is the transpose of this cast.

    Args:
      tree: arrays to be cast.
      operands: arrays that those of `tree` will be computed with.
    """

    def varies_over(x):
        return jax.typeof(x).manual_axis_type.varying

    axes = frozenset().union(*map(varies_over, jax.tree.leaves((tree, operands))))

    def cast(x):
        missing = tuple(sorted(axes - varies_over(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def on_explicit_axes(
    specs: Callable[[Mapping[str, Any]], Any], *, of: str
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function of arrays, so that they may be on a mesh with Explicit axes.

    Such a mesh, which `jax.make_mesh` makes by default, wants every operation to say how its result
    is split, and sorts, gathers and merged axes cannot. Within the function its axes are Auto, and
    what attends is divided as one of its arrays is (`split.over`).

    Args:
      specs: function of the arguments by name that says how the result is split: a tree of specs,
        or one for all of it.
      of: name of the argument [*B, T, N, H] that the work is divided as.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def on_any_mesh(*args: P.args, **kwargs: P.kwargs) -> T:
            leaves, structure = jax.tree.flatten((args, kwargs))
            explicit = {i: x for i, x in enumerate(leaves) if _is_on_explicit_axes(x)}
            if not explicit:
                return function(*args, **kwargs)
            mesh = jax.typeof(next(iter(explicit.values()))).sharding.mesh
            arguments = signature.bind(*args, **kwargs).arguments

            def with_auto_axes(explicit):
                now = [explicit.get(i, x) for i, x in enumerate(leaves)]
                args, kwargs = jax.tree.unflatten(structure, now)
                with enter(_split_of(arguments[of], mesh)):
                    return function(*args, **kwargs)

            wanted = jax.tree.map(
                lambda spec: NamedSharding(mesh, spec),
                specs(arguments),
            )
            auto = jax.sharding.auto_axes(axes=mesh.explicit_axes, out_sharding=wanted)
            return auto(with_auto_axes)(explicit)

        return on_any_mesh

    return decorate


def like(name: str) -> Callable[[Mapping[str, Any]], PartitionSpec]:
    """For `on_explicit_axes`: split as this argument is, but for the last axis, which is whole."""
    return lambda arguments: PartitionSpec(*spec_of(arguments[name])[:-1], None)


def as_examples(name: str) -> Callable[[Mapping[str, Any]], PartitionSpec]:
    """For `on_explicit_axes`: split as the examples of this argument [*B, T, N, H] are."""
    return lambda arguments: PartitionSpec(*spec_of(arguments[name])[:-3])


def spec_of(x: jax.Array) -> tuple[Any, ...]:
    """Which axes of the mesh each axis of x is split over."""
    return tuple(jax.typeof(x).sharding.spec)


def _split_of(x: jax.Array, mesh: Any) -> Split:
    """What divides the examples and heads of x [*B, T, N, H]; its positions XLA gathers."""
    if not _is_on_explicit_axes(x):
        return Split(mesh)
    *batch, _, heads, _ = (None,) * (4 - x.ndim) + spec_of(x)
    return Split(mesh, as_tuple(batch[0]), as_tuple(heads))


def _is_on_explicit_axes(x: Any) -> bool:
    return isinstance(x, jax.Array) and bool(jax.typeof(x).sharding.mesh.explicit_axes)
