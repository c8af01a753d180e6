"""How the work and the memory of whole language models grow: Kitaev et al. 2020, Table 3."""

import functools

import jax
import jax.numpy as jnp
import pytest

from attnlab import routes
from attnlab.bench.operations import count
from attnlab.models.reformer import Reformer
from attnlab.models.transformer import TransformerLM
from attnlab.models.transformer.config import TransformerConfig
from tests.daily import daily
from tests.papers.counted import require_kept, require_kept_about, rows_of
from tests.papers.growth import count_bytes_between, measure_exponents

# l tokens, f the hidden width of the feed-forward networks, N layers, R hash rounds, chunks of c
# slots. A size grows from where its part of the work is the largest, by a factor.
WIDE = {"l": 1024, "f": 2**14, "N": 2, "R": 1, "c": 16}
LONG = {"l": 512, "f": 32, "N": 16, "R": 4, "c": 32}
BASES = {"l": LONG, "f": WIDE, "N": LONG, "R": LONG}
FACTOR = 4
WIDTH = 16
CHUNK = 64  # positions of which the hidden layer is computed at once
# What a row of the paper has.
HASHED = ("LSH Transformer", "Reformer")
CHUNKED = ("Chunked Reversible Transformer", "Reformer")
REVERSIBLE = ("Reversible Transformer", *CHUNKED)


def make_model(row, *, l, f, N, R, c):  # noqa: E741
    """The forward pass of a row's model, and shapes of its argument."""
    config = TransformerConfig(
        vocab_size=8,
        num_layers=N,
        width=WIDTH,
        hidden=f,
        num_heads=1,
        max_length=l,
        dropout_rate=0.0,
        feed_forward_chunk=CHUNK if row in CHUNKED else None,
        scan_layers=True,  # else compiling takes as many times as long as there are layers
    )
    if row in HASHED:
        route = routes.LSH(R, chunk_size=c, implementation="sorted")
    else:
        route = routes.AllPairs("dense")
    kind = Reformer if row in REVERSIBLE else TransformerLM
    module = kind(config, config.attention(route))

    def forward(variables):
        return module.apply(variables, jnp.ones((1, l), jnp.int32))

    return forward, [jax.eval_shape(module.init, jax.random.key(0), jnp.ones((1, 8), jnp.int32))]


def count_products(row, sizes):
    function, shapes = make_model(row, **sizes)
    return count(function, *shapes).products


def count_memory(row, sizes):
    return count_bytes_between(*make_model(row, **sizes))


@pytest.mark.parametrize(
    ("table", "row"),
    daily(rows_of("reformer3_time"), ("reformer3_time", "Reversible Transformer")),
)
def test_how_the_operations_of_a_model_grow(table, row):
    paper = {"l": 1, "N": 1, "R": 1} if row in HASHED else {"l": 2, "f": 1, "N": 1}
    bases = {size: BASES[size] for size in paper}
    ours = measure_exponents(functools.partial(count_products, row), bases, FACTOR)
    require_kept(table, row, paper, ours)


@pytest.mark.slow
@pytest.mark.parametrize(("table", "row"), rows_of("reformer3_memory"))
def test_how_the_memory_of_a_model_grows_with_its_layers(table, row):
    ours = measure_exponents(functools.partial(count_memory, row), {"N": LONG}, FACTOR)
    require_kept_about(table, row, {"N": 0 if row in REVERSIBLE else 1}, ours)
