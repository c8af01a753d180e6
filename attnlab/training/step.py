"""One step of training, and one of validation, as pure functions of state and batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from attnlab.core.checks import require
from attnlab.training.objective import Batch, Objective

__all__ = [
    "StepMetrics",
    "TrainState",
    "divisors",
    "gradients_of",
    "make_train_step",
    "make_validation_step",
]


@flax.struct.dataclass
class TrainState:
    """All that a step changes, and the key that it draws from.

    Attributes:
      step: number of steps done.
      params: parameters of the model.
      collections: other variables of the model, all that `init` makes beside the parameters:
        statistics that its training moves, such as LSH's learned center. Empty for most models.
      opt_state: state of the optimizer.
      key: raw data of a PRNG key; a step uses it folded with its number.
    """

    step: jax.Array
    params: Any
    collections: dict[str, Any]
    opt_state: Any
    key: jax.Array

    @property
    def variables(self) -> dict[str, Any]:
        """What the model is applied with."""
        return {"params": self.params, **self.collections}

    def kept(self) -> dict[str, Any]:
        """What a checkpoint holds: every field, but no empty collections."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: x for name, x in fields.items() if name != "collections" or x}

    @classmethod
    def create(
        cls,
        model: nn.Module,
        optimizer: optax.GradientTransformation,
        inputs: Batch,
        seed: int,
        start: Callable[[Any], Any] | None = None,
    ) -> TrainState:
        """The state before the first step.

        Args:
          model: model to train.
          optimizer: optimizer of the parameters.
          inputs: arguments of the model, by name, which give the shapes.
          seed: seed of the parameters and of the steps.
          start: function of the parameters that `init` drew that returns the parameters to start
            from, such as another training's; None = those of `init`.
        """
        for_init, for_steps = jax.random.split(jax.random.key(seed))
        collections: dict[str, Any] = dict(jax.jit(lambda key: model.init(key, **inputs))(for_init))
        params = collections.pop("params")
        if start is not None:
            params = start(params)
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            collections=collections,
            opt_state=optimizer.init(params),
            key=jax.random.key_data(for_steps),
        )


class StepMetrics(NamedTuple):
    """Results of a step: its batch's sums and counts, and the L2 norm of its mean gradient."""

    sums: dict[str, jax.Array]
    counts: dict[str, jax.Array]
    gradient_norm: jax.Array


def make_train_step(
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    accumulate: int = 1,
    streams: Sequence[str] = ("dropout",),
    axis_name: str | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """(state, batch) → (state, metrics), minimizing the mean loss of the whole batch.

    Args:
      model: module, called as `model.apply(variables, **inputs, deterministic=False)`. The state's
        collections are mutable, and the new state has them as the model left them.
      objective: objective to minimize.
      optimizer: optimizer of the parameters.
      accumulate: number of parts of a batch, whose gradients are added up one after the other: the
        same step in about 1/accumulate of the memory for activations. Each part begins with the
        collections that the part before left.
      streams: names of the random numbers that the model draws from while it is trained. With
        "hash" the rotations of LSH differ from step to step.
      axis_name: name of the axis of devices under `jax.pmap`, each with its rows of the batch and
        its own dropout, while its collections become the mean over all; None under `jit`.

    Raises:
      ValueError: when traced, rows that `accumulate` does not divide.
      NotImplementedError: when traced over an axis, a collection of integers, which have no mean.
    """
    gradients = gradients_of(model, objective, streams)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        counts = objective.counts(batch)
        if axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
            counts = jax.lax.psum(counts, axis_name)
        over, shares = divisors(counts, objective.over)

        # total = (gradients, sums), both sums over rows, so parts and devices just add.
        take = gradients if accumulate == 1 else add_up
        total, collections = take(state.params, state.collections, batch, shares, key)
        if axis_name is not None:
            total = jax.lax.psum(total, axis_name)
            collections = mean_over(axis_name, collections)
        gradient, sums = total
        gradient = jax.tree.map(lambda g: g / over, gradient)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        after = TrainState(state.step + 1, params, collections, opt_state, state.key)
        return after, StepMetrics(sums, counts, optax.tree.norm(gradient))

    def add_up(params, collections, batch, shares, key):
        rows = len(jax.tree.leaves(batch)[0])
        require(
            rows % accumulate == 0,
            f"accumulate must divide the rows of the batch a device; got {accumulate} and {rows}",
        )
        # Row i goes to part i mod accumulate, so that each device keeps its own rows.
        parts = jax.tree.map(
            lambda x: x.reshape(rows // accumulate, accumulate, *x.shape[1:]).swapaxes(0, 1), batch
        )

        def of_part(part, i, collections):
            return gradients(params, collections, part, shares, jax.random.fold_in(key, i))

        def add(carry, part):
            total, collections = carry
            i, batch = part
            new, moved = of_part(batch, i, collections)
            return (jax.tree.map(jnp.add, total, new), moved), None

        # [accumulate, rows / accumulate, …]; the carry of the scan has the shapes of one part.
        first = jax.tree.map(lambda x: x[0], parts)
        shapes, _ = jax.eval_shape(of_part, first, 0, collections)
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(add, (zero, collections), (jnp.arange(accumulate), parts))[0]

    return step


def gradients_of(
    model: nn.Module, objective: Objective, streams: Sequence[str]
) -> Callable[..., tuple[tuple[Any, dict[str, jax.Array]], Any]]:
    """(params, collections, batch, shares, key) → ((gradient of the sums, sums), collections).

    Args:
      model: module to train.
      objective: objective to minimize.
      streams: names of the random numbers that the model draws from, as for `make_train_step`.
    """

    def loss(params, collections, batch, shares, key):
        # The first stream has the key itself: a stream more does not change its numbers.
        keys = (jax.random.fold_in(key, i) if i else key for i in range(len(streams)))
        outputs, moved = model.apply(
            {"params": params, **collections},
            **objective.inputs(batch),
            deterministic=False,
            rngs=dict(zip(streams, keys, strict=True)),
            mutable=list(collections),
        )
        sums = objective.sums(outputs, batch)
        return objective.loss(sums, shares), (sums, dict(moved))

    def gradients(params, collections, batch, shares, key):
        # By the parameters alone; collections come back as the model moved them.
        take = jax.value_and_grad(loss, has_aux=True)
        (_, (sums, moved)), by_parameters = take(params, collections, batch, shares, key)
        return (by_parameters, sums), moved

    return gradients


def divisors(counts: Mapping[str, jax.Array], over: str) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The count that a gradient is divided by in the end, and each count over it.

    Args:
      counts: counts of the whole batch, over all devices; one that is 0 divides by 1.
      over: name of the count of the gradient.
    """
    divides = {name: jnp.where(count > 0, count, 1) for name, count in counts.items()}
    return divides[over], {name: count / divides[over] for name, count in divides.items()}


def make_validation_step(
    model: nn.Module, objective: Objective, *, axis_name: str | None = None
) -> Callable[[Any, Batch], StepMetrics]:
    """(variables, batch) → the batch's sums and counts, without dropout; no gradient, norm 0."""

    def step(variables: Any, batch: Batch) -> StepMetrics:
        outputs = model.apply(variables, **objective.inputs(batch), deterministic=True)
        totals = objective.sums(outputs, batch), objective.counts(batch)
        if axis_name is not None:
            totals = jax.lax.psum(totals, axis_name)
        return StepMetrics(*totals, jnp.zeros(()))

    return step


def mean_over(axis_name: str, collections: Any) -> Any:
    """The mean of the collections over devices, each of which saw other rows."""
    for path, x in jax.tree.leaves_with_path(collections):
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise NotImplementedError(
                "under pmap collections are means over the devices, so they must be floats; got "
                f"{x.dtype} at {jax.tree_util.keystr(path)} (use jit over a mesh)"
            )
    return jax.lax.pmean(collections, axis_name)
