"""One step of training, and one of validation, as pure functions of state and batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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
      collections: its other variables, all that `init` makes beside the parameters: statistics that
        its training moves, such as LSH's learned centre. Empty for most models.
      opt_state: of the optimiser.
      key: the raw data of a PRNG key; a step uses it folded with its number.
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
        cls, model: nn.Module, optimizer: optax.GradientTransformation, batch: Batch, seed: int
    ) -> TrainState:
        """The state before the first step; `batch` gives the shapes."""
        for_init, for_steps = jax.random.split(jax.random.key(seed))
        collections: dict[str, Any] = dict(jax.jit(lambda key: model.init(key, **batch))(for_init))
        params = collections.pop("params")
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            collections=collections,
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
    streams: Sequence[str] = ("dropout",),
    axis_name: str | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """(state, batch) → (state, metrics), minimising the mean loss of the whole batch.

    Args:
      model: called as `model.apply(variables, **batch, deterministic=False)`, gives the logits
        [B, T, V] of `batch["target"]`, or of `batch["tokens"]` if there is none. The state's
        collections are mutable, and are what it left of them after the step.
      optimizer: of the parameters.
      label_smoothing: ε of `token_sums`.
      gradient_mean_over: "tokens" or "sentences", by whose number in the whole batch the gradient
        of the summed loss is divided; a packed row has a sentence a segment. Over sentences it is
        longer by their mean number of tokens, about 27 in WMT14: SGD's steps are as much larger
        and a clip norm is reached as much earlier. Adam and Adadelta see it through ε alone. The
        metrics are sums over tokens in either case.
      accumulate: the batch is split in so many parts, whose gradients are added up one after the
        other: the same step in about 1/accumulate of the memory for activations. Each part begins
        with the collections that the one before left.
      streams: of random numbers that the model draws from while it is trained. With "hash" the
        rotations of LSH are other ones in every step.
      axis_name: of the devices under `jax.pmap`, each with its rows of the batch and its own
        dropout, and the mean of all for its collections; None under `jit`.

    Raises:
      ValueError: another `gradient_mean_over`; when traced, rows that `accumulate` does not divide.
      NotImplementedError: when traced over an axis, a collection of integers, which have no mean.
    """
    require_choice("gradient_mean_over", gradient_mean_over, ("tokens", "sentences"))

    def loss(params, collections, batch, key):
        # The first stream has the key itself: a stream more does not change its numbers.
        keys = (jax.random.fold_in(key, i) if i else key for i in range(len(streams)))
        logits, moved = model.apply(
            {"params": params, **collections},
            **batch,
            deterministic=False,
            rngs=dict(zip(streams, keys, strict=True)),
            mutable=list(collections),
        )
        sums = token_sums(logits, predicted(batch), label_smoothing=label_smoothing)
        return sums.loss, (sums, dict(moved))

    def gradients(params, collections, batch, key):
        take = jax.value_and_grad(loss, has_aux=True)
        (_, (sums, moved)), found = take(params, collections, batch, key)
        count = sums.tokens if gradient_mean_over == "tokens" else num_sentences(batch)
        return (found, sums, count), moved

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        if axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        take = gradients if accumulate == 1 else add_up
        total, collections = take(state.params, state.collections, batch, key)
        if axis_name is not None:
            total = jax.lax.psum(total, axis_name)
            collections = mean_over(axis_name, collections)
        found, sums, count = total
        found = jax.tree.map(lambda g: g / jnp.maximum(count, 1), found)
        updates, opt_state = optimizer.update(found, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        after = TrainState(state.step + 1, params, collections, opt_state, state.key)
        return after, StepMetrics(sums, optax.tree.norm(found))

    def add_up(params, collections, batch, key):
        rows = len(predicted(batch))
        require(
            rows % accumulate == 0,
            f"accumulate must divide the rows of the batch a device; got {accumulate} and {rows}",
        )
        # Row i goes to part i mod accumulate, so that each device keeps its own rows.
        parts = jax.tree.map(
            lambda x: x.reshape(rows // accumulate, accumulate, *x.shape[1:]).swapaxes(0, 1), batch
        )

        def add(carry, part):
            total, collections = carry
            i, batch = part
            new, moved = gradients(params, collections, batch, jax.random.fold_in(key, i))
            return (jax.tree.map(jnp.add, total, new), moved), None

        *sums, count = jnp.zeros((5,), jnp.float32)
        zero = jax.tree.map(jnp.zeros_like, params), TokenSums(*sums), count
        return jax.lax.scan(add, (zero, collections), (jnp.arange(accumulate), parts))[0]

    return step


def make_validation_step(
    model: nn.Module, *, axis_name: str | None = None
) -> Callable[[Any, Batch], TokenSums]:
    """(variables, batch) → the sums over the batch, without dropout or label smoothing."""

    def step(variables: Any, batch: Batch) -> TokenSums:
        logits: Any = model.apply(variables, **batch, deterministic=True)
        sums = token_sums(logits, predicted(batch))
        return sums if axis_name is None else jax.lax.psum(sums, axis_name)

    return step


def mean_over(axis_name: str, collections: Any) -> Any:
    """The mean over devices, each of which saw other rows."""
    for path, x in jax.tree.leaves_with_path(collections):
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise NotImplementedError(
                "under pmap collections are means over the devices, so they must be floats; got "
                f"{x.dtype} at {jax.tree_util.keystr(path)} (use jit over a mesh)"
            )
    return jax.lax.pmean(collections, axis_name)


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
