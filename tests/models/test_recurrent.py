"""Recurrent layers: each cell's equations, lengths, directions and how kernels begin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import positions
from attnlab.core.tokens import rows_of
from attnlab.models.cells import (
    GRUCell,
    LSTMCell,
    TanhCell,
    orthogonal_blocks,
    uniform_around_zero,
)
from attnlab.models.recurrent import Recurrent, add_residual
from attnlab.modules.biases import RelativePositionBias
from tests.models import rnn_oracle
from tests.models.rnn_checks import EXACT

B, S, D, N = 3, 5, 2, 7
LENGTHS = (5, 3, 0)
STEPS = {GRUCell: rnn_oracle.gru, LSTMCell: rnn_oracle.lstm, TanhCell: rnn_oracle.tanh_rnn}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cell", STEPS)
def test_a_layer_is_its_equations_and_ends_with_the_sentence(cell, backward):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, S, D))
    start = [rng.normal(size=(B, N)) for _ in range(cell.num_states)]
    start = tuple(start) if len(start) > 1 else start[0]
    layer = Recurrent(cell, N, backward, param_dtype=jnp.float64)
    shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), x))["params"]
    params = jax.tree.map(lambda x: rng.normal(size=x.shape), shapes)

    @jax.jit
    def both(params, x):
        lengths = jnp.array(LENGTHS)
        return layer.apply({"params": params}, x, lengths, start)

    # What is in the padding is so large that it would show if anything of it were used.
    padding = (np.arange(S) >= np.array(LENGTHS)[:, None])[..., None]
    outputs, last = both(params, np.where(padding, 1e30, x))
    for b, length in enumerate(LENGTHS):
        words = x[b, :length][:: -1 if backward else 1]
        first = jax.tree.map(lambda s, b=b: s[b], start)
        true = rnn_oracle.run(STEPS[cell], params, first, words)
        shown = [s[1] if isinstance(s, tuple) else s for s in true][:: -1 if backward else 1]
        if length:
            np.testing.assert_allclose(outputs[b, :length], shown, **EXACT)
        assert not outputs[b, length:].any()
        end = true[-1] if length else first
        for got, want in zip(*map(jax.tree.leaves, (last, end)), strict=True):
            np.testing.assert_allclose(got[b], want, **EXACT)


def test_states_are_float32_whatever_the_products_are():
    layer = Recurrent(LSTMCell, N, dtype=jnp.bfloat16)
    x = jnp.ones((B, S, D))
    outputs, (c, h) = jax.eval_shape(lambda: layer.init_with_output(jax.random.key(0), x)[0])
    assert (outputs.dtype, c.dtype, h.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)


def test_initial_kernels():
    kernel = jax.jit(lambda key: orthogonal_blocks(key, (N, 3 * N)))(jax.random.key(0))
    blocks = jnp.split(kernel, 3, 1)
    for block in blocks:
        np.testing.assert_allclose(block @ block.T, np.eye(N), atol=1e-5)
    assert abs(blocks[0] - blocks[1]).max() > 0.1, "one draw a gate"
    uniform = uniform_around_zero(0.1)(jax.random.key(0), (50, 50))
    assert -0.1 <= uniform.min() < -0.09 and 0.09 < uniform.max() <= 0.1


def test_a_dense_residual_is_of_all_inputs_below():
    inputs, output = [jnp.full((B, N), 1.0), jnp.full((B, N), 10.0)], jnp.full((B, N), 100.0)
    added = {kind: add_residual(kind, output, inputs)[0, 0] for kind in (None, "add", "dense")}
    assert added == {None: 100, "add": 110, "dense": 111}


TABLES = {  # how a row of a table is taken
    "rows": rows_of,
    "learned positions": positions.learned,
    "axial positions": lambda x, ids: positions.axial([x], ids),
    "relative positions": lambda x, ids: (
        RelativePositionBias(
            num_buckets=2, max_distance=2, bidirectional=False, param_dtype=x.dtype
        )
        .apply({"params": {"embedding": x}}, 1, 1, len(ids))
        .by_distance
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_half_precision_sums_the_gradient_of_a_row_in_float32(name):
    """Of 512 that took it: bfloat16 would stop at 256."""
    table, ids = jnp.zeros((2, 1), jnp.bfloat16), jnp.zeros((512,), int)
    taken = TABLES[name]
    gradient = jax.grad(lambda x: taken(x, ids).astype(jnp.float32).sum())(table)
    assert gradient[0, 0] == 512
