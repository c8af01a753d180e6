"""Operations counted in traced programs, against what they are by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import dot_product_attention, window_attention
from attnlab.bench.operations import Operations, count
from attnlab.models.cells import TanhCell
from attnlab.models.recurrent import Recurrent
from attnlab.ops.kernels.pallas import Pallas

N, D = 24, 7


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def test_products_functions_and_the_longest_chain():
    a, b, c = shape(3, 5), shape(5, 7), shape(7, 2)
    found = count(lambda a, b, c: (jnp.tanh(a @ b) @ c, a @ jnp.exp(b)), a, b, c)
    assert found == Operations(2 * 3 * 5 * 7 * 2 + 2 * 3 * 7 * 2, 3 * 7 + 5 * 7, 2)


def test_a_loop_counts_as_often_as_it_runs():
    x, w = shape(5), shape(5, 5)

    def chain(x, w):
        return jax.lax.scan(lambda x, _: (w @ x, None), x, length=6)[0]

    def apart(x, w):
        return jax.lax.map(lambda row: row @ x, w @ w)

    assert count(chain, x, w) == Operations(6 * 2 * 25, 0, 6)
    assert count(apart, x, w) == Operations(2 * 125 + 5 * 2 * 5, 0, 2)
    assert count(jax.jit(jax.vmap(chain, (0, None))), shape(4, 5), w).products == 4 * 6 * 50


def test_of_branches_the_costliest_counts():
    def function(x, w):
        return jax.lax.cond(x[0] > 0, lambda: w @ x, lambda: w @ (w @ x))

    assert count(function, shape(5), shape(5, 5)) == Operations(2 * 50, 0, 2)


def test_a_loop_whose_length_depends_on_numbers_is_run():
    def function(length, x, w):
        total = jax.lax.fori_loop(0, length, lambda _, y: y + w @ x, x)
        return jax.lax.map(lambda row: jax.lax.fori_loop(0, length, lambda _, y: y + 1, row), total)

    found = count(function, jnp.int32(4), shape(5), shape(5, 5))
    assert found == Operations(4 * 2 * 25, 0, 1)
    with pytest.raises(NotImplementedError, match="a chain of products goes through a loop"):
        count(
            lambda length, x, w: jax.lax.fori_loop(0, length, lambda _, y: w @ y, x),
            jnp.int32(4),
            shape(5),
            shape(5, 5),
        )


def test_a_chain_through_a_loop_is_as_long_as_it_is():
    """Two numbers that change places: each is multiplied every other time. And one that waits."""

    def turns(w, x):
        return jax.lax.scan(lambda c, _: ((c[1], w @ c[0]), None), (x, x), length=10)[0]

    def waits(w, x):
        start = (x, w @ (w @ (w @ x)))
        return jax.lax.scan(lambda c, _: ((w @ c[0], c[1] + c[0]), None), start, length=10)[0][1]

    assert count(turns, shape(5, 5), shape(5)).sequential == 5
    assert count(waits, shape(5, 5), shape(5)).sequential == 9
    assert count(lambda w, x: w @ (w @ x).at[0].add(1.0), shape(5, 5), shape(5)).sequential == 2


def test_branches_and_platforms_are_those_that_are_taken():
    def branch(n, x, w):
        many = jax.lax.fori_loop(0, n, lambda _, y: y + 1.0, x)
        return jax.lax.cond(n > 3, lambda: many, lambda: w @ many)

    assert count(branch, np.int32(4), shape(5), shape(5, 5)).products == 0
    assert count(branch, 2, shape(5), shape(5, 5)).products == 50

    def platform(x, w):
        return jax.lax.platform_dependent(
            x, cpu=lambda x: w @ x, tpu=lambda x: x, default=lambda x: w @ (w @ x)
        )

    assert count(platform, shape(5), shape(5, 5)).products == 50


def test_what_is_not_counted_is_refused():
    with pytest.raises(NotImplementedError, match="what it computes is not seen"):
        count(jnp.linalg.solve, shape(5, 5), shape(5))


def test_a_kernel_is_refused():
    q = shape(1, N, 1, 8)
    with pytest.raises(NotImplementedError, match="pallas_call: what it computes is not seen"):
        count(lambda q: dot_product_attention(q, q, q, implementation=Pallas(interpret=True)), q)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_attention(implementation):
    q = shape(1, N, 1, D)
    found = count(lambda q: dot_product_attention(q, q, q, implementation=implementation), q)
    assert (found.products, found.sequential) == (2 * 2 * N * N * D, 2)
    assert N * N <= found.transcendental <= N * N + 2 * N  # and those of the online softmax


@pytest.mark.slow
def test_a_window_counts_the_blocks_it_visits():
    """Blocks are 64 wide: a query's own and the one before it, but for the first block."""
    q = shape(1, 256, 1, D)
    found = count(lambda q: window_attention(q, q, q, window=(64, 0)), q)
    assert found.products == (1 + 2 + 2 + 2) * 64 * 64 * 2 * 2 * D and found.sequential == 2


def test_modules():
    x = shape(1, N, D)

    def of(module):
        return count(module.apply, jax.eval_shape(module.init, jax.random.key(0), x), x)

    recurrent = of(Recurrent(cell=TanhCell, features=D))
    assert (recurrent.products, recurrent.sequential) == (2 * 2 * N * D * D, N)
    convolution = of(nn.Conv(D, (3,)))
    assert (convolution.products, convolution.sequential) == (3 * 2 * N * D * D, 1)
