"""One step of a recurrence: gated cells.

A cell is given its input already projected to the width of its gates, x = W input + b, so that a
layer multiplies W with the inputs of all steps at once, outside of the recurrence:

| cell       | step                                                                         |
| ---------- | ---------------------------------------------------------------------------- |
| `GRUCell`  | z, r = σ(x_z + U_z s), σ(x_r + U_r s); s̃ = tanh(x_s + U (r∘s));               |
|            | s ← (1 − z)∘s + z∘s̃                                                          |
| `LSTMCell` | i, f, o = σ(x_i + U_i h), …; c ← f∘c + i∘tanh(x_g + U_g h); h ← o∘tanh(c)     |
| `TanhCell` | h ← tanh(x + U h)                                                            |

The gates begin with the bias of the input projection alone, which is 0. The programs of the papers
may begin elsewhere: TensorFlow adds 1 to an LSTM's forget gate and begins both gates of a GRU at 1,
trax adds 1 to the LSTM's forget gate.

States are kept in at least float32, whatever the dtype of the matrix products. Letters: B batch, n
width of the state.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.modules.conventions import Initializer


def orthogonal_blocks(key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32):
    """Square orthogonal matrices side by side, [n, k·n]: a recurrent kernel of k gates."""
    rows, columns = shape
    keys = jax.random.split(key, columns // rows)
    # Not vmap: as many batched QRs at once as XLA:CPU has threads wait for each other for ever.
    init, wide = nn.initializers.orthogonal(), jnp.promote_types(dtype, jnp.float32)
    blocks = [init(key, (rows, rows), wide) for key in keys]  # QR takes no half precision
    return jnp.concatenate(blocks, axis=1).astype(dtype)


@dataclasses.dataclass(frozen=True)  # not a closure: its repr says the scale
class uniform_around_zero:  # an initializer, as those of `nn.initializers`
    """Uniform in [−scale, scale]."""

    scale: float

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32):
        return jax.random.uniform(key, shape, dtype, -self.scale, self.scale)


class Cell(nn.Module):
    """One step of a recurrence: `cell(state, x)` gives (next state, output [B, n]).

    A state is an array [B, n] or a tuple of such; x [B, num_gates · n] is the projected input.

    Attributes:
      features: width of the state, n.
      recurrent_init: initializer of the kernels that multiply the state, [n, k·n].
      param_dtype: dtype of the parameters.
    """

    features: int
    recurrent_init: Initializer = orthogonal_blocks
    param_dtype: Any = jnp.float32

    num_gates = 1  # a class attribute, not a field
    num_states = 1

    @classmethod
    def zero_state(cls, features: int, x: jax.Array) -> Any:
        """The state before the first step, for inputs like x [B, ...]."""
        zero = jnp.zeros((x.shape[0], features), jnp.promote_types(x.dtype, jnp.float32))
        return zero if cls.num_states == 1 else (zero,) * cls.num_states

    def times(self, name: str, state: jax.Array, num_gates: int, dtype: Any) -> jax.Array:
        """State [B, n] times the recurrent kernel `name`, [B, num_gates · n]."""
        shape = (self.features, num_gates * self.features)
        kernel = self.param(name, self.recurrent_init, shape, self.param_dtype)
        return state.astype(dtype) @ kernel.astype(dtype)


class GRUCell(Cell):
    """Gated recurrent unit with the reset gate before the product: Bahdanau et al. 2014, §A.1.1."""

    num_gates = 3

    @nn.compact
    def __call__(self, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The next state [B, n], twice; x = [x_z, x_r, x_s]."""
        n = self.features
        gates = nn.sigmoid(x[:, : 2 * n] + self.times("gates", state, 2, x.dtype))
        update, reset = gates[:, :n], gates[:, n:]
        recurrent = self.times("candidate", reset * state, 1, x.dtype)
        candidate = jnp.tanh(x[:, 2 * n :] + recurrent)
        state += update * (candidate - state)
        return state, state


class LSTMCell(Cell):
    """Long short-term memory without peepholes: Zaremba et al. 2014, §3.1; the state is (c, h)."""

    num_gates = 4
    num_states = 2

    @nn.compact
    def __call__(
        self, state: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """The next (c, h) and h; x = [x_i, x_f, x_o, x_g]."""
        c, h = state
        n = self.features
        x += self.times("gates", h, 4, x.dtype)
        gates = nn.sigmoid(x[:, : 3 * n])
        write, keep, show = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n :]
        c = keep * c + write * jnp.tanh(x[:, 3 * n :])
        h = (show * jnp.tanh(c)).astype(c.dtype)
        return (c, h), h


class TanhCell(Cell):
    """The recurrence without gates."""

    @nn.compact
    def __call__(self, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The next state [B, n], twice."""
        state = jnp.tanh(x + self.times("recurrent", state, 1, x.dtype)).astype(state.dtype)
        return state, state


CELLS: dict[str, type[Cell]] = {"gru": GRUCell, "lstm": LSTMCell, "tanh": TanhCell}
