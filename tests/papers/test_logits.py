"""How far logits spread before any training: Vaswani et al. 2017, footnote 4.

The variance over the source, of Britz's model of 128 units, untrained, on random words.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models import Britz
from tests.papers.counted import KEPT, judge_exponents, rows_of

WIDTHS = (128, 1024)  # of W_1 h and W_2 s
VOCAB, BATCH, LENGTH = 1000, 32, 32
ATTENTION = {"dot product": "mul", "scaled dot product": "scaled-mul"}
EXPONENTS = {"d": 1, "1": 0}  # by the paper's words


def measure_variance(attention, width):
    model = Britz(
        VOCAB,
        VOCAB,
        embed_features=128,
        hidden_features=128,
        attention=attention,
        attention_features=width,
    )
    source_key, target_key, key = jax.random.split(jax.random.key(0), 3)
    source = jax.random.randint(source_key, (BATCH, LENGTH), 4, VOCAB)
    target = jax.random.randint(target_key, (BATCH, LENGTH), 4, VOCAB)

    def translate(model):
        return model.decode(model.encode(source), target, return_weights=True)[1]

    weights = jax.jit(lambda key: model.init_with_output(key, method=translate)[0])(key)
    # A logit is the log of its weight but for a constant of the row.
    return float(np.mean(np.var(np.log(weights.astype(jnp.float32)), axis=-1)))


@pytest.mark.slow
@pytest.mark.parametrize(("table", "row"), rows_of("vaswani_footnote4"))
def test_the_variance_of_logits_grows_as_printed(table, row):
    kept = KEPT[table, row]
    first, last = [measure_variance(ATTENTION[row], width) for width in WIDTHS]
    exponent = math.log(last / first) / math.log(WIDTHS[1] / WIDTHS[0])
    ends = f"{first:.2g} at {WIDTHS[0]}, {last:.2g} at {WIDTHS[1]}"
    assert kept["ours"] == f"d^{exponent:.2f} ({ends})"
    assert kept["verdict"] == judge_exponents({"d": EXPONENTS[kept["paper"]]}, {"d": exponent})
