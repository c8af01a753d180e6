"""The rows of Britz et al. 2017: each is a model that makes a step of training."""

import jax
import jax.numpy as jnp
import pytest

from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.step import TrainState, make_train_step
from experiments.tables.mapping import all_tables
from experiments.translate.models import build
from experiments.translate.settings import Settings
from tests.daily import daily

ROWS = {
    name: {
        row: dict(count.fields) for row, count in all_tables()[f"{name}_parameters"].cells.items()
    }
    for name in ("britz2", "britz3", "britz4")
}
NAMES = [(table, row) for table, rows in ROWS.items() for row, fields in rows.items() if fields]


@pytest.mark.parametrize("name", ROWS)
def test_what_is_counted_is_what_is_trained(name):
    assert all_tables()[name].rows == all_tables()[f"{name}_parameters"].rows == list(ROWS[name])


@pytest.mark.parametrize(("name", "row"), daily(NAMES, *NAMES[:2]))
def test_a_row_makes_a_step(name, row):
    """Traced, not compiled: what the models compute is tested in tests/models."""
    flags = all_tables()[name].trainings[row].runs["cpu"].flags
    given = tuple(flag.removeprefix("--set=") for flag in flags if flag.startswith("--set="))
    settings = Settings(models=("britz",), set=given)
    (variant,) = settings.variants()
    assert dict(variant.changed) == {"attention": "add", **ROWS[name][row]}  # at scale cpu
    narrow = dict.fromkeys(("embed_features", "hidden_features", "attention_features"), 3)
    sizes = settings.recipe(variant).sizes | narrow
    model = build("britz", sizes, source_vocab_size=7, target_vocab_size=7, dtype="float32")
    tokens = jax.ShapeDtypeStruct((2, 3), jnp.int32)
    batch = {"source": tokens, "target": tokens}
    optimizer = OptimizerSettings(learning_rate=0.1).build(1)
    before = jax.eval_shape(lambda batch: TrainState.create(model, optimizer, batch, 0), batch)
    step = make_train_step(model, TokenCrossEntropy(), optimizer)
    after, metrics = jax.eval_shape(step, before, batch)
    assert after == before and metrics.sums["loss"].shape == ()
