"""One step of training, and one of validation, as pure functions of state and batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from attnlab.checks import require
from attnlab.training.loss import TokenSums, token_sums

__all__ = ["StepMetrics", "TrainState", "make_train_step", "make_validation_step"]

Batch = dict[str, Any]


@flax.struct.dataclass
class TrainState:
    """All that a step changes, and the key that it draws from.

    Attributes:
      step: steps done.
      params: of the model.
      opt_state: of the optimiser.
      key: the raw data of a PRNG key; a step uses it folded with its number.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key: jax.Array

    @classmethod
    def create(
        cls, model: nn.Module, optimizer: optax.GradientTransformation, batch: Batch, seed: int
    ) -> TrainState:
        """The state before the first step; `batch` gives the shapes."""
        for_init, for_steps = jax.random.split(jax.random.key(seed))
        params = jax.jit(lambda key: model.init(key, **batch)["params"])(for_init)
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            key=jax.random.key_data(for_steps),
        )


class StepMetrics(NamedTuple):
    """What a step says of itself: the sums over its batch, and its gradient's L2 norm."""

    sums: TokenSums
    gradient_norm: jax.Array


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    label_smoothing: float = 0.0,
    accumulate: int = 1,
    axis_name: str | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """(state, batch) → (state, metrics), minimising the mean loss a token of the whole batch.

    Args:
      model: called as `model.apply(variables, **batch, deterministic=False)` with a "dropout" key,
        gives the logits [B, T, V] of `batch["target"]`, or of `batch["tokens"]` if there is none.
      optimizer: of the parameters.
      label_smoothing: ε of `token_sums`.
      accumulate: the batch is split in so many parts, whose gradients are added up one after the
        other: the same step in about 1/accumulate of the memory for activations.
      axis_name: of the devices under `jax.pmap`, each with its rows of the batch and its own
        dropout; None under `jit`.
    """

    def loss(params, batch, key):
        logits: Any = model.apply(
            {"params": params}, **batch, deterministic=False, rngs={"dropout": key}
        )
        sums = token_sums(logits, predicted(batch), label_smoothing=label_smoothing)
        return sums.loss, sums

    def gradients(params, batch, key):
        (_, sums), found = jax.value_and_grad(loss, has_aux=True)(params, batch, key)
        return found, sums

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        if axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        if accumulate == 1:
            found, sums = gradients(state.params, batch, key)
        else:
            found, sums = add_up(state.params, batch, key)
        if axis_name is not None:
            found, sums = jax.lax.psum((found, sums), axis_name)
        found = jax.tree.map(lambda g: g / jnp.maximum(sums.tokens, 1), found)
        updates, opt_state = optimizer.update(found, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        after = TrainState(state.step + 1, params, opt_state, state.key)
        return after, StepMetrics(sums, optax.tree.norm(found))

    def add_up(params, batch, key):
        rows = len(predicted(batch))
        require(
            rows % accumulate == 0,
            f"accumulate must divide the rows of the batch a device; got {accumulate} and {rows}",
        )
        # Row i goes to part i mod accumulate, so that each device keeps its own rows.
        parts = jax.tree.map(
            lambda x: x.reshape(rows // accumulate, accumulate, *x.shape[1:]).swapaxes(0, 1), batch
        )

        def add(total, part):
            i, batch = part
            new = gradients(params, batch, jax.random.fold_in(key, i))
            return jax.tree.map(jnp.add, total, new), None

        zero = jax.tree.map(jnp.zeros_like, params), TokenSums(*jnp.zeros((4,), jnp.float32))
        return jax.lax.scan(add, zero, (jnp.arange(accumulate), parts))[0]

    return step


def make_validation_step(
    model: nn.Module, *, axis_name: str | None = None
) -> Callable[[Any, Batch], TokenSums]:
    """(params, batch) → the sums over the batch, without dropout or label smoothing."""

    def step(params: Any, batch: Batch) -> TokenSums:
        logits: Any = model.apply({"params": params}, **batch, deterministic=True)
        sums = token_sums(logits, predicted(batch))
        return sums if axis_name is None else jax.lax.psum(sums, axis_name)

    return step


def predicted(batch: Batch) -> jax.Array:
    """The tokens [B, T] that a model of this batch predicts."""
    return batch["target"] if "target" in batch else batch["tokens"]
