"""Recurrent layers: cells scanned over time, stacked, and read in both directions.

Letters: B batch, S or T time, D width of the input, n width of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.core.checks import as_rate, require
from attnlab.core.shapes import fit
from attnlab.core.tokens import rows_of
from attnlab.devices.meshes import vary_like
from attnlab.models.cells import Cell, orthogonal_blocks
from attnlab.modules.conventions import Initializer, lecun_normal

__all__ = [
    "Bidirectional",
    "Embed",
    "Layer",
    "Recurrent",
    "Stack",
    "StackStep",
    "keep_carry",
    "read_carry",
    "require_rows",
    "step_by_step",
    "time_first",
]


class Embed(nn.Embed):
    """`nn.Embed`, but with NaN for a negative id too: it is no word counted from the last."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        rows = rows_of(self.embedding, inputs)
        return rows if self.dtype is None else rows.astype(self.dtype)


class Layer(nn.Module, kw_only=True):
    """What every recurrent layer or decoder may be told, all keywords.

    Attributes:
      use_bias: whether the projections have biases.
      dtype: dtype of the matrix products; None = that of inputs and parameters.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of the projections.
      recurrent_init: initializer of the matrices that multiply the state.
    """

    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Initializer = lecun_normal
    recurrent_init: Initializer = orthogonal_blocks

    def _options(self) -> dict[str, Any]:
        return {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "kernel_init": self.kernel_init,
            "recurrent_init": self.recurrent_init,
        }

    def _dense(
        self,
        features: int,
        name: str,
        *,
        use_bias: bool | None = None,
        kernel_init: Initializer | None = None,
    ) -> nn.Dense:
        """A projection; None = what the layer was told."""
        return nn.Dense(
            features,
            use_bias=self.use_bias if use_bias is None else use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=kernel_init or self.kernel_init,
            name=name,
        )


class Recurrent(Layer):
    """One recurrent layer over a whole sequence.

    The keywords of `Layer` belong to it too.

    Attributes:
      cell: the class of the cell.
      features: width of the state, n.
      backward: whether to run from the last token to the first.
    """

    cell: type[Cell]
    features: int
    backward: bool = False

    @nn.compact
    def __call__(
        self, x: jax.Array, lengths: jax.Array | None = None, state: Any = None
    ) -> tuple[jax.Array, Any]:
        """Outputs [B, S, n] and the state after the last step (backward: after the first token).

        Args:
          x: inputs [B, S, D].
          lengths: number of real tokens of each row, [B]. From there on outputs are zero and the
            state stays as it is, so that a backward layer begins at the last real token; None = all
            tokens are real.
          state: state before the first step; None = zero.
        """
        x = self._dense(self.cell.num_gates * self.features, "input")(time_first(x))
        real = None if lengths is None else _is_real(x.shape[0], lengths)

        def step(cell, state, inputs):
            x, real = inputs
            after, output = cell(state, x)
            if real is not None:
                after = jax.tree.map(lambda new, old: jnp.where(real, new, old), after, state)
                output = jnp.where(real, output, 0)
            return after, output.astype(x.dtype)

        state, outputs = _over_time(step, backward=self.backward)(
            self.cell(self.features, self.recurrent_init, self.param_dtype, name="cell"),
            self.cell.zero_state(self.features, x[0]) if state is None else state,
            (x, real),
        )
        return time_first(outputs), state


class _Layers(Layer):
    """What several layers on top of each other are told; see `Stack`."""

    cell: type[Cell]
    features: int
    num_layers: int = 1
    residual: str | None = None
    dropout_rate: float = 0.0


class Stack(_Layers):
    """Recurrent layers on top of each other.

    With x¹ the input, layer l computes x^{l+1} = h^l(x^l), or in a residual (Britz et al. 2017,
    §4.3) x^{l+1} = h^l(x^l) + x^l, "add", or + Σ_{j ≤ l} x^j, "dense"; then x is as wide as n.

    The keywords of `Layer` belong to it too.

    Attributes:
      cell: the class of the cells.
      features: width of each layer's state, n.
      num_layers: number of layers.
      residual: kind of residual: None, "add" or "dense".
      dropout_rate: rate of dropout on the input of each layer, around which a residual goes
        (Zaremba et al. 2014).
      backward: whether to run from the last token to the first.
    """

    backward: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        lengths: jax.Array | None = None,
        states: tuple[Any, ...] | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """Outputs [B, S, n] of the top layer, and the last state of each layer.

        Args:
          x: inputs [B, S, D].
          lengths: number of real tokens of each row, [B]; None = all tokens are real.
          states: state of each layer before the first step; None = zero.
          deterministic: whether dropout is off.
        """
        inputs, after = [x], []
        for index in range(self.num_layers):
            layer = Recurrent(
                self.cell,
                self.features,
                backward=self.backward,
                name=f"layer_{index}",
                **self._options(),
            )
            output, state = layer(
                nn.Dropout(as_rate(self.dropout_rate))(inputs[-1], deterministic=deterministic),
                lengths,
                None if states is None else states[index],
            )
            inputs.append(add_residual(self.residual, output, inputs))
            after.append(state)
        return inputs[-1], tuple(after)


class Bidirectional(_Layers):
    """Two stacks that read the same sequence in opposite directions, their outputs side by side.

    Attributes: as for `Stack`, without `backward`.
    """

    @nn.compact
    def __call__(
        self, x: jax.Array, lengths: jax.Array | None = None, *, deterministic: bool = True
    ) -> tuple[jax.Array, tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Outputs [B, S, 2n]; forward states of the last token, backward ones of the first."""
        outputs, states = zip(
            *(
                Stack(
                    self.cell,
                    self.features,
                    self.num_layers,
                    residual=self.residual,
                    dropout_rate=self.dropout_rate,
                    backward=backward,
                    name="backward" if backward else "forward",
                    **self._options(),
                )(x, lengths, deterministic=deterministic)
                for backward in (False, True)
            ),
            strict=True,
        )
        return jnp.concatenate(outputs, -1), states


class StackStep(_Layers):
    """One step of a stack, for a decoder whose next input depends on what came out of this one.

    Its parameters have other names than those of `Stack`. The input projection of the first layer
    belongs to the caller.

    Attributes: as for `Stack`, without `backward`.
    """

    @nn.compact
    def __call__(
        self,
        states: tuple[Any, ...],
        gates: jax.Array,
        x: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[tuple[Any, ...], jax.Array]:
        """The next states and the output [B, n] of the top layer.

        Args:
          states: state of each layer.
          gates: projected input of the first layer, [B, num_gates · n].
          x: input of the first layer before its projection, [B, n], for a residual around that
            layer; None = no residual around it.
          deterministic: whether dropout is off.
        """
        inputs, after = [] if x is None else [x], []
        for index, state in enumerate(states):
            if index > 0:
                below = nn.Dropout(as_rate(self.dropout_rate))(
                    inputs[-1], deterministic=deterministic
                )
                width = self.cell.num_gates * self.features
                gates = self._dense(width, f"input_{index}")(below)
            cell = self.cell(
                self.features, self.recurrent_init, self.param_dtype, name=f"cell_{index}"
            )
            state, output = cell(state, gates)
            inputs.append(add_residual(self.residual, output.astype(gates.dtype), inputs))
            after.append(state)
        return tuple(after), inputs[-1]


def add_residual(kind: str | None, output: jax.Array, inputs: list[jax.Array]) -> jax.Array:
    """A layer's output plus its input, inputs[-1], or all of `inputs`."""
    added = {None: [], "add": inputs[-1:], "dense": inputs}[kind]
    for x in added:
        remedy = "for a residual make embed_features and hidden_features equal"
        fit("states: *B n", output, "inputs: *B n", x, remedy=remedy)
    return sum(added, output)


def _is_real(num_steps: int, lengths: jax.Array) -> jax.Array:
    """Which tokens are no padding, [S, B, 1]."""
    return (jnp.arange(num_steps)[:, None] < lengths[None])[..., None]


def time_first(x: jax.Array) -> jax.Array:
    """[B, T, ...] to [T, B, ...], as a scan runs without copying; and back."""
    return jnp.swapaxes(x, 0, 1)


def _over_time(step: Callable[..., Any], *, backward: bool = False, in_axes: Any = 0):
    """`step(module, state, x_t)`, one after the other along axis 0 of x; parameters are shared."""
    scan = nn.scan(
        step,
        variable_broadcast="params",
        split_rngs={"params": False, "dropout": True, "sample": True},
        in_axes=in_axes,
        reverse=backward,
    )
    # Inside `jax.shard_map` a start of zeros must vary over what the inputs do.
    return lambda module, start, *inputs: scan(module, vary_like(start, inputs), *inputs)


def require_rows(states: Any, rows: int) -> None:
    """Refuses tokens of other rows than the arrays of a memory or a state, which lead with them.

    Raises:
      ValueError: they have another number of rows.
    """
    found = {len(x) for x in jax.tree.leaves(states) if x.ndim}
    require(
        found <= {rows},
        f"tokens need as many rows as the memory and the cache; got {rows} and "
        f"{', '.join(map(str, sorted(found)))}",
    )


def read_carry(module: nn.Module, start: Any, rows: int, decode: bool) -> Any:
    """The state to begin with: `start`, or while decoding the state after the tokens so far.

    Args:
      module: decoder.
      start: state before the first token, a pytree whose arrays lead with the batch, or are scalar.
      rows: number of rows of the tokens, B.
      decode: whether to continue after the tokens in the cache.

    Raises:
      ValueError: the state is of another number of rows.
    """
    # What the module is initialized with is no token that came before.
    if decode and not module.is_initializing():
        start = module.variable("cache", "carry", lambda: start).value
    require_rows(start, rows)
    return start


def keep_carry(module: nn.Module, carry: Any, decode: bool) -> None:
    """Leaves the state for the call that decodes the next tokens."""
    if decode and not module.is_initializing():
        module.put_variable("cache", "carry", carry)


def step_by_step(
    module: nn.Module, step: Callable[..., Any], start: Any, x: jax.Array, memory: Any, decode: bool
) -> tuple[jax.Array, ...]:
    """What a decoder whose attention is within the step returns, each [B, T, ...].

    Args:
      module: decoder.
      step: function of (module, state, x_t, memory) that returns the next state and the outputs.
      start: state before the first token, as for `read_carry`.
      x: inputs of the steps, [T, B, D].
      memory: memory of the source, the same at each step.
      decode: whether to continue after the tokens in the cache.
    """
    carry = read_carry(module, start, x.shape[1], decode)
    carry, outputs = _over_time(step, in_axes=(0, nn.broadcast))(module, carry, x, memory)
    keep_carry(module, carry, decode)
    return tuple(map(time_first, outputs))
