"""One step of training, and one of validation, as pure functions of state and batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from attnlab.checks import require, require_choice
from attnlab.tokens import PAD
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
    """What a step says of itself: the sums over its batch, and the L2 norm of its mean gradient."""

    sums: TokenSums
    gradient_norm: jax.Array


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    label_smoothing: float = 0.0,
    gradient_mean_over: str = "tokens",
    accumulate: int = 1,
    axis_name: str | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """(state, batch) → (state, metrics), minimising the mean loss of the whole batch.

    Args:
      model: called as `model.apply(variables, **batch, deterministic=False)` with a "dropout" key,
        gives the logits [B, T, V] of `batch["target"]`, or of `batch["tokens"]` if there is none.
      optimizer: of the parameters.
      label_smoothing: ε of `token_sums`.
      gradient_mean_over: "tokens" or "sentences", by whose number in the whole batch the gradient
        of the summed loss is divided; a packed row has a sentence a segment. Over sentences it is
        longer by their mean number of tokens, about 27 in WMT14: SGD's steps are as much larger
        and a clip norm is reached as much earlier. Adam and Adadelta see it through ε alone. The
        metrics are sums over tokens in either case.
      accumulate: the batch is split in so many parts, whose gradients are added up one after the
        other: the same step in about 1/accumulate of the memory for activations.
      axis_name: of the devices under `jax.pmap`, each with its rows of the batch and its own
        dropout; None under `jit`.

    Raises:
      ValueError: another `gradient_mean_over`; when traced, rows that `accumulate` does not divide.
    """
    require_choice("gradient_mean_over", gradient_mean_over, ("tokens", "sentences"))

    def loss(params, batch, key):
        logits: Any = model.apply(
            {"params": params}, **batch, deterministic=False, rngs={"dropout": key}
        )
        sums = token_sums(logits, predicted(batch), label_smoothing=label_smoothing)
        return sums.loss, sums

    def gradients(params, batch, key):
        (_, sums), found = jax.value_and_grad(loss, has_aux=True)(params, batch, key)
        count = sums.tokens if gradient_mean_over == "tokens" else num_sentences(batch)
        return found, sums, count

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        if axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        if accumulate == 1:
            found, sums, count = gradients(state.params, batch, key)
        else:
            found, sums, count = add_up(state.params, batch, key)
        if axis_name is not None:
            found, sums, count = jax.lax.psum((found, sums, count), axis_name)
        found = jax.tree.map(lambda g: g / jnp.maximum(count, 1), found)
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

        *sums, count = jnp.zeros((5,), jnp.float32)
        zero = jax.tree.map(jnp.zeros_like, params), TokenSums(*sums), count
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


def num_sentences(batch: Batch) -> jax.Array:
    """How many are predicted, float32: rows with any token, or the segments of packed rows."""
    segments = batch.get("target_segments" if "target" in batch else "segments")
    if segments is None:
        return (predicted(batch) != PAD).any(-1).sum(dtype=jnp.float32)
    begins = (jnp.diff(segments, axis=-1, prepend=0) != 0) & (segments != 0)
    return begins.sum(dtype=jnp.float32)
