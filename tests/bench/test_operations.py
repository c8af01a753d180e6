"""Operations counted in traced programs, and their chains, against what they are by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import dot_product_attention, window_attention
from attnlab.bench import mechanisms, programs
from attnlab.bench.case import Case, Operations
from attnlab.bench.operations import count
from attnlab.devices.platforms import Platform, compiling_for
from attnlab.models.cells import TanhCell
from attnlab.models.recurrent import Recurrent
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.lsh import lsh_attention
from tests.papers.chains import longest_chain

N, D, HEADS = 24, 7, 2


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def test_products_functions_and_the_longest_chain():
    a, b, c = shape(3, 5), shape(5, 7), shape(7, 2)

    def function(a, b, c):
        return jnp.tanh(a @ b) @ c, a @ jnp.exp(b) / 2.0

    found = count(function, a, b, c)
    assert found == Operations(2 * 3 * 5 * 7 * 2 + 2 * 3 * 7 * 2, {"exp": 5 * 7, "tanh": 3 * 7})
    assert longest_chain(function, a, b, c) == 2


def test_a_division_counts_unless_it_is_by_a_constant_or_of_whole_numbers():
    def function(x):
        return x / x[0] + x / 3.0 + jnp.arange(5) // x.astype(int)

    assert count(function, shape(5)).functions == {"div": 5}


def test_a_loop_counts_as_often_as_it_runs():
    x, w = shape(5), shape(5, 5)

    def chain(x, w):
        return jax.lax.scan(lambda x, _: (w @ x, None), x, length=6)[0]

    def apart(x, w):
        return jax.lax.map(lambda row: row @ x, w @ w)

    assert count(chain, x, w) == Operations(6 * 2 * 25, {})
    assert count(apart, x, w) == Operations(2 * 125 + 5 * 2 * 5, {})
    assert (longest_chain(chain, x, w), longest_chain(apart, x, w)) == (6, 2)
    assert count(jax.jit(jax.vmap(chain, (0, None))), shape(4, 5), w).products == 4 * 6 * 50


def test_of_branches_that_are_not_known_the_one_with_the_fewest_operations_counts():
    def products(x, w):
        return jax.lax.cond(x[0] > 0, lambda: jnp.tanh(w) @ x, lambda: w @ (w @ x))

    def functions(x):
        return jax.lax.cond(x[0] > 0, lambda: jnp.tanh(x), lambda: x / x[0])

    assert count(products, shape(5), shape(5, 5)) == Operations(50, {"tanh": 25})
    assert longest_chain(products, shape(5), shape(5, 5)) == 2
    assert count(functions, shape(5)).functions == {"div": 5}


def test_a_loop_whose_length_depends_on_numbers_runs_as_often_as_they_say():
    def function(length, x, w):
        total = jax.lax.fori_loop(0, length, lambda _, y: y + w @ x, x)
        return jax.lax.map(lambda row: jax.lax.fori_loop(0, length, lambda _, y: y + 1, row), total)

    assert count(function, jnp.int32(4), shape(5), shape(5, 5)) == Operations(4 * 2 * 25, {})
    assert longest_chain(function, jnp.int32(4), shape(5), shape(5, 5)) == 1
    with pytest.raises(NotImplementedError, match="the length of a loop depends on numbers"):
        count(function, jax.ShapeDtypeStruct((), jnp.int32), shape(5), shape(5, 5))
    with pytest.raises(NotImplementedError, match="a chain of products goes through a loop"):
        longest_chain(
            lambda length, x, w: jax.lax.fori_loop(0, length, lambda _, y: w @ y, x),
            jnp.int32(4),
            shape(5),
            shape(5, 5),
        )


def test_a_loop_may_end_when_it_likes():
    def function(w):
        def body(carry):
            n, x = carry
            return n * 2, w @ x

        return jax.lax.while_loop(lambda carry: carry[0] < 40, body, (jnp.int32(3), w[0]))

    assert count(function, shape(5, 5)).products == 4 * 50  # 3, 6, 12, 24


def test_steps_of_a_loop_that_differ():
    """Inner loops of 0, 1, … 5 rounds; the last of them, and a branch, by what a step leaves."""
    w = shape(3, 3)

    def steps(w):
        def step(i):
            return jax.lax.fori_loop(i // 2, i, lambda _, x: w @ x, w[0])

        return jax.lax.map(step, jnp.arange(6))

    def carried(w):
        def step(n, _):
            x = jax.lax.cond(n > 4, lambda: w @ w[0], lambda: w[0])
            return n + 2, jax.lax.fori_loop(0, n, lambda _, x: w @ x, x)

        n, _ = jax.lax.scan(step, jnp.int32(1), length=4)
        return jax.lax.fori_loop(0, n, lambda _, x: w @ x, w[0])

    def branches(w):
        return jax.lax.map(lambda i: jax.lax.cond(i > 1, lambda: w @ w, lambda: w), jnp.arange(6))

    assert count(steps, w).products == (0 + 1 + 1 + 2 + 2 + 3) * 18
    assert count(carried, w).products == (1 + 3 + 5 + 7 + 2 + 9) * 18
    assert count(branches, w).products == 4 * 54


def test_a_chain_through_a_loop_is_as_long_as_it_is():
    """Two numbers that change places: each is multiplied every other time. And one that waits."""

    def turns(w, x):
        return jax.lax.scan(lambda c, _: ((c[1], w @ c[0]), None), (x, x), length=10)[0]

    def waits(w, x):
        start = (x, w @ (w @ (w @ x)))
        return jax.lax.scan(lambda c, _: ((w @ c[0], c[1] + c[0]), None), start, length=10)[0][1]

    assert longest_chain(turns, shape(5, 5), shape(5)) == 5
    assert longest_chain(waits, shape(5, 5), shape(5)) == 9
    assert longest_chain(lambda w, x: w @ (w @ x).at[0].add(1.0), shape(5, 5), shape(5)) == 2


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
    with compiling_for(Platform("cuda")):
        assert count(platform, shape(5), shape(5, 5)).products == 100


def test_what_is_not_counted_is_refused():
    with pytest.raises(NotImplementedError, match="what it computes is not seen"):
        count(jnp.linalg.solve, shape(5, 5), shape(5))


def test_a_kernel_is_refused():
    q = shape(1, N, 1, 8)
    with pytest.raises(NotImplementedError, match="pallas_call: what it computes is not seen"):
        count(lambda q: dot_product_attention(q, q, q, implementation=Pallas(interpret=True)), q)


def attention(name, way, passes="forward", **sizes):
    case = Case(
        name, passes=passes, implementation=way, ops_only=True, num_heads=HEADS, head_dim=D, **sizes
    )
    return count(*programs.traceable(case, mechanisms.build(case)))


@pytest.mark.parametrize("way", ["dense", "blockwise"])
@pytest.mark.parametrize("passes", ["forward", "forward_backward"])
def test_dot_product_attention(way, passes):
    """Two products forward, and their four gradients; blocks compute the logits once more."""
    found = attention("exact", way, passes, length=N, causal=False)
    backward, again = passes != "forward", way == "blockwise" and passes != "forward"
    loss = 2 * 2 * N * HEADS * D  # of the context with its cotangent, and its gradient
    one = 2 * HEADS * N * N * D
    assert found.products == (2 + 4 * backward + again) * one + loss * backward
    exponentials = HEADS * N * N * (1 + again)
    online = HEADS * N * (way == "blockwise")
    assert found.functions["exp"] == exponentials + online


def test_a_window_counts_the_blocks_it_visits():
    """Blocks are 64 wide: a query's own and the one before it, but for the first block."""
    q = shape(1, 256, 1, D)

    def window(q):
        return window_attention(q, q, q, window=(64, 0))

    assert count(window, q).products == (1 + 2 + 2 + 2) * 64 * 64 * 2 * 2 * D
    assert longest_chain(window, q) == 2


def test_additive_attention_divides_once_for_two_hidden_units():
    """tanh of a sum by the exponentials of its parts; the values are the only products."""
    found = attention("additive", "blockwise", length=2 * N, causal=False)
    pairs = HEADS * (2 * N) ** 2
    assert found.products == pairs * 2 * D
    of_context = HEADS * 2 * N * D
    assert found.functions["div"] == pairs * (D + 1) // 2 + of_context
    assert "tanh" not in found.functions


@pytest.mark.parametrize("blocks", [3, 129])
def test_causal_blocks_are_those_below_the_diagonal(blocks):
    """Of any number of blocks as fast: nothing is computed but which of them there are."""
    found = attention("exact", "blockwise", length=512 * blocks)
    assert found.products == blocks * (blocks + 1) // 2 * 512**2 * HEADS * 2 * 2 * D


def test_hashing_counts_its_chunks():
    """Each query sees its chunk and the one before, in each round; without hashing."""
    rounds, length, chunk = 3, 512, 16
    x = shape(1, length, HEADS, D)
    buckets = jax.ShapeDtypeStruct((1, rounds, length, HEADS), jnp.int32)

    def attend(x, buckets):
        return lsh_attention(x, x, buckets, chunk_size=chunk, implementation="sorted")

    pairs = HEADS * rounds * length * 2 * chunk
    sums = 2 * pairs  # of the weights, which are a product too
    assert count(attend, x, buckets).products == 2 * pairs * 2 * D + sums


def test_modules():
    x = shape(1, N, D)

    def of(module):
        arguments = jax.eval_shape(module.init, jax.random.key(0), x), x
        return count(module.apply, *arguments).products, longest_chain(module.apply, *arguments)

    assert of(Recurrent(cell=TanhCell, features=D)) == (2 * 2 * N * D * D, N)
    assert of(nn.Conv(D, (3,))) == (3 * 2 * N * D * D, 1)
