"""How far a signal travels between two positions: Vaswani et al. 2017, Table 1, last column.

A path is the longest chain of matrix products in the fewest layers of a kind through which the last
position depends on the first: it is found by following the signal through layers.
"""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from attnlab import dot_product_attention, window_attention
from attnlab.models.cells import TanhCell
from attnlab.models.recurrent import Recurrent
from tests.daily import daily
from tests.papers.chains import longest_chain
from tests.papers.counted import KEPT, require_kept, rows_of

SIZES = {"n": 64, "k": 4, "r": 8}  # tokens, tokens of a kernel, neighbors
WIDTH = 2
EXPONENTS = {
    "O(1)": {"(n)": 0},
    "O(n)": {"(n)": 1},
    "O(log_k(n))": {"(log n)": 1, "(log k)": -1},
    "O(n/r)": {"(n)": 1, "(r)": -1},
}


def attend_all(x):
    x = x[None, :, None]  # [1, n, 1, width]
    return dot_product_attention(x, x, x, implementation="dense")[0, :, 0]


@functools.cache  # one program for the layers of a stack
def make_window(reach):
    def attend_neighbors(x):
        x = x[None, :, None]
        return window_attention(x, x, x, window=(reach, reach))[0, :, 0]

    return attend_neighbors


def make_recurrent(index):
    module = Recurrent(cell=TanhCell, features=WIDTH)
    variables = module.init(jax.random.key(index), jnp.zeros((1, 1, WIDTH)))
    return lambda x: module.apply(variables, x[None])[0][0]


def make_convolution(index, k):
    """The layer of that index, whose kernel has gaps of kⁱ tokens."""
    kernel = jax.random.normal(jax.random.key(index), (k, WIDTH, WIDTH))
    gap = k**index

    def convolve(x):
        return jax.lax.conv_general_dilated(
            x[None],
            kernel,
            window_strides=(1,),
            padding=[((k - 1) * gap, 0)],
            rhs_dilation=(gap,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )[0]

    return convolve


def make_layer(row, index, k, r):
    """A layer of a row's stack, of an array [n, width]."""
    match row:
        case "Self-Attention":
            return attend_all
        case "Self-Attention (restricted)":
            return make_window(r // 2)
        case "Recurrent":
            return make_recurrent(index)
        case "Convolutional":
            return make_convolution(index, k)


@functools.partial(jax.jit, static_argnums=0)
def find_read(layer, x, positions):
    """The positions [n, 1] that a layer reads for its outputs at some positions [n, 1]."""
    gradient = jax.grad(lambda x: jnp.sum(layer(x) * x, where=positions))(x)
    return jnp.any(gradient != 0, axis=-1, keepdims=True)


def count_path(row, *, n, k, r):
    x = jax.random.normal(jax.random.key(0), (n, WIDTH))
    reached = jnp.zeros((n, 1), bool).at[-1].set(True)
    layers = []
    while not reached[0]:
        layers.append(make_layer(row, len(layers), k, r))
        reached = find_read(layers[-1], x, reached)
    return longest_chain(lambda x: functools.reduce(lambda x, layer: layer(x), layers, x), x)


def measure_exponent(row, size):
    """log₂ of what doubling a size, or the log of one, multiplies the path by."""
    log, _, name = size.strip("()").rpartition(" ")
    base = SIZES | {"n": SIZES["n"] ** 2} if size == "(log k)" else SIZES
    grown = base | {name: base[name] ** 2 if log else 2 * base[name]}
    return math.log2(count_path(row, **grown) / count_path(row, **base))


@pytest.mark.parametrize(
    ("table", "row"), daily(rows_of("vaswani1_path"), ("vaswani1_path", "Convolutional"))
)
def test_how_the_longest_path_grows(table, row):
    paper = EXPONENTS[KEPT[table, row]["paper"]]
    ours = {size: measure_exponent(row, size) for size in paper}
    assert ours == paper
    require_kept(table, row, paper, ours)
