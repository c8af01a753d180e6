"""The operations of a training of the Transformer: Vaswani et al. 2017, Table 2.

The paper multiplies the time, the number of GPUs and the rate that one sustains (§6.1). Counted are
the products of matrices in the traced gradient of a batch's loss, times the steps.
"""

import jax
import jax.numpy as jnp
import pytest

from attnlab.bench.operations import count
from attnlab.models.transformer import Transformer, TransformerConfig
from attnlab.training.objective import token_sums
from experiments.tables.verdicts import EXACT
from tests.daily import daily
from tests.papers.counted import KEPT, rows_of

SENTENCES, LENGTH = 1000, 25  # a batch of "about 25,000 source and 25,000 target tokens", §5.1
DEVICES, RATE = 8, 9.5e12  # P100s, and the operations a second that footnote 5 gives one
TRAININGS = {  # hours, steps, other fields than those of the base model, parameters
    "Transformer (base)": (12, 100_000, {}, 63e6),
    "Transformer (big)": (84, 300_000, {"width": 1024, "hidden": 4096, "num_heads": 16}, 214e6),
}


def count_operations_of_step(fields):
    # Scanned layers do as much, and one is traced for all.
    model = Transformer(TransformerConfig(37_000, scan_layers=True, **fields))
    tokens = jax.ShapeDtypeStruct((SENTENCES, LENGTH), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]

    def loss(params, source, target):
        logits = model.apply({"params": params}, source, target)
        return token_sums(logits, target, label_smoothing=0.1)["loss"]

    return count(jax.grad(loss), params, tokens, tokens).products


@pytest.mark.parametrize(
    ("table", "row"), daily(rows_of("vaswani2_cost"), ("vaswani2_cost", "Transformer (base)"))
)
def test_the_cost_of_a_training_is_estimated_as_the_paper_does_and_counted(table, row):
    """Counted: 6 operations a parameter and token, and no less than half of that."""
    hours, steps, fields, parameters = TRAININGS[row]
    estimated = hours * 3600 * DEVICES * RATE
    counted = count_operations_of_step(fields) * steps
    kept = KEPT[table, row]
    share = f"{counted / estimated:.0%}"
    assert kept["ours"] == f"{estimated:.1e}; counted {counted:.1e}, {share} of it"
    assert f"{estimated:.1e}" == f"{float(kept['paper']):.1e}" and kept["verdict"] == EXACT
    whole = 6 * parameters * 25_000 * steps
    assert 0.5 * whole < counted < 1.5 * whole
