"""The training of a cell: what its rounds see, what its checkpoints are checked against."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.language_model import corpus, training
from experiments.language_model.evaluate import bits_per_byte, evaluations
from experiments.language_model.settings import Settings
from experiments.language_model.training import Cell, mass_seen, task

SETTINGS = Settings(
    models=("exact", "lsh-1"), lengths=(32,), batch_tokens=96, steps=6, warmup_steps=2,
    num_layers=2, head_dim=6, hidden=7, chunk_size=4,
)  # fmt: skip


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(np.random.default_rng(0).integers(97, 107, 997, np.uint8).tobytes())
    return corpus.read(dataclasses.replace(SETTINGS, input=str(path)))


def variables_of(cell, text):
    model = task(cell, SETTINGS, text).model
    return jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 8), int))


@pytest.mark.slow
def test_more_rounds_see_more_of_the_mass(text):
    variables = variables_of(Cell("lsh-1", 32, 0), text)
    found = [mass_seen(Cell(f"lsh-{n}", 32, 0), SETTINGS, text)(variables) for n in (1, 3)]
    assert 0 < found[0]["mass"] < found[1]["mass"] < 1
    assert 0 < found[0]["pairs"] < found[1]["pairs"] < 1
    assert mass_seen(Cell("exact", 32, 0), SETTINGS, text) is None


@pytest.mark.slow
def test_the_mass_is_of_queries_that_positions_have_turned(monkeypatch, text):
    cell, turned = Cell("lsh-1", 32, 0), []
    variables = variables_of(cell, text)
    seen = mass_seen(cell, SETTINGS, text)(variables)
    monkeypatch.setattr(training, "rotary", lambda qk, at: turned.append(qk.shape) or qk)
    assert mass_seen(cell, SETTINGS, text)(variables)["mass"] != pytest.approx(seen["mass"])
    assert turned == [(2, 1, 32, 2, 6)]
    sinusoid = dataclasses.replace(SETTINGS, positions="sinusoid")
    mass_seen(cell, sinusoid, text)(variables)
    assert len(turned) == 1


def test_bits_do_not_depend_on_how_a_part_is_batched(text):
    cell, part = Cell("exact", 32, 0), text.split.validation
    assert part.size % 32  # a ragged end
    variables = variables_of(cell, text)
    found = [
        bits_per_byte(
            cell, dataclasses.replace(SETTINGS, batch_size=rows), text, variables, part
        )
        for rows in (1, 3)
    ]  # fmt: skip
    assert found[0] == pytest.approx(found[1], rel=1e-5) and 5 < found[0] < 12


def test_each_hashing_model_is_evaluated_with_other_rounds():
    assert evaluations(Cell("lsh-2", 32, 0), SETTINGS) == [
        "lsh-2", "lsh-1", "lsh-4", "lsh-8", "no attention",
    ]  # fmt: skip
    assert evaluations(Cell("window-128", 32, 0), SETTINGS) == ["window-128", "no attention"]


def test_what_a_checkpoint_is_checked_against(text):
    identity = task(Cell("lsh-1", 32, 0), SETTINGS, text).identity
    for other in (
        task(Cell("exact", 32, 0), SETTINGS, text),
        task(Cell("lsh-1", 32, 1), SETTINGS, text),
        task(Cell("lsh-1", 32, 0), dataclasses.replace(SETTINGS, chunk_size=8), text),
        task(Cell("lsh-1", 32, 0), dataclasses.replace(SETTINGS, learning_rate=1.0), text),
    ):
        assert other.identity != identity
    # What is not trained may change.
    same = dataclasses.replace(SETTINGS, equal_bits=1.0, eval_rounds=(3,), cost_repeats=9)
    assert task(Cell("lsh-1", 32, 0), same, text).identity == identity
