"""The training of a cell: what its rounds see, and its bits per byte."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.studies.study import Cell
from attnlab.training.curve import means_of
from experiments.language_model import corpus, measure
from experiments.language_model.__main__ import LanguageModels
from experiments.language_model.settings import Settings

SETTINGS = Settings(
    models=("exact", "lsh-1"), lengths=(32,), batch_tokens=96, steps=6, warmup_steps=2,
    num_layers=2, head_dim=6, hidden=7, chunk_size=4,
)  # fmt: skip


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(np.random.default_rng(0).integers(97, 107, 997, np.uint8).tobytes())
    return corpus.read(dataclasses.replace(SETTINGS, input=str(path)))


def cell(model, length=32):
    return Cell({"task": "text", "length": length, "model": model}, 0)


def variables_of(name, text):
    model = LanguageModels(SETTINGS, text).model(cell(name))
    return jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 8), int))


def mass_seen(name, settings, text):
    return LanguageModels(settings, text).training(cell(name)).task.watch


@pytest.mark.slow
def test_more_rounds_see_more_of_the_mass(text):
    variables = variables_of("lsh-1", text)
    found = [mass_seen(f"lsh-{n}", SETTINGS, text)(variables) for n in (1, 3)]
    assert 0 < found[0]["mass"] < found[1]["mass"] < 1
    assert 0 < found[0]["pairs"] < found[1]["pairs"] < 1
    assert mass_seen("exact", SETTINGS, text) is None


def test_padding_of_a_short_part_is_no_mass(monkeypatch, text):
    """A part of 13 tokens is measured as 13, not as a window of 32."""
    split = dataclasses.replace(text.split, validation=text.split.validation[:13])
    short = dataclasses.replace(text, split=split)
    measured, real = [], measure.hash_quality

    def hash_quality(qk, v, buckets, **options):
        measured.append((qk.shape[-3], v.shape[-3]))
        return real(qk, v, buckets, **options)

    monkeypatch.setattr(measure, "hash_quality", hash_quality)
    mass_seen("lsh-1", SETTINGS, short)(variables_of("lsh-1", text))
    assert measured == [(13, 13)]


@pytest.mark.slow
def test_the_mass_is_of_queries_that_positions_have_turned(monkeypatch, text):
    turned, variables = [], variables_of("lsh-1", text)
    seen = mass_seen("lsh-1", SETTINGS, text)(variables)
    monkeypatch.setattr(measure, "rotary", lambda qk, at: turned.append(qk.shape) or qk)
    assert mass_seen("lsh-1", SETTINGS, text)(variables)["mass"] != pytest.approx(seen["mass"])
    assert turned == [(2, 1, 32, 2, 6)]
    sinusoid = dataclasses.replace(SETTINGS, positions="sinusoid")
    mass_seen("lsh-1", sinusoid, text)(variables)
    assert len(turned) == 1


def test_bits_do_not_depend_on_how_a_part_is_batched(text):
    exact = cell("exact")
    assert text.split.validation.size % 32  # a ragged end
    variables, training = (
        variables_of("exact", text),
        LanguageModels(SETTINGS, text).training(exact),
    )
    found = [
        means_of(
            training.task.model,
            training.task.objective,
            variables,
            text.held_out("validation", 32, rows),
        )["bits_per_byte"]
        for rows in (1, 3)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5) and 5 < found[0] < 12


def test_each_hashing_model_is_evaluated_with_other_rounds(text):
    evaluations = LanguageModels(SETTINGS, text).evaluations
    assert evaluations(cell("lsh-2")) == ["", "lsh-1", "lsh-4", "lsh-8", "no attention"]
    assert evaluations(cell("window-128")) == ["", "no attention"]
    assert evaluations(Cell({"task": "copy", "model": "lsh-2"}, 0)) == ["", "no attention"]


def test_the_copies_are_trained_with_the_first_seed_behind_its_texts(text):
    settings = dataclasses.replace(
        SETTINGS, seeds=(3, 1), lengths=(32, 16), copy_models=("window-128",), copy_distance=40
    )
    cells = LanguageModels(settings, text).cells()
    of_text = [(n, model) for n in settings.lengths for model in settings.models]
    assert [(c["length"], c["model"]) for c in cells] == [*of_text, (40, "window-128"), *of_text]
    assert [c.seed for c in cells] == [3] * 5 + [1] * 4
    alone = dataclasses.replace(settings, tasks=("copy",))
    assert [c.title for c in LanguageModels(alone, text).cells()] == ["copy, 40, window-128"]
    assert LanguageModels.batch_sizes(settings) == [3, 6, 8]
    assert LanguageModels.batch_sizes(alone) == [8]
