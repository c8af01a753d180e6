"""The work and the memory of layers: Table 1 of Vaswani et al. 2017 and of Kitaev et al. 2020."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from attnlab import dot_product_attention, masks, window_attention
from attnlab.bench.operations import count
from attnlab.models.cells import TanhCell
from attnlab.models.recurrent import Recurrent
from attnlab.ops import routes
from attnlab.scores import Dot
from tests.daily import daily
from tests.papers.chains import longest_chain
from tests.papers.counted import KEPT, require_kept, require_kept_about, rows_of
from tests.papers.growth import count_bytes_between, measure_exponents

# Each size grows from here, the others as they are: n tokens, width d, kernels of k tokens, r
# neighbors, R hash rounds, chunks of c slots.
SIZES = {"n": 4096, "d": 64, "k": 4, "r": 512, "R": 4, "c": 64}
LONG = SIZES | {"n": 2**15}  # for memory: what does not grow with n is a small part then
REFORMER = {
    ("reformer1_time", "Scaled Dot-Product"): {"n": 2},
    ("reformer1_time", "Memory-Efficient"): {"n": 2},
    ("reformer1_time", "LSH Attention"): {"n": 1, "R": 1, "c": 2},
    ("reformer1_memory", "Scaled Dot-Product"): {"n": 2},
    ("reformer1_memory", "Memory-Efficient"): {"n": 2},
    ("reformer1_memory", "LSH Attention"): {"n": 1, "R": 1, "c": 2},
}


def make_layer(row, *, n, d, k, r, R, c):
    """The layer of a row, and shapes of its arguments."""

    def attend_all(x, implementation):
        return dot_product_attention(x, x, x, implementation=implementation)

    def attend_neighbors(x):
        return window_attention(x, x, x, window=(r // 2, r // 2))

    def attend_hashed(x):  # as in the paper
        route = routes.LSH(num_hashes=R, chunk_size=c, implementation="sorted")
        return route(Dot(), x, x, x, mask=masks.Causal())

    heads = [jax.ShapeDtypeStruct((1, n, 1, d), jnp.float32)]
    x = jax.ShapeDtypeStruct((1, n, d), jnp.float32)
    match row:
        case "Self-Attention" | "Scaled Dot-Product":
            return functools.partial(attend_all, implementation="dense"), heads
        case "Memory-Efficient":
            return functools.partial(attend_all, implementation="blockwise"), heads
        case "Self-Attention (restricted)":
            return attend_neighbors, heads
        case "LSH Attention":
            return attend_hashed, heads
        case "Recurrent":
            module = Recurrent(cell=TanhCell, features=d)
        case "Convolutional":
            module = nn.Conv(d, (k,))
    return module.apply, [jax.eval_shape(module.init, jax.random.key(0), x), x]


def count_products(row, sizes):
    """The floating-point operations of matrix products in the traced program."""
    function, shapes = make_layer(row, **sizes)
    return count(function, *shapes).products


def count_chain(row, sizes):
    """The longest chain of matrix products, each of which needs the one before."""
    function, shapes = make_layer(row, **sizes)
    return longest_chain(function, *shapes)


def count_memory(row, sizes):
    """The bytes that the compiled program takes."""
    return count_bytes_between(*make_layer(row, **sizes))


def read_exponents(words):
    """The exponents by size of a paper's words, such as O(n^2 * d)."""
    if words == "O(1)":
        return {"n": 0}
    powers = [one.partition("^") for one in words.removeprefix("O(").removesuffix(")").split(" * ")]
    return {size: int(power or 1) for size, _, power in powers}


@pytest.mark.parametrize(
    ("table", "row"),
    daily(
        rows_of("vaswani1_complexity", "vaswani1_sequential", "reformer1_time"),
        ("vaswani1_complexity", "Convolutional"),
        ("vaswani1_sequential", "Recurrent"),
        ("reformer1_time", "Memory-Efficient"),
    ),
)
def test_how_the_operations_of_a_layer_grow(table, row):
    paper = REFORMER.get((table, row)) or read_exponents(KEPT[table, row]["paper"])
    count_work = count_chain if table == "vaswani1_sequential" else count_products
    work = functools.partial(count_work, row)
    require_kept(table, row, paper, measure_exponents(work, dict.fromkeys(paper, SIZES), 2))


@pytest.mark.slow
@pytest.mark.parametrize(("table", "row"), rows_of("reformer1_memory"))
def test_how_the_memory_of_a_layer_grows(table, row):
    paper, work = REFORMER[table, row], functools.partial(count_memory, row)
    require_kept_about(table, row, paper, measure_exponents(work, dict.fromkeys(paper, LONG), 8))
